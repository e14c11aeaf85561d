// A forward as one thread of the team runs it: every phase on its share, a barrier after each.

// What a linear layer reads.
struct Rows {
    const float *data;  // [..][width]
    int64_t width, count;
    const int32_t *which;  // [count], or null for the first ones
    const float *norm;     // [width] to be normalised with, or null
};

// The rows in the form that the layer's weights want.
template <class Format>
inline void prepare(const Rows &rows, int64_t inputs, float epsilon, char *to, float *row) {
    const int64_t stride = Format::row_bytes(rows.width);
    for (int64_t t = 0; t < rows.count; ++t) {
        const float *x = rows.data + (rows.which ? rows.which[t] : t) * rows.width;
        if (rows.norm) {
            Floats squares = splat(0);
            for (int64_t i = 0; i < rows.width; i += LANES) squares += load(x + i) * load(x + i);
            const float scale = 1.0f / __builtin_sqrtf(total(squares) / float(inputs) + epsilon);
            for (int64_t i = 0; i < rows.width; i += LANES) store(row + i, load(x + i) * scale * load(rows.norm + i));
            x = row;
        }
        Format::convert(x, rows.width, to + t * stride);
    }
}

struct Forward : States {
    using States::States;

    // `use(output panel, token, products with bias)` for each panel of 16 outputs, or of each pair of them.
    template <class Use>
    void linear(int64_t index, const Rows &rows, const Use &use) {
        switch (model.linears[index]->format) {
            case HD_FLOAT32: return linear_as<Float32>(index, rows, use);
            case HD_BFLOAT16: return linear_as<Bfloat16>(index, rows, use);
#ifdef HD_BF16
            case HD_W8A16:
#ifdef HD_AMX
                if (rows.count > MOST_BY_VECTORS) return linear_as<Int8Matrix>(index, rows, use);
#endif
                return linear_as<Int8>(index, rows, use);
#endif
        }
    }

    template <class Format, class Use>
    void linear_as(int64_t index, const Rows &rows, const Use &use) {
        const hd_linear &layer = *model.linears[index];
        prepare<Format>(rows, layer.inputs, model.epsilon, inputs, row);
        const Share share = share_of(index);
        const int64_t panel = panel_bytes(hd_format(layer.format), layer.inputs);
        const char *panels = static_cast<const char *>(layer.panels);
        const Product<Format> product{panels, panel, panel / VECTOR, inputs, Format::row_bytes(rows.width), rows.count, first_of_next(index)};
        const float *bias = layer.bias;
        product.tiles(share.from, share.to, [&]<int P, int T>(int64_t at, int64_t token, Floats(&products)[P][T]) {
            if (bias)
                for (int p = 0; p < P; ++p)
                    for (int t = 0; t < T; ++t) products[p][t] += load(bias + (at + p) * LANES);
            use(at, token, products);
        });
    }

    // This thread's panels of a linear layer. Those of gate and up go in pairs.
    Share share_of(int64_t index) const {
        const int64_t unit = index % 4 == 2 ? 2 : 1;
        Share share(rounded(model.linears[index]->outputs, LANES * unit) / LANES / unit, thread, team.size);
        share.from *= unit, share.to *= unit;
        return share;
    }

    // What this thread reads after that layer: memory rests neither at a barrier nor during attention.
    const char *first_of_next(int64_t index) const {
        const int64_t next = index < 4 * model.layers ? index + 1 : 0;
        const hd_linear &layer = *model.linears[next];
        return static_cast<const char *>(layer.panels) + share_of(next).from * panel_bytes(hd_format(layer.format), layer.inputs);
    }

    void embed(int64_t token_id, float *to) {
        const int64_t begin = token_id * model.hidden;
        if (!model.embedding) {
            for (int64_t i = 0; i < model.hidden; ++i) to[i] = model.half ? taken<Bfloat16>(token_id, i) : taken<Float32>(token_id, i);
        } else if (model.half) {
            const uint16_t *from = static_cast<const uint16_t *>(model.embedding) + begin;
            for (int64_t i = 0; i < model.hidden; ++i) to[i] = widened(from[i]);
        } else {
            __builtin_memcpy(to, static_cast<const float *>(model.embedding) + begin, 4 * model.hidden);
        }
        for (int64_t i = model.hidden; i < widths.hidden; ++i) to[i] = 0;  // norms sum them, and 0 times no number is none
    }

    void embed() {
        const Share share(batch.count, thread, team.size);
        for (int64_t t = share.from; t < share.to; ++t) embed(batch.token_ids[t], scratch.hidden + t * widths.hidden);
        barrier(team);
    }

    // A weight of the head, which embedding and head have in common.
    template <class Format>
    float taken(int64_t output, int64_t input) const {
        const hd_linear &head = *model.linears[4 * model.layers];
        return get<Format>(static_cast<const char *>(head.panels), panel_bytes(hd_format(head.format), head.inputs), output, input);
    }

