// What crosses the border to Python, by ctypes: plain structures, no library's ABI.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// How a linear layer's weights lie in memory. All formats go by panels of 16 outputs: the weights of one input (or of
// two or four neighbouring ones) to 16 outputs are the 64 bytes of a vector register.
enum hd_format : int32_t {
    HD_FLOAT32 = 0,   // [inputs][16]
    HD_BFLOAT16 = 1,  // [inputs/2][16][2]
    HD_W8A16 = 2,     // by groups of 64 inputs: [16][16][4] bytes, then 16 float32 scales; inputs of 16 bits
};

struct hd_linear {
    int32_t format, inputs, outputs, reserved;
    const void *panels;
    const float *bias;  // [outputs rounded up to 32], or null
};

// What a target's layers make of the tokens in its slots, for a draft that is given it.
struct hd_states {
    int32_t count, size, max_length, slots;  // states of a token, and numbers of each; the last slot is a probe's
    const int32_t *layers;                   // [count]: behind so many of the target's layers, ascending
    uint16_t *values;                        // [slots][max_length][count][size], bfloat16 of mean square 1
    const int64_t *committed;                // [slots - 1]: tokens of each slot that are no guesses
};

constexpr float HD_UNIT_EPSILON = 1e-6f;  // added to the mean square that a state is divided by the root of
constexpr int HD_OWN = 2;  // a draft's own states that are kept of a slot: each guess goes by the one before it

struct hd_model {
    int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, max_length, half;
    float epsilon, head_epsilon, scaling, reserved;
    const float *norms;       // [layers][2][hidden rounded up to 64], then the last one's
    const float *head_norms;  // [layers][2][head_dim] of queries and keys, or null
    const float *cos, *sin;   // [max_length][head_dim], sin negated in the first half
    const void *embedding;    // [vocabulary][hidden], bfloat16 where `half`, float32 otherwise; null: the head's weights
    const hd_linear *const *linears;  // [layers][4]: queries-keys-values, output, gate-up by turns of 16, down; the head;
                                      // of a model that reads states what these go through
    void *keys_values;        // hd_slot_bytes each, bfloat16 where `half`, float32 otherwise
    const hd_states *records; // of a target, or null
    const hd_states *reads;   // of a draft of one layer: each token comes with the states of the one before it; or null
    const float *state_norm;  // [hidden rounded up to 64]: of these, where norms has the one of its embedding
    float *own;               // [slots][HD_OWN][hidden]: the draft's own states, which stand for those of guesses
};

struct hd_pool;

// Names the instructions that forwards would be computed with: those `wanted`, or the best if that is null. Null if
// this processor has none such.
const char *hd_instructions(const char *wanted);
int32_t hd_supports(const char *instructions, hd_format format);
size_t hd_packed_bytes(hd_format format, int32_t inputs, int32_t outputs);
void hd_pack(hd_format format, const float *weights, int32_t inputs, int32_t outputs, void *panels);
void hd_unpack(hd_format format, const void *panels, int32_t inputs, int32_t outputs, float *weights);
size_t hd_slot_bytes(const hd_model *model);
// The first `length` positions of a slot over another's.
void hd_move(const hd_model *model, int32_t source, int32_t destination, int32_t length);
// The key and value at one position over another's of the same slot.
void hd_move_key(const hd_model *model, int32_t slot, int32_t source, int32_t destination);
// A slot's zeroed.
void hd_clear(const hd_model *model, int32_t slot);

hd_pool *hd_pool_create(const char *instructions, int32_t threads);
void hd_pool_destroy(hd_pool *pool);
int64_t hd_pool_stalls(const hd_pool *pool);

// Logits [rows][keep][outputs of the head] of the last `keep` of token_ids [rows][count], each at its position of its
// slot, the first row's being `first_slot`. Of each row only the first counts [rows] are computed; null: all. Keys and
// values go to keys [rows][count], at or behind the positions, or to the positions if that is null; a token sees those
// before its position, and its own.
void hd_forward(const hd_model *model, hd_pool *pool, int32_t first_slot, int32_t rows, int32_t count, const int32_t *counts,
                const int64_t *token_ids, const int64_t *positions, const int64_t *keys, int32_t keep, float *logits);

constexpr int HD_CONFIDENCES = 8;

struct hd_drafting {
    int32_t most, ranks;
    int32_t *ks;                // [rows]: tokens at most; as many as were drafted when it is done
    const int32_t *reads;       // [rows]: so many of the tokens before them, the last ones, are read
    const float *rates;         // [HD_CONFIDENCES]: how often a token is accepted, by eighths of the model's own chance for it
    const float *floors;        // [rows]: a row ends once all its tokens are accepted less often than that
    const int64_t *vocabulary;  // names of the head's outputs, or null
    int64_t *drafted;           // [rows][most]
    uint8_t *confidences;       // [rows][most], in eighths
    uint8_t *sound;             // [rows]: whether all logits were numbers
    int64_t *others;            // [rows][most][ranks]: the likeliest beside each drafted token
    float *chances;             // [rows][most][1 + ranks]: the model's own for the drafted token and for those
};

// Tokens that follow token_ids [rows][count], each the likeliest after those before it.
void hd_draft(const hd_model *model, hd_pool *pool, int32_t rows, int32_t count, const int64_t *token_ids,
              const int64_t *positions, const hd_drafting *drafting);

// Bytes a second that `threads` reach in reading `bytes` at `data` once, as a pass over weights does.
double hd_read_speed(hd_pool *pool, const void *data, size_t bytes);
}
