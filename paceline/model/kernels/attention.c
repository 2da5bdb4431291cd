/* Attention of flattened rows over a KV cache in blocks, for CPUs.
 *
 * Compiled once per model shape by paceline/model/native.py, which defines ELEM_BF16 or ELEM_F32,
 * HEADS (key heads), GROUP (query heads per key head), DIM, VALUE_DIM, and calls `attend`.
 *
 * Every row sums over its own keys in the order of their positions, in whole blocks of 32, by the
 * same operations whatever else is in the forward; rows of one sequence only share the reading of
 * its cache. That is what makes a row's bits independent of its company (docs/design.md).
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

/* Rows of one sequence that read the cache together: as many as the registers hold. */
#define TOGETHER (GROUP > 6 ? 1 : 12 / GROUP > 8 ? 8 : 12 / GROUP)
#define INLINE static inline __attribute__((always_inline))

/* Scores of one block's keys [DIM][BLOCK] for `count` queries; count is a constant. */
INLINE void score_block(const int count, const elem *keys, const float query[][DIM], float scale,
                        float *scores, int64_t stride) {
    vec sums[count][2];
    UNROLLED for (int g = 0; g < count; g++) sums[g][0] = sums[g][1] = (vec){0};
    for (int d = 0; d < DIM; d++) {
        vec low = widen_vec(keys + d * BLOCK), high = widen_vec(keys + d * BLOCK + LANES);
        UNROLLED for (int g = 0; g < count; g++) {
            sums[g][0] += low * query[g][d];
            sums[g][1] += high * query[g][d];
        }
    }
    UNROLLED for (int g = 0; g < count; g++) {
        *(vec *)(scores + g * stride) = sums[g][0] * scale;
        *(vec *)(scores + g * stride + LANES) = sums[g][1] * scale;
    }
}

/* One key's values [PADDED], by the weights of a row's queries. */
INLINE void add_value(vec sums[][PARTS], const elem *value, const float *weights, int64_t stride) {
    vec parts[PARTS];
    UNROLLED for (int i = 0; i < PARTS; i++) parts[i] = widen_vec(value + i * LANES);
    UNROLLED for (int g = 0; g < GROUP; g++) {
        float weight = weights[g * stride];
        UNROLLED for (int i = 0; i < PARTS; i++) sums[g][i] += parts[i] * weight;
    }
}

/* All values of a block [BLOCK][PADDED], for the queries of TOGETHER rows. */
INLINE void add_block(vec sums[][PARTS], const elem *block, const float *weights, int64_t stride) {
    for (int i = 0; i < PARTS; i++) {
        vec own[TOGETHER * GROUP];
        UNROLLED for (int g = 0; g < TOGETHER * GROUP; g++) own[g] = sums[g][i];
        for (int j = 0; j < BLOCK; j++) {
            vec part = widen_vec(block + j * PADDED + i * LANES);
            UNROLLED for (int g = 0; g < TOGETHER * GROUP; g++)
                own[g] += part * weights[g * stride + j];
        }
        UNROLLED for (int g = 0; g < TOGETHER * GROUP; g++) sums[g][i] = own[g];
    }
}

/* Scores to weights, those of hidden keys to 0. Returns the sum of all. */
static float soften(float *s, int64_t hidden, int64_t shown, int64_t end) {
    for (int64_t j = 0; j < hidden; j++) s[j] = -1e30f;
    for (int64_t j = shown; j < end; j++) s[j] = -1e30f;
    vec most = *(vec *)s;
    for (int64_t j = 0; j < end; j += LANES) {
        vec x = *(vec *)(s + j);
        ivec more = x > most;
        most = (vec)(((ivec)x & more) | ((ivec)most & ~more));
    }
    float top = max_lanes(most);
    vec total = {0};
    for (int64_t j = 0; j < end; j += LANES) {
        vec p = exp_vec(*(vec *)(s + j) - top);
        *(vec *)(s + j) = p;
        total += p;
    }
    return sum_lanes(total);
}

/* `count` rows (1 or TOGETHER) of one sequence and one key head. positions ascend within a table's
 * order. paths[r] names the slots of row r's own block, or is NULL when they lie in the table's
 * order. scores: room for count * GROUP rows of `stride` keys. A row's sums run over its keys in
 * their order, however many rows share the reading. */
