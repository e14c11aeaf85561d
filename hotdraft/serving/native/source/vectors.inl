// Vectors of 16, which the compiler splits where the machine's are shorter. Everything here and in the other .inl
// files has internal linkage: a function shared with another build would be the wrong one on some machine.
typedef float Floats __attribute__((vector_size(64), may_alias));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(64), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), may_alias));
typedef uint16_t Halves __attribute__((vector_size(32), may_alias));
typedef uint16_t LooseHalves __attribute__((vector_size(32), aligned(2), may_alias));

// As wide as the machine's.
typedef float Part __attribute__((vector_size(PART_BYTES), may_alias));
typedef uint32_t PartWords __attribute__((vector_size(PART_BYTES), may_alias));
constexpr int PARTS = VECTOR / PART_BYTES;

constexpr float INFINITE = __builtin_huge_valf();
constexpr Ints LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline Floats splat(float x) { return Floats{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
inline Floats load(const float *from) { return *reinterpret_cast<const LooseFloats *>(from); }
inline void store(float *to, Floats x) { *reinterpret_cast<LooseFloats *>(to) = x; }
inline void store_some(float *to, Floats x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = x[i];
}

inline float total(Floats x) {
    float sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += x[lane];
    return sum;
}

inline float largest(Floats x) {
    float most = x[0];
    for (int lane = 1; lane < LANES; ++lane) most = x[lane] > most ? x[lane] : most;
    return most;
}

// e^x for x <= 88, to 2 units in the last place; 0 where x < -87. As Cephes' expf.
inline Floats exponential(Floats x) {
    const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: rounds what is added to an integer
    const Floats scaled = x * 1.44269504088896341f + magic;
    const Floats n = scaled - magic;
    const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    Floats y = splat(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    const Ints power = ((Ints)scaled << 23) + (127 << 23);
    const Floats result = y * (Floats)power;
    return x < -87.0f ? splat(0.0f) : result;
}

inline Floats silu(Floats x) {
    const Floats minus = -x;
    return x / (1.0f + exponential(minus > 88.0f ? splat(88.0f) : minus));
}

inline float widened(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

inline Floats widened(Halves halves) { return (Floats)(__builtin_convertvector(halves, Words) << 16); }

// To bfloat16, ties to even.
inline Halves narrowed(Floats x) {
#ifdef HD_BF16
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    const Words bits = (Words)x;
    const Words rounded_bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words nan = (bits >> 16) | 0x40u;
    return __builtin_convertvector(x == x ? rounded_bits : nan, Halves);
#endif
}

inline uint16_t narrowed(float x) { return narrowed(splat(x))[0]; }
