// Calls everything that the native library has, over odd sizes, for sanitizers to watch. Says what differs between
// thread counts; nothing if all is well.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "instructions.h"
#include "native.h"
#include "pool.h"

namespace {
constexpr int LAYERS = 2, HIDDEN = 72, INTERMEDIATE = 100, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 20;
constexpr int LENGTH = 70, SLOTS = 3, VOCABULARY = 131, ROUNDED_HIDDEN = 128;

struct Aligned {
    explicit Aligned(size_t bytes) : data(std::aligned_alloc(64, (bytes + 63) / 64 * 64)) { std::memset(data, 0, bytes); }
    ~Aligned() { std::free(data); }
    Aligned(const Aligned &) = delete;
    void *data;
};

struct Model {
    std::mt19937 random{7};
    std::vector<std::unique_ptr<Aligned>> held;
    std::vector<hd_linear> linears;
    std::vector<const hd_linear *> pointers;
    std::vector<float> norms, head_norms, cos, sin, bias, own;
    hd_model model{};

    // `reads` makes a draft of it, of one layer.
    Model(hd_format format, bool half, const hd_states *reads = nullptr) {
        const int layers = reads ? 1 : LAYERS;
        norms = floats((2 * LAYERS + 1) * ROUNDED_HIDDEN);
        for (int norm = 0; norm < 2 * LAYERS + 1; ++norm)
            std::fill_n(norms.begin() + norm * ROUNDED_HIDDEN + HIDDEN, ROUNDED_HIDDEN - HIDDEN, 0.f);
        head_norms = floats(LAYERS * 2 * HEAD_DIM), cos = floats(LENGTH * HEAD_DIM), sin = floats(LENGTH * HEAD_DIM);
        bias = floats(128 * 4);
        linears.reserve(4 * layers + 2);
        for (int layer = 0; layer < layers; ++layer) {
            add(format, reads ? 2 * HIDDEN : HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias.data());
            add(format, HEADS * HEAD_DIM, HIDDEN, nullptr);
            add(format, HIDDEN, 2 * 112, nullptr);  // gate and up by turns of 16
            add(format, INTERMEDIATE, HIDDEN, nullptr);
        }
        add(format, HIDDEN, VOCABULARY, nullptr);
        if (reads) add(format, reads->count * reads->size, HIDDEN, nullptr);
        for (const hd_linear &linear : linears) pointers.push_back(&linear);
        held.push_back(std::make_unique<Aligned>(4 * VOCABULARY * HIDDEN));
        own = std::vector<float>(SLOTS * HD_OWN * HIDDEN);
        model = {layers, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LENGTH, half, 1e-5f, 1e-5f, 0.2f, 0,
                 norms.data(), head_norms.data(), cos.data(), sin.data(), held.back()->data, pointers.data(), nullptr,
                 nullptr, reads, norms.data() + ROUNDED_HIDDEN, own.data()};
        for (int i = 0; i < 2 * VOCABULARY * HIDDEN; ++i) embedding()[i] = uint16_t(0x3c00 + random() % 0x300);
        held.push_back(std::make_unique<Aligned>(SLOTS * hd_slot_bytes(&model)));
        model.keys_values = held.back()->data;
    }

    uint16_t *embedding() { return static_cast<uint16_t *>(const_cast<void *>(model.embedding)); }

    std::vector<float> floats(size_t count) {
        std::uniform_real_distribution<float> some(-1, 1);
        std::vector<float> made(count);
        for (float &x : made) x = some(random);
        return made;
    }

    void add(hd_format format, int inputs, int outputs, const float *with_bias) {
        const std::vector<float> weights = floats(size_t(inputs) * outputs);
        held.push_back(std::make_unique<Aligned>(hd_packed_bytes(format, inputs, outputs)));
        hd_pack(format, weights.data(), inputs, outputs, held.back()->data);
        std::vector<float> back(weights.size());
        hd_unpack(format, held.back()->data, inputs, outputs, back.data());
        linears.push_back({format, inputs, outputs, 0, held.back()->data, with_bias});
    }
};

// What a draft that reads a target's states drafts, behind guesses and without, and in a probe's slot.
std::vector<float> run_reading(const char *instructions, hd_format format, bool half, int threads) {
    const int32_t behind[] = {1, LAYERS};
    const int64_t committed[] = {20, 7};
    constexpr int ROWS = 2, FED = 4, MOST = 3;
    std::vector<uint16_t> values((ROWS + 1) * LENGTH * 2 * HIDDEN, 0x3f80);
    const hd_states states{2, HIDDEN, LENGTH, ROWS + 1, behind, values.data(), committed};
    Model target(format, half), draft(format, half, &states);
    target.model.records = &states;
    hd_pool *pool = hd_pool_create(instructions, threads);
    std::vector<int64_t> ids(ROWS * 20), positions(ROWS * 20);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i * 37 % VOCABULARY), positions[i] = int64_t(i % 20);
    std::vector<float> all(ROWS * VOCABULARY);
    hd_forward(&target.model, pool, 0, ROWS, 20, nullptr, ids.data(), positions.data(), nullptr, 1, all.data());
    for (const uint16_t state : values) all.push_back(float(state));
    std::vector<float> logits((ROWS + 1) * VOCABULARY);
    hd_forward(&draft.model, pool, 0, ROWS, 18, nullptr, ids.data(), positions.data(), nullptr, 1, logits.data());
    hd_forward(&draft.model, pool, ROWS, 1, 20, nullptr, ids.data(), positions.data(), nullptr, 1, logits.data() + ROWS * VOCABULARY);
    all.insert(all.end(), logits.begin(), logits.end());
    // the last two that are committed, and two guesses
    for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < FED; ++i) positions[row * FED + i] = committed[row] - 2 + i;
    std::vector<int64_t> drafted(ROWS * MOST);
    std::vector<uint8_t> sound(ROWS), confidences(ROWS * MOST);
    std::vector<int32_t> ks(ROWS, MOST), reads(ROWS, FED);
    const std::vector<float> rates(HD_CONFIDENCES, 1.f), floors(ROWS, 0.f);
    std::vector<float> chances(ROWS * MOST);
    const hd_drafting drafting{MOST, 0, ks.data(), reads.data(), rates.data(), floors.data(), nullptr, drafted.data(), confidences.data(), sound.data(), nullptr, chances.data()};
    hd_draft(&draft.model, pool, ROWS, FED, ids.data(), positions.data(), &drafting);
    all.insert(all.end(), drafted.begin(), drafted.end());
    all.insert(all.end(), chances.begin(), chances.end());
    all.insert(all.end(), draft.own.begin(), draft.own.end());
    hd_pool_destroy(pool);
    return all;
}

