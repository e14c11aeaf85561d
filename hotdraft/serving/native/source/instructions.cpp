#include "instructions.h"

#include <cstring>

const Instructions *find_instructions(const char *wanted) {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    const struct {
        const Instructions *build;
        bool runs;
    } builds[] = {{&AVX512_BF16, avx512_bf16}, {&AVX512, avx512}, {&AVX2, avx2}};
    for (const auto &each : builds)
        if (each.runs && (!wanted || std::strcmp(wanted, each.build->name) == 0)) return each.build;
    return nullptr;
}
