/* The cost model of the virtual NPU: what cost.c offers beside the hooks of virtual_npu.h.
 *
 * Two layers. The first reads the work of a call (products, bytes, elements) off its arguments, by the rule of its
 * operator; the second turns work into time, by the constants of its class. cost_model.yaml holds operators, classes
 * and constants; cost.py writes them as lines for one device, vn_cost_load_line reads these. docs/virtual-npu-cost.md
 * has the formulas.
 */
#ifndef ASCEND_PERF_COST_H
#define ASCEND_PERF_COST_H

#include "virtual_npu.h"

/* Work of one kernel. Zero: none, or not known. */
typedef struct {
    int32_t dtype;          /* aclDataType of the operands of products */
    double flops, bytes;    /* a multiply-add counts two; every operand counts once */
    double written;         /* products: the part of bytes that is the result */
    double elements;        /* of the largest operand: what vector units go over; gather and scatter: indices */
    double batch, m, n, k;  /* products: batch times (m x k) by (k x n) */
    double pairs;           /* attention: query-key pairs over all heads */
    double extras;          /* attention: additions per pair, such as a position bias or a dropout mask */
    int32_t both_outer;     /* products: in both operands the summed dimension is not the contiguous one */
    int32_t kernels;        /* kernels that share the work, each with a fixed cost; at least 1 */
    double copied;          /* bytes of operands that are laid out anew first */
} vn_work;

/* Work and class of a call; the class is never NULL once lines are loaded. */
const char *vn_cost_work(const char *op, const vn_arg *args, int n, vn_work *work);

/* Time of work of a class; 0 for a class that is not loaded. */
double vn_cost_time(const char *klass, const vn_work *work, vn_cost *out);

/* How HCCL would run a collective, as profiles spell it: MESH, NHR, MESH-NHR ... ; "NULL" in a group of one. */
const char *vn_cost_algorithm(const char *op, int ranks, int ranks_per_node);

/* A constant by its key in the table (host_launch_ns, launch_latency_ns ...); NaN when there is none. */
double vn_cost_value(const char *key);

/* Operators that no line names, and how often each was asked for. They cost what the class "other" does. */
int vn_cost_unknown_count(void);
const char *vn_cost_unknown(int index, int64_t *calls);

/* First line that was not understood, or NULL. */
const char *vn_cost_problem(void);

/* Forgets everything that was loaded and counted. */
void vn_cost_reset(void);

#endif
