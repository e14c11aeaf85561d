#include <immintrin.h>

#include "forward.h"
#include "layout.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,bmi2")
#define HD_BF16
#define HD_AMX

namespace {
constexpr int PART_BYTES = 64;
constexpr int PANELS = 4, BLOCK = 6, TALL = 9;  // as without matrix instructions, where those do not serve
#include "build.inl"
}  // namespace

extern const Instructions AMX = {"amx", true, forward, own_bytes, likeliest, sum};
