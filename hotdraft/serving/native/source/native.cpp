#include "native.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>

#include "instructions.h"
#include "layout.h"
#include "pool.h"

#ifdef HD_SOURCES
extern const char hd_sources[] = HD_SOURCES;  // for whoever loads this to compare with those that there are
#endif

namespace {
int32_t head_outputs(const hd_model &model) { return model.linears[4 * model.layers]->outputs; }

// Tokens that are computed together, in order: those of one slot may stand in one batch after another.
struct Tokens {
    const hd_model &model;
    Pool &pool;
    float *logits;
    std::vector<int64_t> ids = {}, positions = {}, keys = {};
    std::vector<int32_t> slots = {}, outputs = {}, places = {};

    // `place` of its logits, negative for a token whose logits are not wanted.
    void add(int64_t id, int64_t position, int64_t key, int32_t slot, int32_t place) {
        if (model.reads && follows_guess(position, slot)) compute();
        if (place >= 0) outputs.push_back(int32_t(ids.size())), places.push_back(place);
        ids.push_back(id);
        positions.push_back(position);
        keys.push_back(key);
        slots.push_back(slot);
        if (ids.size() == MAX_TOKENS) compute();
    }

    // Whether it is to be given a state that this batch has yet to come to.
    bool follows_guess(int64_t position, int32_t slot) const {
        return !ids.empty() && slots.back() == slot && slot < model.reads->slots - 1 && position >= model.reads->committed[slot];
    }

    void compute() {
        if (ids.empty()) return;
        const Scratch &scratch = pool.scratch(model);
        const Batch batch{int32_t(ids.size()),     ids.data(),     positions.data(), keys.data(), slots.data(),
                          int32_t(outputs.size()), outputs.data(), places.data(),    logits};
        const auto forward = pool.instructions.forward;
        pool.run([&](Team &team, int32_t thread) { forward(model, batch, scratch, team, thread); });
        for (auto *part : {&ids, &positions, &keys}) part->clear();
        for (auto *part : {&slots, &outputs, &places}) part->clear();
    }
};

// The `ranks` largest logits beside that of `first`, whose chance is known: names, and chances of `first` and of these.
template <class Name>
void runners_up(const float *logits, int32_t outputs, int32_t first, float chance, const Name &name, int64_t *others, float *chances, int32_t ranks) {
    std::vector<std::pair<float, int32_t>> found(ranks, {-HUGE_VALF, 0});
    for (int32_t output = 0; ranks && output < outputs; ++output) {
        if (!(logits[output] > found.back().first) || output == first) continue;
        int32_t rank = ranks - 1;
        for (; rank && found[rank - 1].first < logits[output]; --rank) found[rank] = found[rank - 1];
        found[rank] = {logits[output], output};
    }
    chances[0] = chance;
    for (int32_t rank = 0; rank < ranks; ++rank) {
        others[rank] = name(found[rank].second);
        const float own = chance * std::exp(found[rank].first - logits[first]);
        chances[1 + rank] = own > 0 ? own : 0;  // of what is no number nothing comes
    }
}

template <class Number>
void move_key(const hd_model &model, int32_t slot, int32_t source, int32_t destination) {
    constexpr int64_t UNIT = 4 / sizeof(Number);
    const CacheLayout layout(model);
    for (int64_t head = 0; head < int64_t(model.layers) * model.kv_heads; ++head) {
        char *keys = static_cast<char *>(model.keys_values) + slot * layout.slot + head * layout.head;
        char *values = keys + layout.values(model.max_length);
        const auto copy = [](char *panels, int64_t to, int64_t from) { std::memcpy(panels + to, panels + from, sizeof(Number)); };
        for (int64_t d = 0; d < model.head_dim; ++d) {
            copy(keys, place_in_panels(UNIT, layout.key_panel, destination, d), place_in_panels(UNIT, layout.key_panel, source, d));
            copy(values, place_in_panels(UNIT, layout.value_panel, d, destination), place_in_panels(UNIT, layout.value_panel, d, source));
        }
    }
}

Pool &pool_of(hd_pool *pool) { return *reinterpret_cast<Pool *>(pool); }
}  // namespace

const char *hd_instructions(const char *wanted) {
    const Instructions *found = find_instructions(wanted);
    return found ? found->name : nullptr;
}

int32_t hd_supports(const char *instructions, hd_format format) {
    return format != HD_W8A16 || find_instructions(instructions)->int8;
}

size_t hd_slot_bytes(const hd_model *model) { return size_t(CacheLayout(*model).slot); }

