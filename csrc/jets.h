/* First and second derivatives of an attention over a fixed memory behind an encoder, and Taylor
 * coefficients to any order. All tensors are contiguous, of one dtype, PK_FLOAT32 or PK_FLOAT64. */
#ifndef PYG_KPNN_JETS_H
#define PYG_KPNN_JETS_H

#include "edge_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the derivatives of the activation come from. */
enum { PK_GIVEN = 0, PK_TANH = 1 };

/* Null pointers stand for what is not there or not asked for. */
typedef struct {
    int64_t points, in_dim, hidden, memory, out_dim, depth;
    int32_t dtype, threads, activation, order;
    const void *const *weights;    /* depth of them, (hidden, in_dim), then (hidden, hidden) */
    const void *keys;              /* (memory, hidden), the inverse temperature multiplied in */
    const void *offers;            /* (memory, out_dim): what a slot adds to u with all the attention */
    const void *readout;           /* (out_dim, hidden), null without residual */
    const void *readout_bias;      /* (out_dim) */
    const void *x;                 /* (points, in_dim), and */
    const void *const *biases;     /* depth of them, (hidden): both only where the activation is named */
    const void *query;             /* (points, hidden): this and the next where it is given */
    const void *const *derivatives; /* depth * order of them, (points, hidden): of each layer's activation the
                                       derivatives 1 to order, of which second_order reads at most two */
    const int64_t *const *places;  /* (order + 1)^2, for taylor: at j (order + 1) + k, j >= 1, where the products
                                      of two parts of orders j and k go, see product_rows in jets/indices.py */
    void *value;                   /* (points, out_dim) */
    void *gradient;                /* (points, in_dim, out_dim) */
    void *hessian;                 /* (points, out_dim, in_dim, in_dim) */
    void *laplacian;               /* (points, out_dim) */
    void *jet;                     /* (points, rows, out_dim), of taylor */
} pk_jet_problem;
PK_API int pk_second_order(const pk_jet_problem *problem);
PK_API int pk_taylor(const pk_jet_problem *problem); /* order >= 1; the activation is given */

#ifdef __cplusplus
}
#endif
#endif
