#include <immintrin.h>

#include "forward.h"
#include "layout.h"

#pragma GCC target("avx2,fma,bmi2")

namespace {
constexpr int PART_BYTES = 32;
constexpr int PANELS = 2, BLOCK = 3, TALL = 3;  // of a tile, and of one of two panels, so that its sums stay in registers
#include "build.inl"
}  // namespace

extern const Instructions AVX2 = {"avx2", false, forward, own_bytes, likeliest, sum};
