// One forward as every thread of a team runs it, compiled once for each instruction set.
#pragma once
#include "native.h"
#include "team.h"

struct Batch {
    int32_t count;               // tokens
    const int64_t *token_ids;    // of each token
    const int64_t *positions;
    const int64_t *keys;         // where its key and value go; it sees those before its position, and its own
    const int32_t *slots;
    int32_t num_outputs;         // tokens whose logits are wanted
    const int32_t *outputs;      // which
    const int32_t *places;       // of each output among the logits
    float *logits;               // [..][outputs of the head]
};

// Buffers of a forward of up to `MAX_TOKENS`; zero where nothing was written.
constexpr int MAX_TOKENS = 128;
struct Scratch {
    float *hidden, *qkv, *attended, *activated, *fed;  // [MAX_TOKENS][width], widths rounded up to 64
    char **own;                                  // of each thread: `own_bytes`
};

struct Instructions {
    const char *name;
    bool int8;
    void (*forward)(const hd_model &model, const Batch &batch, const Scratch &scratch, Team &team, int32_t thread);
    int64_t (*own_bytes)(const hd_model &model);
    int32_t (*likeliest)(const float *logits, int32_t count, float *chance, bool *sound);
    float (*sum)(const char *data, int64_t bytes);
};

extern const Instructions AMX, AVX512_BF16, AVX512, AVX2;

// Whether weights are asked for straight into the first level's cache: a Zen 5 has them sooner so, a Zen 4 later.
extern const bool INTO_FIRST_CACHE;
