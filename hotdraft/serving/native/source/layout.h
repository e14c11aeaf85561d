// Where things lie, the same on every machine: what one build packed another can read.
#pragma once
#include "native.h"

constexpr int LANES = 16;
constexpr int VECTOR = 64;  // bytes
constexpr int STEP = 32;    // inputs that an instruction multiplies with at most, of which panels have whole numbers
constexpr int GROUP = 64;   // inputs that share a scale
constexpr int GROUP_BYTES = GROUP * LANES + VECTOR, GROUP_VECTORS = GROUP_BYTES / VECTOR;

static inline int64_t rounded(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

static inline int64_t panel_bytes(hd_format format, int64_t inputs) {
    switch (format) {
        case HD_FLOAT32: return inputs * VECTOR;
        case HD_BFLOAT16: return rounded(inputs, STEP) / 2 * VECTOR;
        default: return rounded(inputs, GROUP) / GROUP * GROUP_BYTES;
    }
}

// Of what goes into a draft that reads states: those of a token, and then the token beside what came of them.
static inline int64_t fed_width(const hd_model &model) {
    if (!model.reads) return 0;
    const int64_t states = int64_t(model.reads->count) * model.reads->size, both = 2 * int64_t(model.hidden);
    return rounded(states > both ? states : both, GROUP);
}

// Where a weight lies in panels of 4 or of 2 bytes each, `unit` neighbouring inputs beside each other.
static inline int64_t place_in_panels(int64_t unit, int64_t panel, int64_t output, int64_t input) {
    const int64_t inside = output % LANES * unit + input % unit;
    return output / LANES * panel + input / unit * VECTOR + inside * (4 / unit);
}

// A slot holds, for each layer and key head, keys as panels of 16 positions and values as panels of 16 dimensions.
struct CacheLayout {
    int64_t key_panel, value_panel, head, layer, slot;

    explicit CacheLayout(const hd_model &model) {
        const hd_format format = model.half ? HD_BFLOAT16 : HD_FLOAT32;
        key_panel = panel_bytes(format, model.head_dim);
        value_panel = panel_bytes(format, model.max_length);
        head = key_panel * (rounded(model.max_length, LANES) / LANES) +
               value_panel * (rounded(model.head_dim, LANES) / LANES);
        layer = head * model.kv_heads;
        slot = layer * model.layers;
    }
    int64_t values(int64_t max_length) const { return key_panel * (rounded(max_length, LANES) / LANES); }
};
