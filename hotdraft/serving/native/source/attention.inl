// Attention over a slot's keys and values, which lie as weights do.
struct Attention : Worker {
    using Worker::Worker;

    void head_norm(float *x, const float *norm) {
        float squares = 0;
        for (int d = 0; d < model.head_dim; ++d) squares += x[d] * x[d];
        const float scale = 1.0f / __builtin_sqrtf(squares / float(model.head_dim) + model.head_epsilon);
        for (int d = 0; d < model.head_dim; ++d) x[d] = x[d] * scale * norm[d];
    }

    void rotate(float *x, int64_t position) {
        const float *cos = model.cos + position * model.head_dim, *sin = model.sin + position * model.head_dim;
        const int half = model.head_dim / 2;
        for (int d = 0; d < half; ++d) {
            const float first = x[d], second = x[d + half];
            x[d] = first * cos[d] + second * sin[d];
            x[d + half] = second * cos[d + half] + first * sin[d + half];
        }
    }

    char *cache(int64_t layer, int64_t slot, int64_t key_head) {
        const CacheLayout layout(model);
        return static_cast<char *>(model.keys_values) + slot * layout.slot + layer * layout.layer + key_head * layout.head;
    }

    // Rotates queries and keys, and writes keys and values to their slots.
    template <class Format>
    void remember(int64_t layer) {
        const CacheLayout layout(model);
        const int64_t all = model.heads + 2 * model.kv_heads, dims = model.head_dim;
        const Share share(all * batch.count, thread, team.size);
        for (int64_t item = share.from; item < share.to; ++item) {
            const int64_t head = item / batch.count, t = item % batch.count, key = batch.keys[t];
            float *x = scratch.qkv + t * widths.qkv + head * dims;
            const bool is_query = head < model.heads, is_value = head >= model.heads + model.kv_heads;
            if (!is_value) {
                if (model.head_norms) head_norm(x, model.head_norms + (2 * layer + !is_query) * dims);
                rotate(x, batch.positions[t]);
                if (is_query) continue;
            }
            char *panels = cache(layer, batch.slots[t], (head - model.heads) % model.kv_heads);
            if (is_value) {
                panels += layout.values(model.max_length);
                for (int64_t d = 0; d < dims; ++d) put<Format>(panels, layout.value_panel, d, key, x[d]);
            } else {
                for (int64_t d = 0; d < dims; ++d) put<Format>(panels, layout.key_panel, key, d, x[d]);
            }
        }
        barrier(team);
    }

    // Some queries of one slot's tokens, from `from` on, by the heads that share a key head: token by token, head by head.
    struct Queries {
        int64_t key_head, from, first, count;
    };

