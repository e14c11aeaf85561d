// Products by AMX: a tile register holds 16 rows of 64 bytes, and what a panel has of 32 inputs, or a group of 64 in
// 8 bits, is one as it lies. A product of 16 tokens takes no longer than one of a single token, so rows of no token are
// multiplied with the others, and each output is the same chain of sums whatever is computed beside it.
constexpr int ROWS = 16;

namespace tiles {
struct alignas(VECTOR) Shapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS};
};

// For the time of a forward: what tile registers hold makes changing threads dearer.
struct InUse {
    InUse() {
        const Shapes shapes;
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~InUse() { asm volatile("tilerelease"); }
};

// By number, not by the compiler's intrinsics: those take literals alone.
template <int TILE>
inline void clear() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
template <int TILE>
inline void read(const void *from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(TILE), "r"(from), "r"(stride) : "memory");
}
template <int TILE>
inline void write(void *to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(TILE), "r"(to), "r"(stride) : "memory");
}
template <int SUMS, int INPUTS, int WEIGHTS>
inline void add_bfloat16() { asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(INPUTS), "i"(WEIGHTS)); }
template <int SUMS, int INPUTS, int WEIGHTS>
inline void add_bytes() { asm volatile("tdpbuud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(INPUTS), "i"(WEIGHTS)); }
template <int SUMS, int INPUTS, int WEIGHTS>
inline void add_signed_bytes() { asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(INPUTS), "i"(WEIGHTS)); }
}  // namespace tiles

template <int LEVEL = 3>
inline void ask(const char *lines, int from, int to) {
    for (int line = from; line < to; ++line) __builtin_prefetch(lines + line * VECTOR, 0, LEVEL);
}

// `step<I>()` for I from 0 to COUNT - 1.
template <int COUNT, int I = 0, class Step>
inline void each(const Step &step) {
    if constexpr (I < COUNT) {
        step.template operator()<I>();
        each<COUNT, I + 1>(step);
    }
}

struct Bfloat16 {
    static constexpr bool IS_MATRIX = true;
    static constexpr int UNIT = 2, VECTORS = ROWS, INPUT_BYTES = VECTOR;
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) * 2; }
    static void convert(const float *from, int64_t inputs, char *to) {
        for (int64_t i = 0; i < inputs; i += LANES)
            *reinterpret_cast<LooseHalves *>(to + 2 * i) = narrowed(load(from + i));
    }

    template <class Product, class Use>
    static void multiply(const Product &product, int64_t from, int64_t to, const Use &use) {
        const bool is_tall = product.tokens > ROWS;
        while (from < to) {
            const int64_t left = to - from;
            if (left >= 4 && !is_tall) {
                group<4, 1>(product, from, to, use);
                from += 4;
            } else if (left >= 2) {
                is_tall ? group<2, 2>(product, from, to, use) : group<2, 1>(product, from, to, use);
                from += 2;
            } else {
                is_tall ? group<1, 2>(product, from, to, use) : group<1, 1>(product, from, to, use);
                from += 1;
            }
        }
    }

    // One more step of one token's sums with a panel.
    static void add(const char *vectors, const char *inputs, Floats &sums) {
        tiles::read<0>(&sums, 0);
        tiles::read<4>(inputs, 0);
        tiles::read<6>(vectors, VECTOR);
        tiles::add_bfloat16<0, 4, 6>();
        tiles::write<0>(&sums, 0);
    }

  private:
    // P panels with BLOCKS times 16 tokens, block by block. What is read once is asked for just before; of what stays in
    // the cache for several blocks, each asks for its part of the next panels.
    template <int P, int BLOCKS, class Product, class Use>
    static void group(const Product &product, int64_t at, int64_t to, const Use &use) {
        const int64_t blocks = (product.tokens + BLOCKS * ROWS - 1) / (BLOCKS * ROWS);
        const char *const panels = product.panels + at * product.panel, *const next = at + P < to ? panels + P * product.panel : product.after;
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t token = block * BLOCKS * ROWS;
            const int from = int(VECTORS * block / blocks), until = int(VECTORS * (block + 1) / blocks);
            each<P * BLOCKS>([]<int tile>() { tiles::clear<tile>(); });
            const char *inputs = product.inputs + token * product.stride;
            for (int64_t i = 0; i < product.vectors; i += VECTORS, inputs += INPUT_BYTES) {
                each<BLOCKS>([&]<int b>() { tiles::read<4 + b>(inputs + b * ROWS * product.stride, product.stride); });
                each<P>([&]<int p>() {
                    const char *const weights = panels + p * product.panel + i * VECTOR;
                    if (blocks > 1) {
                        ask<2>(next + p * product.panel + i * VECTOR, from, until);
                    } else {
                        const int64_t left = product.vectors - NEAR - i;  // of this panel
                        const int here = int(left < 0 ? 0 : left < VECTORS ? left : VECTORS);
                        ask(weights + NEAR * VECTOR, 0, here);
                        ask(next + p * product.panel - left * VECTOR, here, VECTORS);
                    }
                    tiles::read<6 + p % 2>(weights, VECTOR);
                    each<BLOCKS>([]<int b>() { tiles::add_bfloat16<p * BLOCKS + b, 4 + b, 6 + p % 2>(); });
                });
            }
            Floats sums[P * BLOCKS][ROWS];
            each<P * BLOCKS>([&]<int tile>() { tiles::write<tile>(sums[tile], VECTOR); });
            for (int64_t t = 0; t < BLOCKS * ROWS && token + t < product.tokens; ++t) {
                Floats of_token[P][1];
                for (int p = 0; p < P; ++p) of_token[p][0] = sums[p * BLOCKS + t / ROWS][t % ROWS];
                use(at, token + t, of_token);
            }
        }
    }
};

