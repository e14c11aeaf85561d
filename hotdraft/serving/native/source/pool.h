// The threads that forwards are computed with; the caller is one of them.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "forward.h"

class Pool {
  public:
    Pool(const Instructions &instructions, int32_t threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Runs `work(team, thread)` in all threads, or in the caller alone while others are kept from their cores.
    void run(const std::function<void(Team &, int32_t)> &work);
    const Scratch &scratch(const hd_model &model);
    int64_t stalls() const { return stalls_.load(std::memory_order_relaxed); }

    const Instructions &instructions;
    std::vector<float> logits;  // of drafted tokens

  private:
    struct Kept {
        int64_t widths[6];
        std::vector<std::vector<char>> memory;
        std::vector<char *> own;
        Scratch scratch{};
    };

    void serve(int32_t thread);
    void end();

    std::vector<std::thread> threads_;
    Team team_, alone_;
    const std::function<void(Team &, int32_t)> *work_ = nullptr;
    std::atomic<uint32_t> turn_{0};
    std::atomic<bool> ending_{false};
    std::atomic<int32_t> asleep_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int64_t> stalls_{0};
    int64_t alone_for_ = 0, penalty_ = 0, undisturbed_ = 0;
    std::list<Kept> kept_;  // by what models need: target and draft take turns
};
