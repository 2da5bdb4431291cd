/* Attention of flattened rows over a KV cache in blocks, for CPUs.
 *
 * Compiled once per model shape by paceline/model/native.py, which defines ELEM_BF16 or ELEM_F32,
 * HEADS (key heads), GROUP (query heads per key head), DIM, VALUE_DIM, and calls `attend`.
 *
 * Every (row, key head) is computed alone, over its own keys in the order of their positions, in
 * whole blocks of 32: the same instructions whatever else is in the forward. That is what makes a
 * row's bits independent of its company (docs/design.md).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 32
#define LANES 16
#define PADDED ((VALUE_DIM + LANES - 1) / LANES * LANES)
#define PARTS (PADDED / LANES)
#define UNROLLED _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));

#ifdef ELEM_BF16
typedef uint16_t elem;
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4)));
static inline float widen(elem x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline vec widen_vec(const elem *x) {
    return (vec)(__builtin_convertvector(*(const hvec *)x, uvec) << 16);
}
static inline elem narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fc0;
    return (elem)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
typedef float elem;
static inline float widen(elem x) { return x; }
static inline vec widen_vec(const elem *x) { return *(const vec *)x; }
static inline elem narrow(float value) { return value; }
#endif

/* exp(x) for x <= 0, to about 1e-7: 2^n * 2^f with a polynomial for 2^f on [-0.5, 0.5]. */
static inline vec exp_vec(vec x) {
    const vec lowest = {-87.0f, -87.0f, -87.0f, -87.0f, -87.0f, -87.0f, -87.0f, -87.0f,
                        -87.0f, -87.0f, -87.0f, -87.0f, -87.0f, -87.0f, -87.0f, -87.0f};
    ivec above = x > lowest;
    x = (vec)(((ivec)x & above) | ((ivec)lowest & ~above));
    vec t = x * 1.44269504088896341f;
    vec n = (t + 12582912.0f) - 12582912.0f;
    vec f = t - n;
    vec p = f * 1.5403530e-4f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    ivec scale = (__builtin_convertvector(n, ivec) + 127) << 23;
    /* Beyond the range is nothing, a hidden key in particular. */
    return (vec)((ivec)(p * (vec)scale) & above);
}