// What `Int8` computes, to the bit, as sums of a group are exact: inputs' low and high bytes are multiplied apart.
constexpr int64_t MOST_BY_VECTORS = 3;  // tokens, which take longer by matrices
struct Int8Matrix {
    struct alignas(VECTOR) Inputs {
        uint8_t low[GROUP];
        int8_t high[GROUP];
        float scale;
        int32_t offset;
    };
    static constexpr bool IS_MATRIX = true;
    static int64_t row_bytes(int64_t inputs) { return rounded(inputs, GROUP) / GROUP * sizeof(Inputs); }

    static void convert(const float *from, int64_t inputs, char *to) {
        Inputs *groups = reinterpret_cast<Inputs *>(to);
        for (int64_t i = 0; i < inputs; i += GROUP, ++groups) {
            const Rounded group(from + i);
            for (int part = 0; part < 4; ++part) {
                const __m256i values = group.values[part];
                *reinterpret_cast<__m128i *>(groups->low + part * LANES) = _mm256_cvtepi16_epi8(values);
                *reinterpret_cast<__m128i *>(groups->high + part * LANES) = _mm256_cvtepi16_epi8(_mm256_srai_epi16(values, 8));
            }
            groups->scale = group.scale, groups->offset = group.offset;
        }
    }

    template <class Product, class Use>
    static void multiply(const Product &product, int64_t from, int64_t to, const Use &use) {
        for (; from + 2 <= to; from += 2) group<2>(product, from, use);
        if (from < to) group<1>(product, from, use);
    }

  private:
    template <int P, class Product, class Use>
    static void group(const Product &product, int64_t at, const Use &use) {
        for (int64_t token = 0; token < product.tokens; token += ROWS) {
            const int64_t count = product.tokens - token < ROWS ? product.tokens - token : ROWS;
            const char *weights = product.panels + at * product.panel, *inputs = product.inputs + token * product.stride;
            Floats sums[ROWS][P][1] = {};
            for (int64_t i = 0; i < product.vectors; i += GROUP_VECTORS, weights += GROUP_BYTES, inputs += sizeof(Inputs)) {
                Ints low[P][ROWS], high[P][ROWS];
                tiles::read<4>(inputs + __builtin_offsetof(Inputs, low), product.stride);
                tiles::read<5>(inputs + __builtin_offsetof(Inputs, high), product.stride);
                each<P>([&]<int p>() {
                    ask(weights + p * product.panel + 2 * GROUP_BYTES, 0, GROUP_VECTORS);
                    tiles::clear<2 * p>();
                    tiles::clear<2 * p + 1>();
                    tiles::read<6 + p>(weights + p * product.panel, VECTOR);
                    tiles::add_bytes<2 * p, 4, 6 + p>();
                    tiles::add_signed_bytes<2 * p + 1, 5, 6 + p>();
                    tiles::write<2 * p>(low[p], VECTOR);
                    tiles::write<2 * p + 1>(high[p], VECTOR);
                });
                for (int p = 0; p < P; ++p) {
                    const Floats scale = *reinterpret_cast<const Floats *>(weights + p * product.panel + GROUP * LANES);
                    for (int64_t t = 0; t < count; ++t) {
                        const Inputs &of_token = *reinterpret_cast<const Inputs *>(inputs + t * product.stride);
                        const Ints counts = low[p][t] + (high[p][t] << 8) + of_token.offset;
                        sums[t][p][0] += __builtin_convertvector(counts, Floats) * (scale * of_token.scale);
                    }
                }
            }
            for (int64_t t = 0; t < count; ++t) use(at, token + t, sums[t]);
        }
    }
};
