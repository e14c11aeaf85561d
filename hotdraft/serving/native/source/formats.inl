// The formats of weights: how inputs are brought to what they are multiplied with, and the innermost loops of a tile.

// Memory that is asked for while a tile is computed, `count` lines with each vector of a panel. Into the second level's
// cache: what goes straight to the first has few places to wait in.
struct Asking {
    const char *lines;
    int64_t stride;
    int count;

    void ask(int64_t vector) const {
        for (int line = 0; line < count; ++line) __builtin_prefetch(lines + line * stride + vector * VECTOR, 0, 2);
    }
};

// The processor follows panels by itself, where nothing but reading them takes time.
struct Nothing {
    void ask(int64_t) const {}
};

// Sums of a tile in vectors of the machine's own width: the compiler keeps those in registers, wider ones in memory.
template <int P, int T>
struct Registers {
    Part parts[PARTS][P][T];

    explicit Registers(const Floats (&sums)[P][T]) {
        for (int part = 0; part < PARTS; ++part)
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) parts[part][p][t] = reinterpret_cast<const Part *>(&sums[p][t])[part];
    }
    void put_back(Floats (&sums)[P][T]) const {
        for (int part = 0; part < PARTS; ++part)
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) reinterpret_cast<Part *>(&sums[p][t])[part] = parts[part][p][t];
    }
};

// Tokens of a tile, and panels of one for so many tokens: two blocks of many tokens take less than three of few.
struct Blocks {
    static constexpr int block(int panels) { return panels > 2 ? BLOCK : TALL; }
    static int64_t widest(int64_t tokens) { return tokens > BLOCK && tokens <= 2 * TALL ? 2 : PANELS; }
};

struct Float32 : Blocks {
    static constexpr bool READS = true;  // rather than computes, for one token
    static constexpr int UNIT = 1;     // neighbouring inputs in a vector
    static constexpr int VECTORS = 1;  // of a panel that go together
    static constexpr int INPUT_BYTES = 4;  // that are multiplied with them
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) * 4; }
    static void convert(const float *from, int64_t inputs, char *to) {
        for (int64_t i = 0; i < inputs; i += LANES) store(reinterpret_cast<float *>(to) + i, load(from + i));
    }

    template <int P, int T, class Ahead>
    static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        Registers<P, T> kept(sums);
        for (int64_t i = 0; i < vectors; ++i) {
            ahead.ask(i);
            for (int p = 0; p < P; ++p)
                for (int part = 0; part < PARTS; ++part) {
                    const Part weights = reinterpret_cast<const Part *>(panels + p * panel + i * VECTOR)[part];
#pragma GCC unroll 9
                    for (int t = 0; t < T; ++t) kept.parts[part][p][t] += weights * reinterpret_cast<const float *>(x + t * stride)[i];
                }
        }
        kept.put_back(sums);
    }
};

struct Bfloat16 : Blocks {
    static constexpr int UNIT = 2, VECTORS = 1;
#ifdef HD_BF16
    static constexpr bool READS = true;
    static constexpr int INPUT_BYTES = 4;
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) * 2; }
    static void convert(const float *from, int64_t inputs, char *to) {
        for (int64_t i = 0; i < inputs; i += LANES)
            *reinterpret_cast<LooseHalves *>(to + 2 * i) = narrowed(load(from + i));
    }

    template <int P, int T, class Ahead>
    static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        for (int64_t i = 0; i < vectors; ++i) {
            __m512bh weights[P];
            ahead.ask(i);
            for (int p = 0; p < P; ++p) {
                weights[p] = (__m512bh)_mm512_load_si512(panels + p * panel + i * VECTOR);
            }
#pragma GCC unroll 9
            for (int t = 0; t < T; ++t) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(reinterpret_cast<const Alias32 *>(x + t * stride)[i]);
                for (int p = 0; p < P; ++p) sums[p][t] = (Floats)_mm512_dpbf16_ps((__m512)sums[p][t], weights[p], pair);
            }
        }
    }