void hd_move(const hd_model *model, int32_t source, int32_t destination, int32_t length) {
    const CacheLayout layout(*model);
    const int64_t values = layout.values(model->max_length), key_bytes = rounded(length, LANES) / LANES * layout.key_panel;
    const int64_t value_bytes = panel_bytes(model->half ? HD_BFLOAT16 : HD_FLOAT32, length);
    for (int64_t head = 0; head < int64_t(model->layers) * model->kv_heads; ++head) {
        const char *from = static_cast<const char *>(model->keys_values) + source * layout.slot + head * layout.head;
        char *to = static_cast<char *>(model->keys_values) + destination * layout.slot + head * layout.head;
        std::memcpy(to, from, key_bytes);
        for (int64_t at = values; at < layout.head; at += layout.value_panel) std::memcpy(to + at, from + at, value_bytes);
    }
}

void hd_move_key(const hd_model *model, int32_t slot, int32_t source, int32_t destination) {
    model->half ? move_key<uint16_t>(*model, slot, source, destination) : move_key<float>(*model, slot, source, destination);
}

void hd_clear(const hd_model *model, int32_t slot) {
    const CacheLayout layout(*model);
    std::memset(static_cast<char *>(model->keys_values) + slot * layout.slot, 0, layout.slot);
}

hd_pool *hd_pool_create(const char *instructions, int32_t threads) {
    try {
        return reinterpret_cast<hd_pool *>(new Pool(*find_instructions(instructions), threads));
    } catch (const std::exception &) {  // there may be no more threads
        return nullptr;
    }
}

void hd_pool_destroy(hd_pool *pool) { delete &pool_of(pool); }

int64_t hd_pool_stalls(const hd_pool *pool) { return reinterpret_cast<const Pool *>(pool)->stalls(); }

void hd_forward(const hd_model *model, hd_pool *pool, int32_t first_slot, int32_t rows, int32_t count, const int32_t *counts,
                const int64_t *token_ids, const int64_t *positions, const int64_t *keys, int32_t keep, float *logits) {
    Tokens tokens{*model, pool_of(pool), logits};
    for (int32_t row = 0; row < rows; ++row)
        for (int32_t i = 0; i < (counts ? counts[row] : count); ++i) {
            const int64_t at = int64_t(row) * count + i;
            const int32_t kept = i - (count - keep);
            tokens.add(token_ids[at], positions[at], keys ? keys[at] : positions[at], first_slot + row, kept < 0 ? -1 : row * keep + kept);
        }
    tokens.compute();
}

void hd_draft(const hd_model *model, hd_pool *pool, int32_t rows, int32_t count, const int64_t *token_ids, const int64_t *positions,
              const hd_drafting *drafting) {
    const int32_t outputs = head_outputs(*model), most = drafting->most, ranks = drafting->ranks;
    const auto likeliest = pool_of(pool).instructions.likeliest;
    std::vector<float> &logits = pool_of(pool).logits;
    logits.resize(size_t(rows) * outputs);
    std::vector<float> reached(rows, 1);
    Tokens tokens{*model, pool_of(pool), logits.data()};
    const auto named = [&](int32_t column) { return drafting->vocabulary ? drafting->vocabulary[column] : column; };
    std::fill(drafting->sound, drafting->sound + rows, 1);
    for (int32_t step = 0; step < most; ++step) {
        for (int32_t row = 0; row < rows; ++row) {
            if (drafting->ks[row] <= step) continue;
            const int64_t end = int64_t(row + 1) * count, last = positions[end - 1];
            if (step) tokens.add(drafting->drafted[int64_t(row) * most + step - 1], last + step, last + step, row, row);
            for (int64_t at = end - (step ? 0 : drafting->reads[row]); at < end; ++at)
                tokens.add(token_ids[at], positions[at], positions[at], row, at == end - 1 ? row : -1);
        }
        tokens.compute();
        for (int32_t row = 0; row < rows; ++row) {
            if (drafting->ks[row] <= step) continue;
            bool is_sound = true;
            float chance;
            const float *const of_row = &logits[size_t(row) * outputs];
            const int32_t column = likeliest(of_row, outputs, &chance, &is_sound);
            const int64_t place = int64_t(row) * most + step;
            drafting->sound[row] &= is_sound;
            drafting->drafted[place] = named(column);
            const int confidence = is_sound ? std::min(int(chance * HD_CONFIDENCES), HD_CONFIDENCES - 1) : 0;
            drafting->confidences[place] = uint8_t(confidence);
            runners_up(of_row, outputs, column, chance, named, drafting->others + place * ranks, drafting->chances + place * (1 + ranks), ranks);
            reached[row] *= drafting->rates[confidence];
            if (reached[row] < drafting->floors[row]) drafting->ks[row] = step + 1;
        }
    }
}

double hd_read_speed(hd_pool *pool, const void *data, size_t bytes) {
    const auto began = std::chrono::steady_clock::now();
    float sums[256] = {};
    pool_of(pool).run([&](Team &team, int32_t thread) {
        const int64_t part = int64_t(bytes) / team.size / VECTOR * VECTOR;
        sums[thread % 256] = pool_of(pool).instructions.sum(static_cast<const char *>(data) + thread * part, part);
    });
    volatile float kept = sums[0];
    (void)kept;
    return double(bytes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}
