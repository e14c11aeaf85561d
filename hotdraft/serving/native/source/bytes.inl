// Weights in 8 bits.

// A group of inputs as signed halves.
struct Rounded {
    __m256i values[4];
    float scale;
    int32_t offset;  // -128 times their sum

    explicit Rounded(const float *from) {
        Floats x[4], most = splat(0);
        for (int part = 0; part < 4; ++part) {
            x[part] = load(from + part * LANES);
            const Floats size = x[part] < 0.0f ? -x[part] : x[part];
            most = size > most || size != size ? size : most;  // what is no number stays none
        }
        scale = (float)_mm512_reduce_max_ps((__m512)most) / 32767.0f;
        const Floats inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
        __m512i sum = _mm512_setzero_si512();
        bool sound = true;
        for (int part = 0; part < 4; ++part) {
            values[part] = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32((__m512)(x[part] * inverse)));
            sum = _mm512_add_epi32(sum, _mm512_cvtepi16_epi32(values[part]));
            sound &= _mm512_cmp_ps_mask((__m512)x[part], (__m512)x[part], _CMP_UNORD_Q) == 0;
        }
        if (!sound) scale = __builtin_nanf("");
        offset = -128 * _mm512_reduce_add_epi32(sum);
    }
};

// Weights as bytes offset by 128, inputs as signed halves: what the offset adds is known once the inputs are. Sums of a
// group are exact.
struct Int8 {
    static constexpr bool IS_MATRIX = false;
    struct Inputs {
        int16_t values[GROUP];  // of four neighbours 0, 2, 1, 3: even and odd bytes of weights are taken in turn
        float scale;
        int32_t offset;
    };
    static constexpr int VECTORS = GROUP_VECTORS, INPUT_BYTES = sizeof(Inputs);
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) / GROUP * INPUT_BYTES; }
    static constexpr int block(int panels) { return panels > 2 ? 3 : 6; }
    static int64_t widest(int64_t tokens) { return tokens > 3 ? 2 : PANELS; }

    static void convert(const float *from, int64_t inputs, char *to) {
        Inputs *groups = reinterpret_cast<Inputs *>(to);
        for (int64_t i = 0; i < inputs; i += GROUP, ++groups) {
            const Rounded group(from + i);
            for (int part = 0; part < 4; ++part)
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(groups->values + part * LANES),
                                    _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(group.values[part], 0xd8), 0xd8));
            groups->scale = group.scale, groups->offset = group.offset;
        }
    }

    template <int P, int T, class Ahead>
    static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        for (int64_t group = 0; group < vectors / GROUP_VECTORS; ++group) {
            const char *const weights = panels + group * GROUP_BYTES, *const soon = ahead.at(group * GROUP_VECTORS);
            const Inputs *inputs_of[T];
            __m512i counts[P][T];
            for (int t = 0; t < T; ++t) {
                inputs_of[t] = reinterpret_cast<const Inputs *>(x + t * stride) + group;
                for (int p = 0; p < P; ++p) counts[p][t] = _mm512_set1_epi32(inputs_of[t]->offset);
            }
#pragma GCC unroll 4
            for (int i = 0; i < GROUP / 4; ++i) {
                __m512i bytes[P];
                ahead.ask(soon + i * VECTOR);
                for (int p = 0; p < P; ++p) bytes[p] = _mm512_load_si512(weights + p * panel + i * VECTOR);
                for (int t = 0; t < T; ++t) {
                    const Alias32 *pairs = reinterpret_cast<const Alias32 *>(inputs_of[t]->values) + 2 * i;
                    const __m512i evens = _mm512_set1_epi32(pairs[0]), odds = _mm512_set1_epi32(pairs[1]);
                    for (int p = 0; p < P; ++p) {
                        const __m512i even_bytes = _mm512_and_si512(bytes[p], _mm512_set1_epi32(0x00ff00ff));
                        counts[p][t] = _mm512_dpwssd_epi32(counts[p][t], even_bytes, evens);
                        counts[p][t] = _mm512_dpwssd_epi32(counts[p][t], _mm512_srli_epi16(bytes[p], 8), odds);
                    }
                }
            }
            for (int p = 0; p < P; ++p) {
                const Floats scale = *reinterpret_cast<const Floats *>(weights + p * panel + GROUP * LANES);
                for (int t = 0; t < T; ++t)
                    sums[p][t] += (Floats)_mm512_cvtepi32_ps(counts[p][t]) * (scale * inputs_of[t]->scale);
            }
        }
    }
};
