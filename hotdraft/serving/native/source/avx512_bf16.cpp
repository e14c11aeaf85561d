#include <immintrin.h>

#include "forward.h"
#include "layout.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,bmi2")
#define HD_BF16

namespace {
constexpr int PART_BYTES = 64;
constexpr int PANELS = 4, BLOCK = 6, TALL = 9;  // of a tile, and of one of two panels, so that its sums stay in registers
#include "build.inl"
}  // namespace

extern const Instructions AVX512_BF16 = {"avx512_bf16", true, forward, own_bytes, likeliest, sum};
