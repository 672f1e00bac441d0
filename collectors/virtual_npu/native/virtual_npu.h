/* What the parts of the virtual NPU share: the description of an operator call, the cost hooks, and the entry points
 * of the generated trampolines. Everything else is private to the core (core.h).
 *
 * Who implements what: the core (handles, streams, record ...) calls the vn_cost_* hooks; cost.c implements them, and
 * without it weak defaults in operators.c and collectives.c answer (2 us each), so the core can be tested alone. The
 * generated signature table and trampolines call vn_operator_prepare and vn_operator_launch.
 */
#ifndef ASCEND_PERF_VIRTUAL_NPU_H
#define ASCEND_PERF_VIRTUAL_NPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { VN_MAX_RANK = 8 };

/* ---- description of one operator call --------------------------------------------------------------------------- */

typedef struct {
    int32_t dtype, format;          /* aclDataType, aclFormat */
    int32_t rank;                   /* number of dimensions, 0 for a scalar tensor */
    int64_t shape[VN_MAX_RANK], stride[VN_MAX_RANK];   /* view shape; strides in elements */
} vn_tensor;

/* kind: t tensor, l tensor list, s scalar, z scalar list, i int array, f float array, b bool array, n integer,
 * d double, c string, 0 null (a handle argument that was NULL). */
typedef struct {
    char kind;
    vn_tensor *tensors;     /* t: one, l: count of them */
    int count;              /* tensors of t and l, values of z i f b */
    int32_t dtype;          /* s: aclDataType of the scalar */
    double number;          /* n d s */
    const int64_t *ints;    /* i b; n: one value, exact where the double is not */
    const double *reals;    /* f z */
    const char *text;       /* c */
} vn_arg;

/* Cost of one launch. ns is what counts; the others say where it comes from and go to the record (0: not known).
 * klass: class of operator of the cost model, a static string without tabs, quotes or backslashes. */
typedef struct {
    double ns, flops, bytes, cube_ns, vector_ns, memory_ns, fixed_ns;
    const char *klass;
} vn_cost;

/* ---- hooks of the cost model (cost.c) ---------------------------------------------------------------------------
 * All are called under the core's lock, from any thread. They must be pure functions of their arguments and of the
 * loaded lines: the core keeps the answer of a distinct call (same operator, same arguments) and does not ask again.
 * `out` comes zeroed. Return value: ns, the same as out->ns. The core applies the faults (slow_rank, op_factor,
 * slow_link) to the returned time. */

/* One line of the config file that began with "cost\t"; that prefix and the newline are already removed. The text
 * may be changed in place but is gone after the call. */
void vn_cost_load_line(char *line);

/* op as in the table of signatures: "aclnnMatmul"; "aclop<Type>" for the old single-operator route. */
double vn_cost_kernel(const char *op, const vn_arg *args, int n, vn_cost *out);

/* op: AllReduce Broadcast AllGather ReduceScatter Reduce Scatter AlltoAll AlltoAllV Send Recv BatchSendRecv Barrier.
 * bytes: of this rank: AllReduce, Broadcast, Reduce, Send, Recv: the message; AllGather: what one rank contributes;
 * ReduceScatter, Scatter: what one rank receives; AlltoAll, AlltoAllV: all that this rank sends; AllGatherV,
 * ReduceScatterV come as AllGather, ReduceScatter with the mean part of a rank; BatchSendRecv: the larger of all sent
 * and all received. ranks: size of the communicator (2 for Send and Recv). ranks_per_node: how many of its ranks share
 * a node (of a communicator whose ranks all sit in one node: >= ranks; of one with one rank in each node: 1). */
double vn_cost_collective(const char *op, double bytes, int ranks, int ranks_per_node, vn_cost *out);

/* kind: aclrtMemcpyKind 0 h2h, 1 h2d, 2 d2h, 3 d2d; 4 memset. bytes of one copy. */
double vn_cost_copy(int kind, double bytes);

/* ---- entry points of the trampolines (build.py generates them) -------------------------------------------------- */

/* One operator of the table. kinds: one letter for each argument before workspace and executor:
 *   t l s z i f b c   handles (pointers) and C string, as in vn_arg
 *   n 64-bit integer, m 32-bit integer or enum, y bool or signed 8-bit integer (all come as vn_arg kind n)
 *   d double, e float (both come as vn_arg kind d)
 * kinds == NULL: operator whose signature is not known; a call of it is refused. */
typedef struct {
    const char *name;       /* "aclnnMatmul" */
    const char *kinds;
} vn_signature;

extern const vn_signature vn_signatures[];      /* sorted by name (strcmp), generated */
extern const int vn_signature_count;
extern const char vn_build_id[];                /* hash of libtorch_npu.so and its version, generated */

/* Integer registers and vector registers of the calling convention that a trampoline saves, in order. */
#if defined(__aarch64__)
enum { VN_INT_REGISTERS = 8, VN_FLOAT_REGISTERS = 8 };
#else
enum { VN_INT_REGISTERS = 6, VN_FLOAT_REGISTERS = 8 };
#endif

/* aclnnXGetWorkspaceSize(...): the trampoline passes the saved registers (vector registers: the low 64 bits of each)
 * and the address of the first stack argument. Returns what the caller gets: 0 or an aclnn error code. */
int vn_operator_prepare(const vn_signature *operator_, const uint64_t *ints, const uint64_t *floats,
                        const uint64_t *stack);

/* aclnnX(workspace, size, executor, stream). */
int vn_operator_launch(const vn_signature *operator_, void *workspace, uint64_t size, void *executor, void *stream);

#ifdef __cplusplus
}
#endif
#endif
