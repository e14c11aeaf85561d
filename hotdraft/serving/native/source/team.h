// Threads that work on one forward together, each on its share, and wait for each other between its phases.
#pragma once
#include <cstdint>

struct Team {
    int32_t size = 1;
    int32_t arrived = 0;
    uint32_t phase = 0;  // which wraps within a day
    int64_t stalls = 0;  // waits so long that somebody must have been kept from a core
    int64_t waited = 0;  // nanoseconds, of waits for more than a moment
};

void team_wait_long(Team &team, uint32_t phase);

// Everybody's writes before it are seen by everybody after it.
static inline void barrier(Team &team) {
    if (team.size == 1) return;
    const uint32_t phase = __atomic_load_n(&team.phase, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&team.arrived, 1, __ATOMIC_ACQ_REL) == team.size) {
        __atomic_store_n(&team.arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team.phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int32_t spin = 0; spin < 1024; ++spin) {
        if (__atomic_load_n(&team.phase, __ATOMIC_ACQUIRE) != phase) return;
        __builtin_ia32_pause();
    }
    team_wait_long(team, phase);
}
