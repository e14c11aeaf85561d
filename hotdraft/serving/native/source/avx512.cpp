#include <immintrin.h>

#include "forward.h"
#include "layout.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi2")

namespace {
constexpr int PANELS = 4, BLOCK = 6;  // of a tile, so that its sums stay in registers
typedef int32_t Alias32 __attribute__((may_alias));
#include "vectors.inl"
#include "formats.inl"
#include "tiles.inl"
#include "worker.inl"
#include "attention.inl"
#include "forward.inl"
}  // namespace

extern const Instructions AVX512 = {"avx512", false, forward, own_bytes, likeliest, sum};
