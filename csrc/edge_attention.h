/* The native kernel of pyg_kpnn: a plain C interface, so that one build serves every torch.
 *
 * Tensors are given by pointer and strides in elements; the channel axis is contiguous. Edges
 * come sorted by target: the edges into target t are target_ptr[t] .. target_ptr[t + 1]. */
#ifndef PYG_KPNN_EDGE_ATTENTION_H
#define PYG_KPNN_EDGE_ATTENTION_H

#include <stdint.h>

#define PK_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum { PK_FLOAT32 = 0, PK_FLOAT64 = 1, PK_BFLOAT16 = 2, PK_FLOAT16 = 3 };

/* A (B, N, H, d) tensor with contiguous channels. */
typedef struct {
    const void *data;
    int64_t batch, node, head; /* strides in elements */
} pk_tensor;

/* Everything both passes read. Accumulators are float32, or float64 for PK_FLOAT64; so are
 * bias, outputs and gradients. Null pointers stand for what was not asked for. */
typedef struct {
    int64_t batch, targets, sources, edges, heads, channels;
    int32_t dtype;
    int32_t threads;
    double scale; /* of the scores, 1 / sqrt(d) */
    pk_tensor query, key, value;
    const int64_t *target_ptr;  /* (targets + 1) */
    const int32_t *source;      /* (edges), sorted order */
    const int64_t *position;    /* (edges), the caller's position of each sorted edge */
    const int64_t *source_ptr;  /* (sources + 1), sorted edges by source, or null: */
    const int64_t *by_source;   /* (edges) their numbers, */
    const int64_t *target_by_source; /* (edges) their targets */
    const void *bias;           /* (B or 1, E, H or 1), caller's order, or null */
    int64_t bias_batch, bias_edge, bias_head; /* strides in elements, 0 where shared */
    const uint8_t *key_mask;    /* (B, sources), nonzero = ignore, or null */
    uint32_t drop_low, drop_high; /* the halves of the dropout seed */
    uint32_t drop_below;        /* weights whose hash is below are dropped; 0 = no dropout */
    double drop_scale;          /* 1 / (1 - p) */
} pk_problem;

/* mixed (B, T, H, d), norm (B, T, 2, H): maximum and inverse sum of each softmax, weights (B, E, H)
 * in the caller's order or null. */
PK_API int pk_forward(const pk_problem *problem, void *mixed, void *norm, void *weights);

/* What backward reads, mixed and norm as forward left them and grad (B, T, H, d), contiguous; and
 * what it writes: gradients in the shapes of the inputs, with contiguous heads and channels, `node`
 * elements from one (sample, node) to the next; grad_bias (B, E, H) in the caller's order or null. */
typedef struct {
    const void *mixed, *norm, *grad;
    void *grad_query, *grad_key, *grad_value, *grad_bias;
    int64_t node;
} pk_gradients;
PK_API int pk_backward(const pk_problem *problem, const pk_gradients *gradients);

/* Read every edge's key and value row once, in the order of the forward pass (float32 only), one
 * sum (B, T) a target: the floor that benchmarks measure against. */
PK_API int pk_read_rows(const pk_problem *problem, void *sums);

/* "avx512", "avx2", "neon" or "baseline": what was chosen when the library was loaded. */
PK_API const char *pk_level(void);

#ifdef __cplusplus
}
#endif
#endif
