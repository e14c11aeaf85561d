// States of a target's layers: recorded as it computes them, and read by a draft.
struct States : Attention {
    using Attention::Attention;

    // Of a token at that position of a slot, and all before it, whether they are no guesses.
    static bool is_committed(const hd_states &states, int64_t slot, int64_t position) {
        return slot >= states.slots - 1 || position < states.committed[slot];
    }

    uint16_t *states_of(const hd_states &states, int64_t slot, int64_t position) const {
        return states.values + (slot * states.max_length + position) * states.count * states.size;
    }

    // The draft's own state of a token of the slot that token `t` is in.
    float *own(int64_t t, int64_t position) const {
        return model.own + (batch.slots[t] * HD_OWN + position % HD_OWN) * model.hidden;
    }

    float scale_of(const float *x, float epsilon) const {
        float squares = 0;
        for (int64_t i = 0; i < model.hidden; ++i) squares += x[i] * x[i];
        return 1.0f / __builtin_sqrtf(squares / float(model.hidden) + epsilon);
    }

    void normalise(const float *x, const float *norm, float *to) const {
        const float scale = scale_of(x, model.epsilon);
        for (int64_t i = 0; i < model.hidden; ++i) to[i] = x[i] * scale * norm[i];
    }

    void record(const hd_states &states, int64_t behind) {
        int64_t which = 0;
        while (which < states.count && states.layers[which] != behind) ++which;
        if (which == states.count) return;
        const Share share(batch.count, thread, team.size);
        for (int64_t t = share.from; t < share.to; ++t) {
            const float *x = scratch.hidden + t * widths.hidden, scale = scale_of(x, HD_UNIT_EPSILON);
            uint16_t *to = states_of(states, batch.slots[t], batch.keys[t]) + which * states.size;
            int64_t i = 0;
            for (; i + LANES <= model.hidden; i += LANES) *reinterpret_cast<LooseHalves *>(to + i) = narrowed(load(x + i) * scale);
            for (; i < model.hidden; ++i) to[i] = narrowed(x[i] * scale);
        }
    }

    // What the target made of the token before token `t`; zeros before the first, and where it has not read that.
    void take_states(const hd_states &states, int64_t t) {
        float *to = scratch.fed + t * widths.fed;
        const int64_t position = batch.positions[t], size = int64_t(states.count) * states.size;
        const bool is_known = position && is_committed(states, batch.slots[t], position);
        const uint16_t *from = is_known ? states_of(states, batch.slots[t], position - 1) : nullptr;
        int64_t i = 0;
        for (; from && i + LANES <= size; i += LANES) store(to + i, widened(Halves(*reinterpret_cast<const LooseHalves *>(from + i))));
        for (; i < widths.fed; ++i) to[i] = from && i < size ? widened(from[i]) : 0;
    }

    // What guesses behind the committed tokens will go by.
    void keep_own(const hd_states &states) {
        const Share share(batch.count, thread, team.size);
        for (int64_t t = share.from; t < share.to; ++t)
            if (!is_committed(states, batch.slots[t], batch.positions[t] + 1))
                __builtin_memcpy(own(t, batch.positions[t]), scratch.hidden + t * widths.hidden, 4 * model.hidden);
    }
};
