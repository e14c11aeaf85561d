// One thread of a team at a forward: its share of each phase, and its own buffers.

struct Share {
    int64_t from, to;
    Share(int64_t total, int32_t thread, int32_t threads) : from(total * thread / threads), to(total * (thread + 1) / threads) {}
};

struct Widths {
    int64_t hidden, qkv, attended, activated, fed, widest;
    explicit Widths(const hd_model &model)
        : hidden(rounded(model.hidden, GROUP)),
          qkv(rounded(int64_t(model.heads + 2 * model.kv_heads) * model.head_dim, GROUP)),
          attended(rounded(int64_t(model.heads) * model.head_dim, GROUP)),
          activated(rounded(model.intermediate, GROUP)),
          fed(fed_width(model)) {
        widest = hidden > attended ? hidden : attended;
        widest = widest > activated ? widest : activated;
        widest = widest > fed ? widest : fed;
    }
};

inline int64_t inputs_bytes(const hd_model &model) { return MAX_TOKENS * Float32::row_bytes(Widths(model).widest); }
inline int64_t keys_of(const hd_model &model) { return rounded(model.max_length, GROUP); }

constexpr int64_t QUERIES = Bfloat16::IS_MATRIX ? 16 : BLOCK;  // whose attention is computed together
constexpr int64_t LAST_BYTES = VECTOR;  // `INPUT_BYTES` at most

// Of a thread's buffers, those of `Worker`.
int64_t own_bytes(const hd_model &model) {
    return inputs_bytes(model) + 4 * Widths(model).widest + 8 * QUERIES * keys_of(model) + 4 * QUERIES * rounded(model.head_dim, GROUP) + (4 + LAST_BYTES) * QUERIES;
}

struct Worker {
    const hd_model &model;
    const Batch &batch;
    const Scratch &scratch;
    Team &team;
    const int32_t thread;
    const Widths widths;
    char *inputs;   // [MAX_TOKENS] rows of a linear's inputs
    float *row;     // [widest]
    float *scores;  // [QUERIES][keys]
    char *probs;    // [QUERIES] rows of keys
    char *queries;  // [QUERIES] rows of head_dim
    float *sums;    // [QUERIES]
    char *lasts;    // [QUERIES] inputs of one vector of values

    Worker(const hd_model &m, const Batch &b, const Scratch &s, Team &t, int32_t id)
        : model(m), batch(b), scratch(s), team(t), thread(id), widths(m) {
        char *own = scratch.own[id];
        inputs = own, own += inputs_bytes(m);
        row = reinterpret_cast<float *>(own), own += 4 * widths.widest;
        scores = reinterpret_cast<float *>(own), own += 4 * QUERIES * keys_of(m);
        probs = own, own += 4 * QUERIES * keys_of(m);
        queries = own, own += 4 * QUERIES * rounded(m.head_dim, GROUP);
        sums = reinterpret_cast<float *>(own), own += 4 * QUERIES;
        lasts = own;
    }
};