static inline float sum_lanes(vec x) {
    float total = 0.0f;
    UNROLLED for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

static inline float max_lanes(vec x) {
    float most = x[0];
    UNROLLED for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* Scores of one block's keys [DIM][BLOCK] for the GROUP queries of a key head. */
static inline void score_block(const elem *keys, const float query[GROUP][DIM], float scale,
                               float *scores, int64_t stride) {
    vec sums[GROUP][2] = {0};
    for (int d = 0; d < DIM; d++) {
        vec low = widen_vec(keys + d * BLOCK), high = widen_vec(keys + d * BLOCK + LANES);
        UNROLLED for (int g = 0; g < GROUP; g++) {
            sums[g][0] += low * query[g][d];
            sums[g][1] += high * query[g][d];
        }
    }
    UNROLLED for (int g = 0; g < GROUP; g++) {
        *(vec *)(scores + g * stride) = sums[g][0] * scale;
        *(vec *)(scores + g * stride + LANES) = sums[g][1] * scale;
    }
}

static inline void add_value(vec sums[GROUP][PARTS], const elem *value, const float *weights,
                             int64_t stride) {
    vec parts[PARTS];
    UNROLLED for (int i = 0; i < PARTS; i++) parts[i] = widen_vec(value + i * LANES);
    UNROLLED for (int g = 0; g < GROUP; g++) {
        float weight = weights[g * stride];
        UNROLLED for (int i = 0; i < PARTS; i++) sums[g][i] += parts[i] * weight;
    }
}

/* One row's queries of one key head. `path` names the slots of the row's own block, or is NULL
 * when they lie in the table's order. `scores` has room for GROUP * (position / BLOCK + 1) blocks. */
static void attend_row(const elem *query, int64_t query_head, const elem *keys, const elem *values,
                       const int32_t *table, const int32_t *path, int64_t position, int64_t first,
                       int head, float scale, float *scores, elem *out) {
    int64_t whole = position / BLOCK, start = first / BLOCK, stride = (whole + 1 - start) * BLOCK;
    float q[GROUP][DIM];
    for (int g = 0; g < GROUP; g++)
        for (int d = 0; d < DIM; d++) q[g][d] = widen(query[g * query_head + d]);

    for (int64_t b = start; b < whole; b++)
        score_block(keys + ((int64_t)table[b] * HEADS + head) * DIM * BLOCK, q, scale,
                    scores + (b - start) * BLOCK, stride);
    int count = (int)(position % BLOCK) + 1;
    if (path == NULL) {
        score_block(keys + ((int64_t)table[whole] * HEADS + head) * DIM * BLOCK, q, scale,
                    scores + (whole - start) * BLOCK, stride);
    } else {
        elem own[DIM * BLOCK];
        memset(own, 0, sizeof own);
        for (int j = 0; j < count; j++) {
            const elem *key = keys + ((int64_t)(path[j] / BLOCK) * HEADS + head) * DIM * BLOCK;
            for (int d = 0; d < DIM; d++) own[d * BLOCK + j] = key[d * BLOCK + path[j] % BLOCK];
        }
        score_block(own, q, scale, scores + (whole - start) * BLOCK, stride);
    }

    vec sums[GROUP][PARTS] = {0};
    float totals[GROUP];
    for (int g = 0; g < GROUP; g++) {
        float *s = scores + g * stride;
        for (int64_t j = 0; j < first - start * BLOCK; j++) s[j] = -1e30f;
        for (int64_t j = stride - BLOCK + count; j < stride; j++) s[j] = -1e30f;
        vec most = *(vec *)s;
        for (int64_t j = 0; j < stride; j += LANES) {
            vec x = *(vec *)(s + j);
            ivec more = x > most;
            most = (vec)(((ivec)x & more) | ((ivec)most & ~more));
        }
        float top = max_lanes(most);
        vec total = {0};
        for (int64_t j = 0; j < stride; j += LANES) {
            vec p = exp_vec(*(vec *)(s + j) - top);
            *(vec *)(s + j) = p;
            total += p;
        }
        totals[g] = sum_lanes(total);
    }
    for (int64_t b = start; b < whole; b++) {
        const elem *block = values + ((int64_t)table[b] * HEADS + head) * BLOCK * PADDED;
        for (int j = 0; j < BLOCK; j++)
            add_value(sums, block + j * PADDED, scores + (b - start) * BLOCK + j, stride);
    }
    for (int j = 0; j < count; j++) {
        int64_t slot = path == NULL ? (int64_t)table[whole] * BLOCK + j : path[j];
        add_value(sums, values + ((slot / BLOCK * HEADS + head) * BLOCK + slot % BLOCK) * PADDED,
                  scores + stride - BLOCK + j, stride);
    }
    for (int g = 0; g < GROUP; g++) {
        float share = 1.0f / totals[g];
        for (int d = 0; d < VALUE_DIM; d++)
            out[g * VALUE_DIM + d] = narrow(sums[g][d / LANES][d % LANES] * share);
    }
}

/* Store the rows' keys and values, then attend. Strides count elements.
 *   query [rows][HEADS * GROUP][DIM], key [rows][HEADS][DIM], value [rows][HEADS][VALUE_DIM]
 *   keys [blocks][HEADS][DIM][BLOCK], values [blocks][HEADS][BLOCK][PADDED]: one layer's cache
 *   slots [rows]: where each row is stored; positions [rows]; table_starts [rows], into tables
 *   path_starts [rows]: into paths, or -1; window: 0 for none; out [rows][HEADS * GROUP][VALUE_DIM]
 * Returns 0, or 1 when memory ran out. */
int attend(int64_t rows, const elem *query, int64_t query_row, int64_t query_head, const elem *key,
           int64_t key_row, int64_t key_head, const elem *value, int64_t value_row,
           int64_t value_head, elem *keys, elem *values, const int32_t *slots,
           const int32_t *positions, const int32_t *table_starts, const int32_t *tables,
           const int32_t *path_starts, const int32_t *paths, int64_t longest, int64_t window,
           float scale, elem *out) {
    int failed = 0;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++)
            for (int head = 0; head < HEADS; head++) {
                int64_t block = slots[row] / BLOCK * HEADS + head, column = slots[row] % BLOCK;
                const elem *k = key + row * key_row + head * key_head;
                for (int d = 0; d < DIM; d++) keys[(block * DIM + d) * BLOCK + column] = k[d];
                memcpy(values + (block * BLOCK + column) * PADDED,
                       value + row * value_row + head * value_head, VALUE_DIM * sizeof(elem));
            }
        float *scores = malloc(GROUP * (size_t)(longest / BLOCK + 1) * BLOCK * sizeof(float));
        if (scores == NULL) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < rows * HEADS; unit++) {
            int64_t row = unit / HEADS, position = positions[row];
            int head = (int)(unit % HEADS);
            int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
            if (scores != NULL)
                attend_row(query + row * query_row + head * GROUP * query_head, query_head, keys,
                           values, tables + table_starts[row],
                           path_starts[row] < 0 ? NULL : paths + path_starts[row], position, first,
                           head, scale, scores, out + (row * HEADS + head) * GROUP * VALUE_DIM);
        }
        free(scores);
    }
    return failed;
}
