/* What the parts of the cost model share: the loaded table (cost_table.c), rules (cost_work.c), times (cost.c). */
#ifndef ASCEND_PERF_COST_TABLE_H
#define ASCEND_PERF_COST_TABLE_H

#include "cost.h"

enum { VN_COST_MAX_NAME = 96 };

/* A double each, so that one list of keys can fill any of them. */
typedef struct {
    double cube_cores, frequency_hz;
    double cube_fp16, cube_bf16, cube_fp32, cube_int8;      /* FLOP/s */
    double lanes_per_s;                                     /* FP32 elements of all vector cores, one operation each */
    double hbm_bytes_per_s, l2_bytes, l2_core_bytes_per_cycle;
    double tile_m, tile_n, split_k;
    double host_launch_ns, launch_latency_ns;
    double h2d_fixed_ns, h2d_bytes_per_s, d2h_fixed_ns, d2h_bytes_per_s, h2h_fixed_ns, h2h_bytes_per_s;
    double d2d_fixed_ns, d2d_bytes_per_s, memset_fixed_ns, memset_bytes_per_s;
    double peer_bytes_per_s;        /* inside a node: from one card to one other */
    double is_switched;             /* 1: the whole rate of a card goes to whichever peer it talks to */
    double node_bytes_per_s;        /* between nodes, per card */
    double single_rank_ns, collective_fixed_ns, gather_fixed_ns, send_fixed_ns, peer_step_ns, node_step_ns;
    double all_reduce_efficiency, all_gather_efficiency, reduce_scatter_efficiency, send_efficiency, node_efficiency;
} vn_cost_device;

extern vn_cost_device vn_device;

typedef struct {
    char name[32];
    double fixed_ns, growth_ns;     /* per kernel; growth: for each doubling of its elements */
    double cube_efficiency, outer_efficiency, fp32_efficiency;  /* of the peak; outer: see vn_work.both_outer */
    double cycles_per_pair;         /* attention: vector operations per query-key pair, lane by lane */
    double cycles_per_extra;        /* the same for each addition (vn_work.extras) */
    double bytes_per_pair;          /* attention: traffic that vector cores wait for, beside their work */
    double cycles_per_element;      /* vector operations per element */
    double hbm_efficiency, l2_efficiency;   /* of the HBM rate: what does not fit in L2, what does */
    double write_efficiency;        /* products: of the HBM rate, for the result */
    double bytes_per_s;             /* a rate of its own (random numbers), instead of that of the memory */
    double flops_per_element;
} vn_cost_class;

typedef enum {
    TENSORS, MATMUL, GROUPED, CONV, CONV_BACKWARD, ATTENTION, ATTENTION_BACKWARD, ATTENTION_INFERENCE, GATHER, SCATTER,
    SCATTER_OUT, SCATTER_GRAD, COPY, RULES
} vn_cost_rule;

typedef struct {
    char pattern[VN_COST_MAX_NAME];
    const vn_cost_class *klass;
    vn_cost_rule rule;
    unsigned written;       /* tensors:  bit i: tensor argument i is read and written */
    int skipped;            /* matmul: tensors before the operands of the product (a bias) */
} vn_cost_operator;

/* The class of that name, or NULL. */
const vn_cost_class *vn_cost_class_named(const char *name);

/* The line that names an operator, or NULL, which is counted. Sets whether its name says that it works in place. */
const vn_cost_operator *vn_cost_find(const char *op, int *is_in_place);

/* Size of one element in bytes, by aclDataType. */
double vn_cost_bytes_of(int32_t dtype);

/* Next multiple. */
double vn_cost_blocks(double size, double block);

#endif