    template <class Format>
    void attend(int64_t layer, const Queries &asked) {
        const CacheLayout layout(model);
        const int64_t dims = model.head_dim, padded = rounded(dims, GROUP), keys = keys_of(model);
        const int64_t query_stride = Format::row_bytes(padded), probs_stride = Format::row_bytes(keys);
        const int64_t heads = model.heads / model.kv_heads;
        const auto token = [&](int64_t query) { return asked.from + (asked.first + query) / heads; };
        const auto head = [&](int64_t query) { return asked.key_head * heads + (asked.first + query) % heads; };
        const char *const panels = cache(layer, batch.slots[asked.from], asked.key_head);
        const char *const values = panels + layout.values(model.max_length);
        const auto end = [&](int64_t query) { return batch.positions[token(query)]; };
        const auto key = [&](int64_t query) { return batch.keys[token(query)]; };
        int64_t last = 0;
        for (int64_t q = 0; q < asked.count; ++q) {
            const float *x = scratch.qkv + token(q) * widths.qkv + head(q) * dims;
            for (int64_t d = 0; d < padded; ++d) row[d] = d < dims ? x[d] : 0;
            Format::convert(row, padded, queries + q * query_stride);
            last = key(q) > last ? key(q) : last;
        }
        const Product<Format> with_keys{panels, layout.key_panel, layout.key_panel / VECTOR, queries, query_stride, asked.count, values};
        with_keys.tiles(0, last / LANES + 1, [&]<int P, int T>(int64_t at, int64_t query, Floats(&products)[P][T]) {
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) store(scores + (query + t) * keys + (at + p) * LANES, products[p][t] * model.scaling);
        });
        const int64_t seen = rounded(last + 1, STEP);
        for (int64_t q = 0; q < asked.count; ++q) {
            float *const score = scores + q * keys;
            score[end(q)] = score[key(q)];
            sums[q] = weigh(score, end(q), seen);
            Format::convert(score, seen, probs + q * probs_stride);
            if (key(q) != end(q)) set_aside<Format>(q, end(q), probs + q * probs_stride);
        }
        const Product<Format> with_values{values, layout.value_panel, (last / inputs_of_step<Format> + 1) * Format::VECTORS, probs, probs_stride, asked.count, panels};
        with_values.tiles(0, rounded(dims, LANES) / LANES, [&]<int P, int T>(int64_t at, int64_t query, Floats(&products)[P][T]) {
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) {
                    const int64_t d = (at + p) * LANES, q = query + t;
                    if (key(q) != end(q)) add_last<Format>(values + (at + p) * layout.value_panel, q, end(q), key(q), products[p][t]);
                    float *to = scratch.attended + token(q) * widths.attended + head(q) * dims + d;
                    store_some(to, products[p][t] / sums[q], dims - d < LANES ? dims - d : LANES);
                }
        });
    }

    // Of a token whose value lies elsewhere than at its position, the weights of the step in which that is.
    template <class Format>
    void set_aside(int64_t query, int64_t position, char *weights) {
        char *const from = weights + position / inputs_of_step<Format> * Format::INPUT_BYTES;
        __builtin_memcpy(lasts + query * LAST_BYTES, from, Format::INPUT_BYTES);
        __builtin_memset(from, 0, Format::INPUT_BYTES);
    }

    // What was set aside, with the value as if it were at its position: added last, as that is, so that what comes out
    // is the same to the last bit.
    template <class Format>
    void add_last(const char *panel, int64_t query, int64_t position, int64_t key, Floats &products) {
        alignas(VECTOR) char vectors[Format::VECTORS * VECTOR];
        __builtin_memcpy(vectors, panel + position / inputs_of_step<Format> * sizeof vectors, sizeof vectors);
        for (int64_t d = 0; d < LANES; ++d) put<Format>(vectors, VECTOR, d, position % inputs_of_step<Format>, get<Format>(panel, 0, d, key));
        add_step<Format>(vectors, lasts + query * LAST_BYTES, products);
    }

    // Scores of the keys up to `position` become weights, whose sum is returned; those before `seen` become 0.
    static float weigh(float *score, int64_t position, int64_t seen) {
        Floats most = splat(-INFINITE), sum = splat(0);
        for (int64_t key = 0; key <= position; key += LANES) {
            const Floats x = LANE <= int32_t(position - key) ? load(score + key) : splat(-INFINITE);
            most = x > most || x != x ? x : most;
            store(score + key, x);
        }
        const float shift = largest(most);
        int64_t key = 0;
        for (; key <= position; key += LANES) {
            const Floats weight = exponential(load(score + key) - shift);
            sum += weight;
            store(score + key, weight);
        }
        for (; key < seen; key += LANES) store(score + key, splat(0));
        return total(sum);
    }

    template <class Format>
    void attention(int64_t layer) {
        int64_t items = 0, item = 0;
        for (int64_t from = 0; from < batch.count; from = slot_end(from)) items += blocks_of(queries_of(from)) * model.kv_heads;
        const Share share(items, thread, team.size);
        for (int64_t from = 0; from < batch.count; from = slot_end(from)) {
            const int64_t queries = queries_of(from), blocks = blocks_of(queries);
            for (int64_t key_head = 0; key_head < model.kv_heads; ++key_head)
                for (int64_t block = 0; block < blocks; ++block, ++item) {
                    if (item < share.from || item >= share.to) continue;
                    const Share part(queries, int32_t(block), int32_t(blocks));
                    attend<Format>(layer, {key_head, from, part.from, part.to - part.from});
                }
        }
        barrier(team);
    }

    // Where the tokens of another slot begin.
    int64_t slot_end(int64_t from) const {
        int64_t end = from + 1;
        while (end < batch.count && batch.slots[end] == batch.slots[from]) ++end;
        return end;
    }

    int64_t queries_of(int64_t from) const { return (slot_end(from) - from) * (model.heads / model.kv_heads); }
    static int64_t blocks_of(int64_t queries) { return (queries + QUERIES - 1) / QUERIES; }
};
