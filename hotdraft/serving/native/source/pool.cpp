#include "pool.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "layout.h"

namespace {
using Clock = std::chrono::steady_clock;

// Between the forwards of a round lies less than this; longer pauses leave the core to others.
constexpr auto AWAKE = std::chrono::microseconds(300);
// No share of a phase is so much smaller than another's that its thread would wait this long.
constexpr auto STALL = std::chrono::milliseconds(6);
// Forwards that are computed by one thread after one in which more was lost by waiting than one thread alone would lose,
// at first and at most.
constexpr int64_t FIRST_PENALTY = 2, LAST_PENALTY = 16;
// Other forwards after which the next penalty is half as long.
constexpr int64_t FORGIVEN = 32;

char *aligned(char *at) { return reinterpret_cast<char *>(rounded(reinterpret_cast<int64_t>(at), VECTOR)); }
}  // namespace

void team_wait_long(Team &team, uint32_t phase) {
    const auto began = Clock::now();
    while (__atomic_load_n(&team.phase, __ATOMIC_ACQUIRE) == phase) std::this_thread::yield();
    const auto waited = Clock::now() - began;
    if (waited > STALL) __atomic_add_fetch(&team.stalls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&team.waited, std::chrono::nanoseconds(waited).count(), __ATOMIC_RELAXED);
}

Pool::Pool(const Instructions &those, int32_t threads) : instructions(those) {
    team_.size = threads;
    try {
        for (int32_t thread = 1; thread < threads; ++thread) threads_.emplace_back(&Pool::serve, this, thread);
    } catch (...) {
        end();
        throw;
    }
}

Pool::~Pool() { end(); }

void Pool::end() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_ = true;
        turn_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto &thread : threads_) thread.join();
}

void Pool::serve(int32_t thread) {
    uint32_t done = 0;
    for (;;) {
        const auto began = Clock::now();
        while (turn_.load(std::memory_order_acquire) == done) {
            __builtin_ia32_pause();
            if (Clock::now() - began < AWAKE) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_.fetch_add(1);
            wake_.wait(lock, [&] { return turn_.load() != done; });
            asleep_.fetch_sub(1);
        }
        ++done;
        if (ending_) return;
        (*work_)(team_, thread);
        barrier(team_);
    }
}

void Pool::run(const std::function<void(Team &, int32_t)> &work) {
    if (team_.size == 1) return work(alone_, 0);
    if (alone_for_ > 0) {
        --alone_for_;
        return work(alone_, 0);
    }
    const auto began = Clock::now();
    const int64_t before = __atomic_load_n(&team_.waited, __ATOMIC_RELAXED);
    work_ = &work;
    turn_.fetch_add(1);
    if (asleep_.load()) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    work(team_, 0);
    barrier(team_);  // nobody is still at work on what the caller takes back
    stalls_.store(__atomic_load_n(&team_.stalls, __ATOMIC_RELAXED), std::memory_order_relaxed);
    const int32_t others = team_.size - 1;  // who wait for one that is kept from its core
    const auto waited = std::chrono::nanoseconds(__atomic_load_n(&team_.waited, __ATOMIC_RELAXED) - before) / others;
    const bool is_crowded = waited > others * (Clock::now() - began - waited);
    if (is_crowded) {
        undisturbed_ = 0;
        penalty_ = std::clamp(2 * penalty_, FIRST_PENALTY, LAST_PENALTY);
        alone_for_ = penalty_;
    } else if (++undisturbed_ % FORGIVEN == 0) {
        penalty_ /= 2;
    }
}

const Scratch &Pool::scratch(const hd_model &model) {
    const int64_t wanted[] = {model.hidden,       int64_t(model.heads + 2 * model.kv_heads) * model.head_dim,
                              int64_t(model.heads) * model.head_dim, model.intermediate, fed_width(model), instructions.own_bytes(model)};
    for (const Kept &kept : kept_)
        if (std::memcmp(wanted, kept.widths, sizeof wanted) == 0) return kept.scratch;
    // Not shared by models that differ: what lies beyond a row's width is zero.
    Kept &kept = kept_.emplace_back();
    std::memcpy(kept.widths, wanted, sizeof wanted);
    const auto take = [&](int64_t bytes) {
        kept.memory.emplace_back(bytes + VECTOR);
        return aligned(kept.memory.back().data());
    };
    Scratch &scratch = kept.scratch;
    float **shared[] = {&scratch.hidden, &scratch.qkv, &scratch.attended, &scratch.activated, &scratch.fed};
    for (int part = 0; part < 5; ++part) *shared[part] = reinterpret_cast<float *>(take(4 * MAX_TOKENS * rounded(wanted[part], GROUP)));
    for (int32_t thread = 0; thread < team_.size; ++thread) kept.own.push_back(take(wanted[5]));
    scratch.own = kept.own.data();
    return scratch;
}
