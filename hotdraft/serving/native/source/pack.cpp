// Weights from row-major float32 into panels and back. Not on the path of a round: plain loops.
#include <cmath>
#include <cstring>

#include "layout.h"

namespace {
uint16_t narrowed(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float widened(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

void pack_group(const float *weights, int64_t count, int lane, char *group) {
    float most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::fabs(weights[i]) > most ? std::fabs(weights[i]) : most;
    const float scale = most / 127, inverse = most > 0 ? 127 / most : 0;
    for (int i = 0; i < GROUP; ++i) {
        const int value = i < count ? int(std::lrint(weights[i] * inverse)) : 0;
        group[i / 4 * VECTOR + lane * 4 + i % 4] = char(value + 128);
    }
    std::memcpy(group + GROUP * LANES + 4 * lane, &scale, 4);
}

float unpack_group(const char *group, int i, int lane) {
    float scale;
    std::memcpy(&scale, group + GROUP * LANES + 4 * lane, 4);
    return float(int(uint8_t(group[i / 4 * VECTOR + lane * 4 + i % 4])) - 128) * scale;
}
}  // namespace

size_t hd_packed_bytes(hd_format format, int32_t inputs, int32_t outputs) {
    return size_t(panel_bytes(format, inputs) * (rounded(outputs, LANES) / LANES));
}

void hd_pack(hd_format format, const float *weights, int32_t inputs, int32_t outputs, void *panels) {
    const int64_t panel = panel_bytes(format, inputs);
    std::memset(panels, format == HD_W8A16 ? 128 : 0, hd_packed_bytes(format, inputs, outputs));
    for (int64_t output = 0; output < outputs; ++output) {
        char *to = static_cast<char *>(panels) + output / LANES * panel;
        const float *row = weights + output * inputs;
        const int lane = int(output % LANES);
        if (format == HD_W8A16) {
            for (int64_t i = 0; i < inputs; i += GROUP)
                pack_group(row + i, inputs - i < GROUP ? inputs - i : GROUP, lane, to + i / GROUP * GROUP_BYTES);
            continue;
        }
        for (int64_t i = 0; i < inputs; ++i) {
            if (format == HD_FLOAT32) {
                std::memcpy(to + i * VECTOR + 4 * lane, row + i, 4);
            } else {
                const uint16_t half = narrowed(row[i]);
                std::memcpy(to + i / 2 * VECTOR + 4 * lane + 2 * (i % 2), &half, 2);
            }
        }
    }
    if (format != HD_W8A16) return;
    for (int64_t lane = outputs % LANES; lane && lane < LANES; ++lane)  // those of no output
        for (int64_t i = 0; i < inputs; i += GROUP)
            std::memset(static_cast<char *>(panels) + outputs / LANES * panel + i / GROUP * GROUP_BYTES + GROUP * LANES + 4 * lane, 0, 4);
}

void hd_unpack(hd_format format, const void *panels, int32_t inputs, int32_t outputs, float *weights) {
    const int64_t panel = panel_bytes(format, inputs);
    for (int64_t output = 0; output < outputs; ++output) {
        const char *from = static_cast<const char *>(panels) + output / LANES * panel;
        const int lane = int(output % LANES);
        for (int64_t i = 0; i < inputs; ++i) {
            float &to = weights[output * inputs + i];
            if (format == HD_W8A16) {
                to = unpack_group(from + i / GROUP * GROUP_BYTES, int(i % GROUP), lane);
            } else if (format == HD_FLOAT32) {
                std::memcpy(&to, from + i * VECTOR + 4 * lane, 4);
            } else {
                uint16_t half;
                std::memcpy(&half, from + i / 2 * VECTOR + 4 * lane + 2 * (i % 2), 2);
                to = widened(half);
            }
        }
    }
}
