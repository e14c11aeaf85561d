// The formats of weights: how inputs are brought to what they are multiplied with, and the innermost loops of a tile.

// Memory that is asked for while a tile is computed. `at` says where it lies for a vector of the panels, some vectors
// beyond which `ask` goes. Into the second level's cache: the first of most has few places, to wait in or to keep it.
struct Asking {
    const char *lines;
    int64_t stride;
    int count;  // of lines with each vector

    const char *at(int64_t vector) const { return lines + vector * VECTOR; }
    void ask(const char *from) const {
        for (int line = 0; line < count; ++line)
#if defined(HD_BF16) && !defined(HD_AMX)
            if (INTO_FIRST_CACHE) __builtin_prefetch(from + line * stride, 0, 0);
            else
#endif
                __builtin_prefetch(from + line * stride, 0, 2);
    }
};

// How many vectors before its turn one is asked for where a panel is read but once.
constexpr int64_t NEAR = 24;

// So many vectors further on in P panels of `count` vectors, and behind their end in those that are read `next`.
template <int P>
struct Near {
    const char *panels, *next;
    int64_t stride, count;

    const char *at(int64_t vector) const {
        const int64_t further = vector + NEAR;
        return further < count ? panels + further * VECTOR : next + (further - count) * VECTOR;
    }
    void ask(const char *from) const { Asking{from, stride, P}.ask(from); }
};

// Sums of a tile in vectors of the machine's own width: the compiler keeps those in registers, wider ones in memory, as
// it does those of a tile that it leaves a function of its own.
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
    static constexpr bool IS_MATRIX = false;
    static constexpr int block(int panels) { return panels > 2 ? BLOCK : TALL; }
    static int64_t widest(int64_t tokens) { return tokens > BLOCK && tokens <= 2 * TALL ? 2 : PANELS; }
};

template <class Format>
constexpr int64_t inputs_of_step = Format::UNIT * Format::VECTORS;

// One more step of one token's sums with a panel.
template <class Format>
inline void add_step(const char *vectors, const char *inputs, Floats &sums) {
    if constexpr (Format::IS_MATRIX) return Format::add(vectors, inputs, sums);
    else return Format::template tile<1, 1>(vectors, VECTOR, inputs, 0, 1, Asking{}, reinterpret_cast<Floats(&)[1][1]>(sums));
}

struct Float32 : Blocks {
    static constexpr int UNIT = 1;     // neighbouring inputs in a vector
    static constexpr int VECTORS = 1;  // of a panel that go together
    static constexpr int INPUT_BYTES = 4;  // that are multiplied with them
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) * 4; }
    static void convert(const float *from, int64_t inputs, char *to) {
        for (int64_t i = 0; i < inputs; i += LANES) store(reinterpret_cast<float *>(to) + i, load(from + i));
    }

    template <int P, int T, class Ahead>
    [[gnu::always_inline]] static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        Registers<P, T> kept(sums);
        for (int64_t i = 0; i < vectors; ++i) {
            ahead.ask(ahead.at(i));
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

#ifndef HD_AMX
struct Bfloat16 : Blocks {
    static constexpr int UNIT = 2, VECTORS = 1;
#ifdef HD_BF16
    static constexpr int INPUT_BYTES = 4;
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) * 2; }
    static void convert(const float *from, int64_t inputs, char *to) {
        for (int64_t i = 0; i < inputs; i += LANES)
            *reinterpret_cast<LooseHalves *>(to + 2 * i) = narrowed(load(from + i));
    }

    template <int P, int T, class Ahead>
    [[gnu::always_inline]] static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        Registers<P, T> kept(sums);
        auto &products = kept.parts[0];
        for (int64_t i = 0; i < vectors; ++i) {
            __m512bh weights[P];
            ahead.ask(ahead.at(i));
            for (int p = 0; p < P; ++p) weights[p] = (__m512bh)_mm512_load_si512(panels + p * panel + i * VECTOR);
#pragma GCC unroll 9
            for (int t = 0; t < T; ++t) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(reinterpret_cast<const Alias32 *>(x + t * stride)[i]);
                for (int p = 0; p < P; ++p) products[p][t] = (Part)_mm512_dpbf16_ps((__m512)products[p][t], weights[p], pair);
            }
        }
        kept.put_back(sums);
    }
#else
    static constexpr int INPUT_BYTES = 8;
    static int64_t row_bytes(int64_t inputs) { return Float32::row_bytes(inputs); }
    static void convert(const float *from, int64_t inputs, char *to) { Float32::convert(from, inputs, to); }

    template <int P, int T, class Ahead>
    [[gnu::always_inline]] static void tile(const char *panels, int64_t panel, const char *x, int64_t stride, int64_t vectors, const Ahead &ahead, Floats (&sums)[P][T]) {
        Registers<P, T> kept(sums);
        for (int64_t i = 0; i < vectors; ++i) {
            ahead.ask(ahead.at(i));
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