INLINE void attend_rows(const int count, const elem *query, int64_t query_row, int64_t query_head,
                        const elem *keys, const elem *values, const int32_t *table,
                        const int32_t *const *paths, const int32_t *positions, int64_t window,
                        int head, float scale, float *scores, int64_t stride, elem *out,
                        int64_t out_row) {
    const int64_t key_block = DIM * BLOCK, value_block = BLOCK * PADDED;
    float q[count * GROUP][DIM];
    vec sums[count * GROUP][PARTS];
    int64_t common = positions[0] / BLOCK;
    for (int r = 0; r < count; r++) {
        if (positions[r] / BLOCK < common) common = positions[r] / BLOCK;
        for (int g = 0; g < GROUP; g++)
            for (int d = 0; d < DIM; d++)
                q[r * GROUP + g][d] = widen(query[r * query_row + g * query_head + d]);
    }
    memset(sums, 0, sizeof sums);
    /* With a window rows come one by one, and only its blocks are read. */
    int64_t first = window > 0 && positions[0] >= window ? positions[0] - window + 1 : 0;
    int64_t start = first / BLOCK;

    for (int64_t b = start; b < common; b++)
        score_block(count * GROUP, keys + ((int64_t)table[b] * HEADS + head) * key_block, q, scale,
                    scores + (b - start) * BLOCK, stride);
    for (int r = 0; r < count; r++) {
        float(*own_q)[DIM] = q + r * GROUP;
        float *s = scores + r * GROUP * stride;
        int64_t whole = positions[r] / BLOCK;
        int shown = (int)(positions[r] % BLOCK) + 1;
        for (int64_t b = common; b < whole; b++)
            score_block(GROUP, keys + ((int64_t)table[b] * HEADS + head) * key_block, own_q, scale,
                        s + (b - start) * BLOCK, stride);
        if (paths[r] == NULL) {
            score_block(GROUP, keys + ((int64_t)table[whole] * HEADS + head) * key_block, own_q,
                        scale, s + (whole - start) * BLOCK, stride);
        } else {
            elem own[DIM * BLOCK];
            memset(own, 0, sizeof own);
            for (int j = 0; j < shown; j++) {
                const elem *key =
                    keys + ((int64_t)(paths[r][j] / BLOCK) * HEADS + head) * key_block;
                for (int d = 0; d < DIM; d++)
                    own[d * BLOCK + j] = key[d * BLOCK + paths[r][j] % BLOCK];
            }
            score_block(GROUP, own, own_q, scale, s + (whole - start) * BLOCK, stride);
        }
    }

    float totals[count * GROUP];
    for (int r = 0; r < count; r++) {
        int64_t end = (positions[r] / BLOCK + 1 - start) * BLOCK;
        int64_t shown = end - BLOCK + positions[r] % BLOCK + 1;
        for (int g = 0; g < GROUP; g++)
            totals[r * GROUP + g] = soften(scores + (r * GROUP + g) * stride,
                                           first - start * BLOCK, shown, end);
    }

    for (int64_t b = start; b < common; b++) {
        const elem *block = values + ((int64_t)table[b] * HEADS + head) * value_block;
        if (count == TOGETHER && count > 1)
            add_block(sums, block, scores + (b - start) * BLOCK, stride);
        else
            for (int j = 0; j < BLOCK; j++)
                add_value(sums, block + j * PADDED, scores + (b - start) * BLOCK + j, stride);
    }
    for (int r = 0; r < count; r++) {
        const float *s = scores + r * GROUP * stride;
        int64_t whole = positions[r] / BLOCK;
        for (int64_t b = common; b < whole; b++)
            for (int j = 0; j < BLOCK; j++)
                add_value(sums + r * GROUP,
                          values + ((int64_t)table[b] * HEADS + head) * value_block + j * PADDED,
                          s + (b - start) * BLOCK + j, stride);
        for (int j = 0; j <= positions[r] % BLOCK; j++) {
            int64_t slot = paths[r] == NULL ? (int64_t)table[whole] * BLOCK + j : paths[r][j];
            add_value(sums + r * GROUP,
                      values + (slot / BLOCK * HEADS + head) * value_block + slot % BLOCK * PADDED,
                      s + (whole - start) * BLOCK + j, stride);
        }
        for (int g = 0; g < GROUP; g++) {
            float share = 1.0f / totals[r * GROUP + g];
            for (int d = 0; d < VALUE_DIM; d++)
                out[r * out_row + g * VALUE_DIM + d] =
                    narrow(sums[r * GROUP + g][d / LANES][d % LANES] * share);
        }
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
    int64_t stride = (longest / BLOCK + 1) * BLOCK;
    int32_t *units = malloc((rows + 1) * sizeof(int32_t));
    if (units == NULL) return 1;
    int64_t num_units = 0;
    for (int64_t row = 0; row < rows; num_units++) {
        int64_t end = row + 1;
        while (window == 0 && end < rows && end - row < TOGETHER &&
               table_starts[end] == table_starts[row])
            end++;
        /* A whole group, or one row. */
        units[num_units] = (int32_t)row;
        row = end - row == TOGETHER ? end : row + 1;
    }
    units[num_units] = (int32_t)rows;
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
        float *scores = malloc(TOGETHER * GROUP * stride * sizeof(float));
        if (scores == NULL) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < num_units * HEADS; unit++) {
            if (scores == NULL) continue;
            int64_t row = units[unit / HEADS];
            int head = (int)(unit % HEADS);
            const int32_t *own[TOGETHER];
            int count = units[unit / HEADS + 1] - (int)row;
            for (int r = 0; r < count; r++)
                own[r] = path_starts[row + r] < 0 ? NULL : paths + path_starts[row + r];
            const elem *q = query + row * query_row + head * GROUP * query_head;
            elem *to = out + (row * HEADS + head) * GROUP * VALUE_DIM;
            const int64_t out_row = HEADS * GROUP * VALUE_DIM;
            const int32_t *table = tables + table_starts[row];
            if (count == TOGETHER)
                attend_rows(TOGETHER, q, query_row, query_head, keys, values, table, own,
                            positions + row, window, head, scale, scores, stride, to, out_row);
            else
                attend_rows(1, q, query_row, query_head, keys, values, table, own,
                            positions + row, window, head, scale, scores, stride, to, out_row);
        }
        free(scores);
    }
    free(units);
    return failed;
}
