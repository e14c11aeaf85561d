#include "instructions.h"

#include <cpuid.h>

#include <cstring>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {
// Whether this process may use tile registers, for which the system keeps 8 KiB a thread; it is asked once.
bool may_use_tiles() {
#ifdef __linux__
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool may = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return may;
#else
    return false;
#endif
}

bool has_amx() {
    constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25, ALL = AMX_BF16 | AMX_TILE | AMX_INT8;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & ALL) == ALL && may_use_tiles();
}

bool is_zen5_or_later() {
    constexpr unsigned ZEN5 = 26;  // a family that Intel has none of
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (eax >> 8 & 15) + (eax >> 20 & 255) >= ZEN5;
}
}  // namespace

const bool INTO_FIRST_CACHE = is_zen5_or_later();

const Instructions *find_instructions(const char *wanted) {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    const struct {
        const Instructions *build;
        bool runs;
    } builds[] = {{&AMX, avx512_bf16 && has_amx()}, {&AVX512_BF16, avx512_bf16}, {&AVX512, avx512}, {&AVX2, avx2}};
    for (const auto &each : builds)
        if (each.runs && (!wanted || std::strcmp(wanted, each.build->name) == 0)) return each.build;
    return nullptr;
}