#else
    static constexpr bool READS = false;
    static constexpr int INPUT_BYTES = 8;
    static int64_t row_bytes(int64_t inputs) { return Float32::row_bytes(inputs); }
    static void convert(const float *from, int64_t inputs, char *to) { Float32::convert(from, inputs, to); }

    template <int P, int T, class Ahead>
    static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        Registers<P, T> kept(sums);
        for (int64_t i = 0; i < vectors; ++i) {
            ahead.ask(i);
            for (int p = 0; p < P; ++p)
                for (int part = 0; part < PARTS; ++part) {
                    const PartWords pairs = reinterpret_cast<const PartWords *>(panels + p * panel + i * VECTOR)[part];
                    const Part first = (Part)(pairs << 16), second = (Part)(pairs & 0xffff0000u);
                    for (int t = 0; t < T; ++t) {
                        const float *input = reinterpret_cast<const float *>(x + t * stride) + 2 * i;
                        kept.parts[part][p][t] += first * input[0];
                        kept.parts[part][p][t] += second * input[1];
                    }
                }
        }
        kept.put_back(sums);
    }
#endif
};

#ifdef HD_BF16
// Weights as bytes offset by 128, inputs as signed halves: what the offset adds is known once the inputs are. Sums of a
// group are exact.
struct Int8 {
    struct Inputs {
        int16_t values[GROUP];  // of four neighbours 0, 2, 1, 3: even and odd bytes of weights are taken in turn
        float scale;
        int32_t offset;  // -128 times their sum
    };
    static constexpr bool READS = true;
    static constexpr int VECTORS = GROUP_VECTORS, INPUT_BYTES = sizeof(Inputs);
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) / GROUP * INPUT_BYTES; }
    static constexpr int block(int panels) { return panels > 2 ? 3 : 6; }
    static int64_t widest(int64_t tokens) { return tokens > 3 ? 2 : PANELS; }

    static void convert(const float *from, int64_t inputs, char *to) {
        Inputs *groups = reinterpret_cast<Inputs *>(to);
        for (int64_t i = 0; i < inputs; i += GROUP, ++groups) {
            Floats x[4], most = splat(0);
            for (int part = 0; part < 4; ++part) {
                x[part] = load(from + i + part * LANES);
                const Floats size = x[part] < 0.0f ? -x[part] : x[part];
                most = size > most || size != size ? size : most;  // what is no number stays none
            }
            const float scale = (float)_mm512_reduce_max_ps((__m512)most) / 32767.0f;
            const Floats inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
            __m512i sum = _mm512_setzero_si512();
            bool sound = true;
            for (int part = 0; part < 4; ++part) {
                const __m512i values = _mm512_cvtps_epi32((__m512)(x[part] * inverse));
                sum = _mm512_add_epi32(sum, values);
                const __m256i halves = _mm512_cvtsepi32_epi16(values);
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(groups->values + part * LANES),
                                    _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(halves, 0xd8), 0xd8));
                sound &= _mm512_cmp_ps_mask((__m512)x[part], (__m512)x[part], _CMP_UNORD_Q) == 0;
            }
            groups->scale = sound ? scale : __builtin_nanf("");
            groups->offset = -128 * _mm512_reduce_add_epi32(sum);
        }
    }

    template <int P, int T, class Ahead>
    static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        for (int64_t group = 0; group < vectors / GROUP_VECTORS; ++group) {
            const char *weights = panels + group * GROUP_BYTES;
            const Inputs *inputs_of[T];
            __m512i counts[P][T];
            for (int t = 0; t < T; ++t) {
                inputs_of[t] = reinterpret_cast<const Inputs *>(x + t * stride) + group;
                for (int p = 0; p < P; ++p) counts[p][t] = _mm512_set1_epi32(inputs_of[t]->offset);
            }
#pragma GCC unroll 4
            for (int i = 0; i < GROUP / 4; ++i) {
                __m512i bytes[P];
                ahead.ask(group * GROUP_VECTORS + i);
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
#endif

template <class Format>
inline void put(char *panels, int64_t panel, int64_t output, int64_t input, float x) {
    char *to = panels + place_in_panels(Format::UNIT, panel, output, input);
    if constexpr (Format::UNIT == 2) {
        const uint16_t half = narrowed(x);
        __builtin_memcpy(to, &half, 2);
    } else {
        __builtin_memcpy(to, &x, 4);
    }
}

template <class Format>
inline float get(const char *panels, int64_t panel, int64_t output, int64_t input) {
    const char *from = panels + place_in_panels(Format::UNIT, panel, output, input);
    if constexpr (Format::UNIT == 2) {
        uint16_t half;
        __builtin_memcpy(&half, from, 2);
        return widened(half);
    } else {
        float x;
        __builtin_memcpy(&x, from, 4);
        return x;
    }
}