    auto storing(float *to, int64_t width) {
        return [=]<int P, int T>(int64_t at, int64_t token, Floats(&products)[P][T]) {
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) store(to + (token + t) * width + (at + p) * LANES, products[p][t]);
        };
    }

    auto adding_to(float *to, int64_t width) {
        return [=]<int P, int T>(int64_t at, int64_t token, Floats(&products)[P][T]) {
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) {
                    float *x = to + (token + t) * width + (at + p) * LANES;
                    store(x, load(x) + products[p][t]);
                }
        };
    }

    // Of gate and up, which take turns.
    auto activating(float *to, int64_t width) {
        return [=]<int P, int T>(int64_t at, int64_t token, Floats(&products)[P][T]) {
            if constexpr (P % 2 == 0)
                for (int p = 0; p < P; p += 2)
                    for (int t = 0; t < T; ++t)
                        store(to + (token + t) * width + (at + p) / 2 * LANES, silu(products[p][t]) * products[p + 1][t]);
        };
    }

    Rows rows(const float *data, int64_t width, const float *norm = nullptr) const { return {data, width, batch.count, nullptr, norm}; }

    // Each token's embedding beside the state of the token before it, which goes on through the layer.
    void feed(const hd_states &states) {
        const Share share(batch.count, thread, team.size);
        for (int64_t t = share.from; t < share.to; ++t) take_states(states, t);
        barrier(team);
        linear(4 * model.layers + 1, rows(scratch.fed, widths.fed), storing(scratch.hidden, widths.hidden));
        barrier(team);
        for (int64_t t = share.from; t < share.to; ++t) {
            float *state = scratch.hidden + t * widths.hidden, *fed = scratch.fed + t * widths.fed;
            const int64_t position = batch.positions[t];
            if (position && !is_committed(states, batch.slots[t], position)) __builtin_memcpy(state, own(t, position - 1), 4 * model.hidden);
            embed(batch.token_ids[t], row);
            normalise(row, model.norms, fed);
            normalise(state, model.state_norm, fed + model.hidden);
            for (int64_t i = 2 * model.hidden; i < widths.fed; ++i) fed[i] = 0;
        }
        barrier(team);
    }

    void layer(int64_t index) {
        const float *norms = model.norms + 2 * index * widths.hidden;
        linear(4 * index, model.reads ? rows(scratch.fed, widths.fed) : rows(scratch.hidden, widths.hidden, norms), storing(scratch.qkv, widths.qkv));
        barrier(team);
        if (model.half) {
            remember<Bfloat16>(index);
            attention<Bfloat16>(index);
        } else {
            remember<Float32>(index);
            attention<Float32>(index);
        }
        linear(4 * index + 1, rows(scratch.attended, widths.attended), adding_to(scratch.hidden, widths.hidden));
        barrier(team);
        linear(4 * index + 2, rows(scratch.hidden, widths.hidden, norms + widths.hidden), activating(scratch.activated, widths.activated));
        barrier(team);
        linear(4 * index + 3, rows(scratch.activated, widths.activated), adding_to(scratch.hidden, widths.hidden));
        barrier(team);
        if (model.records) record(*model.records, index + 1);
    }

    void head() {
        const int64_t index = 4 * model.layers, outputs = model.linears[index]->outputs;
        const Rows last{scratch.hidden, widths.hidden, batch.num_outputs, batch.outputs, model.norms + 2 * model.layers * widths.hidden};
        linear(index, last, [&]<int P, int T>(int64_t at, int64_t token, Floats(&products)[P][T]) {
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) {
                    const int64_t first = (at + p) * LANES, left = outputs - first;
                    float *to = batch.logits + batch.places[token + t] * outputs + first;
                    if (left >= LANES) store(to, products[p][t]);
                    else store_some(to, products[p][t], left);
                }
        });
    }
};

void forward(const hd_model &model, const Batch &batch, const Scratch &scratch, Team &team, int32_t thread) {
#ifdef HD_AMX
    const tiles::InUse in_use;
#endif
    Forward forward(model, batch, scratch, team, thread);
    model.reads ? forward.feed(*model.reads) : forward.embed();
    for (int64_t index = 0; index < model.layers; ++index) forward.layer(index);
    if (model.reads) forward.keep_own(*model.reads);
    if (batch.num_outputs) forward.head();
}

// The first of the largest, and its chance; `sound` is left alone unless some logit is no number, or all are -inf.
int32_t likeliest(const float *logits, int32_t count, float *chance, bool *sound) {
    Floats most = splat(-INFINITE), sums = splat(0);
    int32_t at = 0;
    for (; at + LANES <= count; at += LANES) {
        const Floats x = load(logits + at);
        most = x > most || x != x ? x : most;
    }
    float best = largest(most);
    for (int lane = 0; lane < LANES; ++lane) best = most[lane] != most[lane] ? most[lane] : best;
    for (; at < count; ++at) best = logits[at] > best || logits[at] != logits[at] ? logits[at] : best;
    if (!(best - best == 0)) *sound = false;
    for (at = 0; at + LANES <= count; at += LANES) sums += exponential(load(logits + at) - best);
    float sum = total(sums);
    for (; at < count; ++at) sum += exponential(splat(logits[at] - best))[0];
    *chance = 1 / sum;
    for (at = 0; at < count; ++at)
        if (logits[at] == best) return at;
    return 0;
}

// Of four parts read side by side, as tiles read panels.
float sum(const char *data, int64_t bytes) {
    const int64_t part = bytes / 4 / VECTOR * VECTOR;
    Words sums[4] = {};
    for (int64_t i = 0; i < part; i += VECTOR)
        for (int p = 0; p < 4; ++p) {
            __builtin_prefetch(data + p * part + i + 16 * VECTOR);
            sums[p] += *reinterpret_cast<const Words *>(data + p * part + i);
        }
    const Words all = sums[0] + sums[1] + sums[2] + sums[3];
    return float(all[0] ^ all[7]);
}