// All that comes out of a prompt, of drafts and of rounds of several rows.
std::vector<float> run(const char *instructions, hd_format format, bool half, int threads) {
    Model made(format, half);
    hd_model &model = made.model;
    hd_pool *pool = hd_pool_create(instructions, threads);
    std::vector<int64_t> ids(SLOTS * 50), positions(SLOTS * 50);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i * 37 % VOCABULARY), positions[i] = int64_t(i % 50);
    std::vector<float> all(SLOTS * 50 * VOCABULARY);
    hd_forward(&model, pool, 0, SLOTS, 50, nullptr, ids.data(), positions.data(), nullptr, 50, all.data());
    hd_move(&model, 0, 1, 33);
    hd_move_key(&model, 1, 32, 17);
    hd_clear(&model, 2);
    for (int row = 0; row < SLOTS; ++row)
        for (int i = 0; i < 3; ++i) positions[row * 3 + i] = (row == 2 ? 0 : 33 + row) + i;
    std::vector<int64_t> drafted(SLOTS * 4), vocabulary(VOCABULARY);
    for (int i = 0; i < VOCABULARY; ++i) vocabulary[i] = VOCABULARY - 1 - i;
    std::vector<uint8_t> sound(SLOTS);
    std::vector<int32_t> ks(SLOTS, 4), reads(SLOTS, 2);
    ks[0] = 0, ks[1] = 2, reads[1] = 1;
    const std::vector<float> rates(HD_CONFIDENCES, 0.5f), floors(SLOTS, 0.2f);
    std::vector<uint8_t> confidences(SLOTS * 4);
    constexpr int RANKS = 2;
    std::vector<int64_t> others(SLOTS * 4 * RANKS);
    std::vector<float> chances(SLOTS * 4 * (1 + RANKS));
    const hd_drafting drafting{4, RANKS, ks.data(), reads.data(), rates.data(), floors.data(), vocabulary.data(),
                               drafted.data(), confidences.data(), sound.data(), others.data(), chances.data()};
    hd_draft(&model, pool, SLOTS, 2, ids.data(), positions.data(), &drafting);
    all.insert(all.end(), drafted.begin(), drafted.end());
    all.insert(all.end(), others.begin(), others.end());
    all.insert(all.end(), chances.begin(), chances.end());
    std::vector<float> last(2 * 2 * VOCABULARY);
    const int32_t counts[] = {3, 2};
    hd_forward(&model, pool, 1, 2, 3, counts, ids.data(), positions.data() + 3, nullptr, 2, last.data());
    all.insert(all.end(), last.begin(), last.end());
    const int64_t keys[] = {33, 34, 35, 0, 1, 2}, tree[] = {33, 34, 34, 0, 1, 1};
    hd_forward(&model, pool, 1, 2, 3, counts, ids.data(), tree, keys, 2, last.data());
    all.insert(all.end(), last.begin(), last.end());
    std::fill_n(made.embedding(), HIDDEN, uint16_t(0x7fff));  // token 0 is no number
    const int64_t first = 0;
    hd_forward(&model, pool, 0, 1, 1, nullptr, &first, &first, nullptr, 1, last.data());
    all.insert(all.end(), last.begin(), last.end());
    hd_read_speed(pool, model.keys_values, hd_slot_bytes(&model));
    hd_pool_destroy(pool);
    return all;
}
// Whether a team of four goes on as one after three of them have waited for the first as long as they worked.
bool stays_together() {
    const auto pause = [](int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); };
    Pool pool(*find_instructions(nullptr), 4);
    int32_t size = 0;
    for (int forward = 0; forward < 2; ++forward)
        pool.run([&](Team &team, int32_t thread) {
            if (!thread) size = team.size;
            pause(thread ? 100 : 200);
            barrier(team);
            pause(10);
        });
    return size == 4;
}
}  // namespace

int main() {
    int wrong = 0;
    if (!stays_together()) std::puts("a team of four falls apart where one of them works for twice as long"), ++wrong;
    for (const char *instructions : {"amx", "avx512_bf16", "avx512", "avx2"}) {
        if (!hd_instructions(instructions)) continue;
        for (const hd_format format : {HD_FLOAT32, HD_BFLOAT16, HD_W8A16}) {
            if (!hd_supports(instructions, format)) continue;
            const bool half = format != HD_FLOAT32;
            for (const auto part : {run, run_reading}) {
                const std::vector<float> alone = part(instructions, format, half, 1), shared = part(instructions, format, half, 3);
                if (std::memcmp(alone.data(), shared.data(), 4 * alone.size()) == 0) continue;
                std::printf("%s, format %d: three threads compute something else than one\n", instructions, int(format));
                ++wrong;
            }
        }
    }
    return wrong;
}
