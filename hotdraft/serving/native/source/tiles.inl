// A tile: the products of P panels with T tokens. Whatever P and T are, each output is one chain of sums over the
// inputs in their order, so a token's outputs do not depend on what is computed beside them.

// Vectors of a panel that are read for all tokens before the next: they, and the next ones asked for, stay in the cache.
constexpr int64_t CHUNK = 384;
// The products of a linear layer's panels [from, to) with tokens' inputs.
template <class Format>
struct Product {
    const char *panels;
    int64_t panel;    // bytes from one to the next
    int64_t vectors;  // of each
    const char *inputs;
    int64_t stride;  // bytes from one token's inputs to the next's
    int64_t tokens;
    const char *after;  // what is read when these panels have been

    // Calls `use(first panel, first token, sums)` for each tile of the panels [from, to).
    template <class Use>
    void tiles(int64_t from, int64_t to, const Use &use) const {
        if constexpr (Format::IS_MATRIX) Format::multiply(*this, from, to, use);
        else groups(from, to, use);
    }

  private:
    template <class Use>
    void groups(int64_t from, int64_t to, const Use &use) const {
        const int64_t widest = Format::widest(tokens);
        while (from < to) {
            const int64_t left = to - from < widest ? to - from : widest;
            if (left >= 4) {
                group<4>(from, to, use);
                from += 4;
            } else if (left >= 2) {
                group<2>(from, to, use);
                from += 2;
            } else {
                group<1>(from, to, use);
                from += 1;
            }
        }
    }

    template <int P, class Use>
    void group(int64_t at, int64_t to, const Use &use) const {
        // in at least two blocks where one would wait for memory as it computes
        const int64_t most = Format::block(P), blocks = tokens > BLOCK && tokens <= most ? 2 : (tokens + most - 1) / most;
        const int64_t chunks = (vectors + CHUNK - 1) / CHUNK, units = vectors / Format::VECTORS;
        const char *const weights = panels + at * panel;
        Floats kept[MAX_TOKENS][P];
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t begin = units * chunk / chunks, end = units * (chunk + 1) / chunks;
            const bool is_last = chunk + 1 == chunks;
            const char *const next = !is_last ? weights + end * Format::VECTORS * VECTOR : at + P < to ? weights + P * panel : after;
            for (int64_t b = 0; b < blocks; ++b) {
                const int64_t token = tokens * b / blocks;
                const Step step{weights, begin, end, chunk > 0, is_last, next, ahead<P>(next, b, blocks)};
                tile_of<P, 1>(tokens * (b + 1) / blocks - token, step, at, token, kept, use);
            }
        }
    }

    // `tile<P, count>`, of T or more.
    template <int P, int T, class... Rest>
    void tile_of(int64_t count, Rest &&...rest) const {
        if (count == T) return tile<P, T>(rest...);
        if constexpr (T < Format::block(P)) tile_of<P, T + 1>(count, rest...);
    }

    struct Step {
        const char *weights;
        int64_t begin, end;
        bool goes_on, is_last;
        const char *next;
        Asking ahead;
    };

    // Each of several blocks asks for its part of what comes next.
    template <int P>
    Asking ahead(const char *next, int64_t block, int64_t blocks) const {
        if (blocks == 1) return {next, panel, 0};
        const int64_t first = P * block / blocks, last = P * (block + 1) / blocks;
        return {next + first * panel, panel, int(last - first)};
    }

    template <int P, int T, class Use>
    void tile(const Step &step, int64_t at, int64_t token, Floats (&kept)[MAX_TOKENS][P], const Use &use) const {
        Floats sums[P][T];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 9
            for (int t = 0; t < T; ++t) sums[p][t] = step.goes_on ? kept[token + t][p] : splat(0);
        const int64_t first = step.begin * Format::VECTORS, count = (step.end - step.begin) * Format::VECTORS;
        const char *const weights = step.weights + first * VECTOR, *const x = inputs + token * stride + step.begin * Format::INPUT_BYTES;
        const auto multiply = [&](const auto &ahead) { Format::template tile<P, T>(weights, panel, x, stride, count, ahead, sums); };
        if (step.ahead.count) multiply(step.ahead);
        else multiply(Near<P>{weights, step.next, panel, count});
        if (step.is_last) return use(at, token, sums);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 9
            for (int t = 0; t < T; ++t) kept[token + t][p] = sums[p][t];
    }
};
