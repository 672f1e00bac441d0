/* What an operator call costs on a device: see cost.h, and docs/virtual-npu-cost.md for the formulas.
 *
 * No memory is allocated: tables have fixed sizes, and an operator's name is looked up in a hash. Callers hold a lock.
 */
#define _GNU_SOURCE
#include "cost.h"

#include <fnmatch.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CLASSES = 64,
    MAX_OPERATORS = 1024,
    MAX_NAME = 96,
    SLOTS = 4096,           /* of the hash, a power of two; names seen are kept below three quarters of it */
    MAX_OPERANDS = 24,      /* tensors of a call that rules other than sums look at */
    BLOCK = 16,             /* the cube multiplies blocks of 16 x 16 */
    STATISTIC_WIDTH = 8     /* of the softmax statistics of fused attention: (batch, heads, length, 8) */
};

/* ---- the loaded table -------------------------------------------------------------------------------------------- */

/* A double each, so that one list of keys can fill any of them. */
static struct {
    double cube_cores, frequency_hz;
    double cube_fp16, cube_bf16, cube_fp32, cube_int8;      /* FLOP/s */
    double lanes_fp32, lanes_fp16;                          /* elements per second of all vector cores, one operation each */
    double hbm_bytes_per_s, l2_bytes, l2_core_bytes_per_cycle;
    double tile_m, tile_n, split_k;
    double host_launch_ns, launch_latency_ns, kernel_gap_ns;
    double h2d_fixed_ns, h2d_bytes_per_s, d2h_fixed_ns, d2h_bytes_per_s, h2h_fixed_ns, h2h_bytes_per_s;
    double d2d_fixed_ns, d2d_bytes_per_s, memset_fixed_ns, memset_bytes_per_s;
    double peer_bytes_per_s;        /* inside a node: from one card to one other */
    double is_switched;             /* 1: the whole rate of a card goes to whichever peer it talks to */
    double node_bytes_per_s;        /* between nodes, per card */
    double single_rank_ns, collective_fixed_ns, gather_fixed_ns, send_fixed_ns, peer_step_ns, node_step_ns;
    double all_reduce_efficiency, all_gather_efficiency, reduce_scatter_efficiency, send_efficiency, node_efficiency;
} device;

#define KEY(name) {#name, offsetof(__typeof__(device), name)}
static const struct { const char *name; size_t at; } DEVICE_KEYS[] = {
    KEY(cube_cores), KEY(frequency_hz), KEY(cube_fp16), KEY(cube_bf16), KEY(cube_fp32), KEY(cube_int8),
    KEY(lanes_fp32), KEY(lanes_fp16), KEY(hbm_bytes_per_s), KEY(l2_bytes), KEY(l2_core_bytes_per_cycle),
    KEY(tile_m), KEY(tile_n), KEY(split_k), KEY(host_launch_ns), KEY(launch_latency_ns), KEY(kernel_gap_ns),
    KEY(h2d_fixed_ns), KEY(h2d_bytes_per_s), KEY(d2h_fixed_ns), KEY(d2h_bytes_per_s), KEY(h2h_fixed_ns),
    KEY(h2h_bytes_per_s), KEY(d2d_fixed_ns), KEY(d2d_bytes_per_s), KEY(memset_fixed_ns), KEY(memset_bytes_per_s),
    KEY(peer_bytes_per_s), KEY(is_switched), KEY(node_bytes_per_s), KEY(single_rank_ns), KEY(collective_fixed_ns),
    KEY(gather_fixed_ns), KEY(send_fixed_ns), KEY(peer_step_ns), KEY(node_step_ns), KEY(all_reduce_efficiency),
    KEY(all_gather_efficiency), KEY(reduce_scatter_efficiency), KEY(send_efficiency), KEY(node_efficiency),
};

typedef struct {
    char name[32];
    double fixed_ns;
    double cube_efficiency, outer_efficiency, fp32_efficiency;  /* of the peak; outer: see vn_work.both_outer */
    double cycles_per_pair;         /* attention: vector operations per query-key pair, lane by lane */
    double cycles_per_element;      /* vector operations per element */
    double hbm_efficiency, l2_efficiency;   /* of the HBM rate: what does not fit in L2, what does */
    double bytes_per_s;             /* a rate of its own (random numbers), instead of that of the memory */
    double flops_per_element;
} klass_t;

#define CLASS_KEY(name) {#name, offsetof(klass_t, name)}
static const struct { const char *name; size_t at; } CLASS_KEYS[] = {
    CLASS_KEY(fixed_ns), CLASS_KEY(cube_efficiency), CLASS_KEY(outer_efficiency), CLASS_KEY(fp32_efficiency),
    CLASS_KEY(cycles_per_pair), CLASS_KEY(cycles_per_element), CLASS_KEY(hbm_efficiency), CLASS_KEY(l2_efficiency),
    CLASS_KEY(bytes_per_s), CLASS_KEY(flops_per_element),
};

typedef enum {
    TENSORS, MATMUL, GROUPED, CONV, CONV_BACKWARD, ATTENTION, ATTENTION_BACKWARD, ATTENTION_INFERENCE, GATHER, SCATTER,
    SCATTER_OUT, COPY, RULES
} rule_t;
static const char *const RULE_NAMES[RULES] = {
    "tensors", "matmul", "grouped", "conv", "conv_backward", "attention", "attention_backward", "attention_inference",
    "gather", "scatter", "scatter_out", "copy",
};

typedef struct {
    char pattern[MAX_NAME];
    const klass_t *klass;
    rule_t rule;
    unsigned written;       /* tensors:  bit i: tensor argument i is read and written */
    int skipped;            /* matmul: tensors before the operands of the product (a bias) */
} operator_t;

static klass_t classes[MAX_CLASSES];
static operator_t operators[MAX_OPERATORS];
static int class_count, operator_count;
static char problem[160];

typedef struct {
    char name[MAX_NAME];
    const operator_t *found;    /* NULL: not known */
    int64_t calls;              /* of an operator that is not known */
} seen_t;
static seen_t seen[SLOTS];
static int seen_count;
static int unknown[SLOTS], unknown_count;

static operator_t other;        /* stands for what no line names */

void vn_cost_reset(void) {
    memset(&device, 0, sizeof device);
    memset(classes, 0, sizeof classes);
    memset(operators, 0, sizeof operators);
    memset(seen, 0, sizeof seen);
    class_count = operator_count = seen_count = unknown_count = 0;
    problem[0] = 0;
}

const char *vn_cost_problem(void) { return problem[0] ? problem : NULL; }

static void not_understood(const char *what, const char *text) {
    if (!problem[0]) snprintf(problem, sizeof problem, "%s: %.100s", what, text ? text : "");
}

static klass_t *class_named(const char *name) {
    for (int i = 0; i < class_count; i++)
        if (!strcmp(classes[i].name, name)) return &classes[i];
    return NULL;
}

static int number_of(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && isfinite(*value);
}

static char *next_field(char **rest) {
    char *field = strsep(rest, "\t");
    return field ? field : "";
}

static void load_value(char *rest) {
    char *key = next_field(&rest), *text = next_field(&rest);
    double value;
    if (!number_of(text, &value)) { not_understood("not a number", text); return; }
    for (size_t i = 0; i < sizeof DEVICE_KEYS / sizeof *DEVICE_KEYS; i++)
        if (!strcmp(DEVICE_KEYS[i].name, key)) {
            *(double *)((char *)&device + DEVICE_KEYS[i].at) = value;
            return;
        }
    not_understood("no such value", key);
}

static void load_class(char *rest) {
    char *name = next_field(&rest);
    klass_t *klass = class_named(name);
    if (!klass) {
        if (class_count == MAX_CLASSES || !*name || strlen(name) >= sizeof klass->name) {
            not_understood("no room for the class", name);
            return;
        }
        klass = &classes[class_count++];
        strcpy(klass->name, name);
    }
    while (rest) {
        char *text = next_field(&rest), *key = strsep(&text, "=");
        double value;
        size_t i = 0, count = sizeof CLASS_KEYS / sizeof *CLASS_KEYS;
        while (i < count && strcmp(CLASS_KEYS[i].name, key)) i++;
        if (i == count || !text || !number_of(text, &value)) { not_understood("class value", key); continue; }
        *(double *)((char *)klass + CLASS_KEYS[i].at) = value;
    }
}

static void load_operator(char *rest) {
    char *pattern = next_field(&rest), *name = next_field(&rest), *rule = next_field(&rest);
    char *written = next_field(&rest), *skipped = next_field(&rest);
    const klass_t *klass = class_named(name);
    int which = 0;
    while (which < RULES && strcmp(RULE_NAMES[which], rule)) which++;
    if (!klass || which == RULES || operator_count == MAX_OPERATORS || strlen(pattern) >= MAX_NAME) {
        not_understood("operator", pattern);
        return;
    }
    operator_t *entry = &operators[operator_count++];
    strcpy(entry->pattern, pattern);
    entry->klass = klass;
    entry->rule = (rule_t)which;
    for (; *written; written++)
        if (*written >= '0' && *written <= '9') entry->written |= 1u << (*written - '0');
    entry->skipped = atoi(skipped);
}

void vn_cost_load_line(char *line) {
    char *kind = next_field(&line);
    if (!line) not_understood("line", kind);
    else if (!strcmp(kind, "value")) load_value(line);
    else if (!strcmp(kind, "class")) load_class(line);
    else if (!strcmp(kind, "op")) load_operator(line);
    else not_understood("kind of line", kind);
}

double vn_cost_value(const char *key) {
    for (size_t i = 0; i < sizeof DEVICE_KEYS / sizeof *DEVICE_KEYS; i++)
        if (!strcmp(DEVICE_KEYS[i].name, key)) return *(double *)((char *)&device + DEVICE_KEYS[i].at);
    return NAN;
}

/* ---- from name to operator --------------------------------------------------------------------------------------- */

/* aclnnInplaceAdd -> Add, aclopAdd -> Add. */
static const char *plain_name(const char *op, int *is_in_place) {
    if (!strncmp(op, "aclnn", 5) || !strncmp(op, "aclop", 5)) op += 5;
    *is_in_place = !strncmp(op, "Inplace", 7);
    return *is_in_place ? op + 7 : op;
}

static const operator_t *search(const char *op) {
    int is_in_place;
    const char *name = plain_name(op, &is_in_place);
    for (int i = 0; i < operator_count; i++)
        if (!fnmatch(operators[i].pattern, name, 0)) return &operators[i];
    return NULL;
}

static const operator_t *find(const char *op) {
    uint64_t hash = 1469598103934665603ull;
    for (const char *c = op; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    unsigned at = (unsigned)hash % SLOTS;
    while (seen[at].name[0] && strcmp(seen[at].name, op)) at = (at + 1) % SLOTS;
    if (!seen[at].name[0]) {
        /* A name that cannot be kept is searched each time, and an unknown one is then not counted by name. */
        if (strlen(op) >= MAX_NAME || !*op || seen_count >= SLOTS / 4 * 3) return search(op);
        strcpy(seen[at].name, op);
        seen[at].found = search(op);
        seen_count++;
        if (!seen[at].found) unknown[unknown_count++] = (int)at;
    }
    if (!seen[at].found) seen[at].calls++;
    return seen[at].found;
}

int vn_cost_unknown_count(void) { return unknown_count; }

const char *vn_cost_unknown(int index, int64_t *calls) {
    if (index < 0 || index >= unknown_count) return NULL;
    if (calls) *calls = seen[unknown[index]].calls;
    return seen[unknown[index]].name;
}

/* ---- sizes of tensors -------------------------------------------------------------------------------------------- */

static double bytes_of(int32_t dtype) {
    switch (dtype) {                                            /* aclDataType */
    case 0: case 3: case 8: case 33: return 4;                  /* float, int32, uint32, complex32 */
    case 1: case 6: case 7: case 27: return 2;                  /* float16, int16, uint16, bf16 */
    case 9: case 10: case 11: case 16: return 8;                /* int64, uint64, double, complex64 */
    case 17: return 16;                                         /* complex128 */
    case 29: case 40: case 41: return 0.5;                      /* int4, fp4 */
    case 30: return 0.125;                                      /* uint1 */
    default: return 1;                                          /* int8, uint8, bool, eight-bit floats */
    }
}

/* Values that a tensor shows; those it repeats (stride 0) are in memory once. */
static double elements_shown(const vn_tensor *t) {
    double count = 1;
    for (int i = 0; i < t->rank; i++) count *= (double)t->shape[i];
    return count;
}

static double elements_held(const vn_tensor *t) {
    double count = 1;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] == 0) return 0;
        else if (t->stride[i] != 0) count *= (double)t->shape[i];
    return count;
}

static double tensor_bytes(const vn_tensor *t) { return elements_held(t) * bytes_of(t->dtype); }

/* Whether the elements lie one behind the other in the order of the shape; repeated dimensions do not count.
 * `matrix`: the last two dimensions may be swapped, as products allow. */
static int is_dense(const vn_tensor *t, int matrix) {
    int order[VN_MAX_RANK], count = 0;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] > 1 && t->stride[i] != 0) order[count++] = i;
    if (matrix && count > 1 && order[count - 2] == t->rank - 2 && order[count - 1] == t->rank - 1
        && t->stride[t->rank - 2] == 1) {
        int last = order[count - 1];
        order[count - 1] = order[count - 2];
        order[count - 2] = last;
    }
    int64_t expected = 1;
    for (int i = count - 1; i >= 0; i--) {
        if (t->stride[order[i]] != expected) return 0;
        expected *= t->shape[order[i]];
    }
    return 1;
}

static int holds_tensors(const vn_arg *a) { return (a->kind == 't' || a->kind == 'l') && a->count > 0; }

/* The first tensors of a call, those of lists one by one. */
static int operands_of(const vn_arg *args, int n, const vn_tensor **found) {
    int count = 0;
    for (int i = 0; i < n; i++)
        if (holds_tensors(&args[i]))
            for (int j = 0; j < args[i].count && count < MAX_OPERANDS; j++) found[count++] = &args[i].tensors[j];
    return count;
}

static const vn_tensor *last_tensor(const vn_arg *args, int n) {
    for (int i = n - 1; i >= 0; i--)
        if (holds_tensors(&args[i])) return &args[i].tensors[args[i].count - 1];
    return NULL;
}

static double all_bytes(const vn_arg *args, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (holds_tensors(&args[i]))
            for (int j = 0; j < args[i].count; j++) sum += tensor_bytes(&args[i].tensors[j]);
    return sum;
}

static double arg_bytes(const vn_arg *a) {
    double sum = 0;
    for (int j = 0; j < a->count; j++) sum += tensor_bytes(&a->tensors[j]);
    return sum;
}

static double arg_elements(const vn_arg *a) {
    double sum = 0;
    for (int j = 0; j < a->count; j++) sum += elements_shown(&a->tensors[j]);
    return sum;
}

static double largest_operand(const vn_arg *args, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        if (holds_tensors(&args[i])) most = fmax(most, arg_elements(&args[i]));
    return most;
}

/* ---- rules: work from arguments ---------------------------------------------------------------------------------- */

static void work_of_tensors(const operator_t *op, int is_in_place, const vn_arg *args, int n, vn_work *work) {
    unsigned written = op->written | (is_in_place ? 1u : 0u);
    int at = 0;
    work->bytes = all_bytes(args, n);
    work->elements = largest_operand(args, n);
    for (int i = 0; i < n; i++) {
        if (!holds_tensors(&args[i])) continue;
        if (at < 31 && (written >> at & 1)) work->bytes += arg_bytes(&args[i]);
        at++;
    }
    work->flops = op->klass->flops_per_element * work->elements;
}

/* Operands that do not lie densely are copied first; outputs come last and are left out. */
static void add_copies(const vn_arg *args, int n, int matrix, vn_work *work) {
    const vn_tensor *out = last_tensor(args, n);
    for (int i = 0; i < n; i++)
        if (args[i].kind == 't' && args[i].tensors != out && !is_dense(args[i].tensors, matrix))
            work->copied += 2 * tensor_bytes(args[i].tensors);
}

/* (m x k) by (k x n), summed over a batch. k follows from the three sizes, whatever operand is stored transposed:
 * |A| |B| / |C| = k^2 for each item of the batch. An operand that the batch shares makes it one large product. */
static int product_of(const vn_tensor *a, const vn_tensor *b, const vn_tensor *c, vn_work *work) {
    double size_a = elements_shown(a), size_b = elements_shown(b), size_c = elements_shown(c), batch = 1, k;
    for (int i = 0; i < c->rank - 2; i++) batch *= (double)c->shape[i];
    double batch_a = 1, batch_b = 1;
    for (int i = 0; i < a->rank - 2; i++) batch_a *= (double)a->shape[i];
    for (int i = 0; i < b->rank - 2; i++) batch_b *= (double)b->shape[i];
    if (batch < 1 || batch_a != batch || batch_b != batch) batch = 1;
    if (size_a < 1 || size_b < 1 || size_c < 1) return 0;
    k = round(sqrt(size_a / batch * (size_b / batch) / (size_c / batch)));
    if (k < 1 || k * k * (size_c / batch) != size_a / batch * (size_b / batch)) return 0;
    work->batch = batch;
    work->n = c->rank ? (double)c->shape[c->rank - 1] : 1;
    work->m = size_c / batch / work->n;
    work->k = k;
    return 1;
}

static int is_outer(const vn_tensor *t, int summed) {
    return t->rank >= 2 && t->shape[summed] > 1 && t->stride[summed] != 1;
}

static void work_of_matmul(const operator_t *op, const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *t[MAX_OPERANDS], *c = last_tensor(args, n);
    int count = operands_of(args, n, t), a = op->skipped, b = op->skipped + 1;
    work->bytes = all_bytes(args, n);
    if (count < op->skipped + 3 || !c) return;
    work->dtype = t[a]->dtype;
    if (!product_of(t[a], t[b], c, work)) {
        /* Packed or cut weights: the first operand still has the summed dimension last. */
        work->batch = 1;
        work->n = c->rank ? (double)c->shape[c->rank - 1] : 1;
        work->m = elements_shown(c) / fmax(work->n, 1);
        work->k = t[a]->rank ? (double)t[a]->shape[t[a]->rank - 1] : 1;
    }
    work->flops = 2 * work->batch * work->m * work->n * work->k;
    work->both_outer = is_outer(t[a], t[a]->rank - 1) && is_outer(t[b], t[b]->rank - 2);
    for (int i = a; i <= b; i++)
        if (!is_dense(t[i], 1)) work->copied += 2 * tensor_bytes(t[i]);
}

/* x, weights, ..., y: tokens of x are dealt to experts; how many each gets is not known here and taken as equal. */
static void work_of_grouped(const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *c = last_tensor(args, n);
    int x = -1, w = -1;
    work->bytes = all_bytes(args, n);
    for (int i = 0; i < n && w < 0; i++)
        if (holds_tensors(&args[i])) { if (x < 0) x = i; else w = i; }
    if (w < 0 || !c || c->rank < 1) return;
    double experts = args[w].count > 1 ? args[w].count
                   : args[w].tensors[0].rank > 2 ? (double)args[w].tensors[0].shape[0]
                   : c->rank > 2 ? (double)c->shape[0] : 1;
    double size = arg_elements(&args[x]), columns = (double)c->shape[c->rank - 1];
    work->dtype = args[x].tensors[0].dtype;
    work->batch = fmax(experts, 1);
    work->n = columns;
    work->flops = 2 * size * columns;
    if (c->rank > 2 && args[w].tensors[0].rank < 3) {
        /* Gradient of weights: (experts, m, n) from one x whose tokens are the summed dimension. */
        work->m = (double)c->shape[c->rank - 2];
        work->k = size / fmax(work->m * work->batch, 1);
        work->both_outer = 1;
        return;
    }
    const vn_tensor *first = &args[x].tensors[0];
    work->k = first->rank ? (double)first->shape[first->rank - 1] : 1;
    work->m = size / fmax(work->k * work->batch, 1);
}

static int same_shape(const vn_tensor *a, const vn_tensor *b) {
    if (a->rank != b->rank) return 0;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i]) return 0;
    return 1;
}

/* The convolution as products: (positions x taps) by (taps x output channels). */
static void work_of_conv(const operator_t *op, const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *t[MAX_OPERANDS], *x, *w, *y;
    int count = operands_of(args, n, t), is_transposed = 0, gradients = 1;
    work->bytes = all_bytes(args, n);
    if (count < 3) return;
    for (int i = 0; i < n; i++)
        if (args[i].kind == 'n') { is_transposed = args[i].number != 0; break; }
    if (op->rule == CONV_BACKWARD) {
        y = t[0]; x = t[1]; w = t[2];
        gradients = 0;
        for (int i = 3; i < count; i++) gradients += same_shape(t[i], x) || same_shape(t[i], w);
    } else {
        x = t[0]; w = t[1]; y = last_tensor(args, n);
    }
    if (w->rank < 3 || w->shape[0] < 1 || y->rank < 3 || x->rank < 3) return;
    work->dtype = x->dtype;
    work->n = (double)w->shape[0];
    work->k = elements_shown(w) / work->n;
    work->m = elements_shown(is_transposed ? x : y) / work->n;
    work->batch = fmax(gradients, 1);
    work->kernels = gradients > 1 ? gradients : 1;
    work->flops = 2 * gradients * work->m * work->n * work->k;
}

/* Pairs that attention computes: query i meets keys from i - before to i + after (a causal mask: after = 0). Half of
 * the square when causal, as the analyzers count, not (S + 1) / 2. */
static double pairs_in_window(double queries, double keys, double before, double after) {
    double pairs = queries * keys;
    if (after < keys) { double cut = fmin(keys - fmax(after, 0), fmin(queries, keys)); pairs -= cut * cut / 2; }
    if (before < queries) { double cut = fmin(queries - fmax(before, 0), fmin(queries, keys)); pairs -= cut * cut / 2; }
    return fmax(pairs, 0);
}

typedef struct { double batch, heads, length, width; int is_packed; } layout_t;

static int layout_of(const char *layout, const vn_tensor *t, double heads, layout_t *out) {
    const int64_t *s = t->shape;
    out->is_packed = 0;
    if (!strncmp(layout, "BNSD", 4) && t->rank == 4) *out = (layout_t){(double)s[0], (double)s[1], (double)s[2], (double)s[3], 0};
    else if (!strncmp(layout, "BSND", 4) && t->rank == 4) *out = (layout_t){(double)s[0], (double)s[2], (double)s[1], (double)s[3], 0};
    else if (!strncmp(layout, "BSH", 3) && t->rank == 3) *out = (layout_t){(double)s[0], heads, (double)s[1], (double)s[2] / fmax(heads, 1), 0};
    else if (!strncmp(layout, "SBH", 3) && t->rank == 3) *out = (layout_t){(double)s[1], heads, (double)s[0], (double)s[2] / fmax(heads, 1), 0};
    else if (!strncmp(layout, "TND", 3) && t->rank == 3) *out = (layout_t){1, (double)s[1], (double)s[0], (double)s[2], 1};
    else if (!strncmp(layout, "NTD", 3) && t->rank == 3) *out = (layout_t){1, (double)s[0], (double)s[1], (double)s[2], 1};
    else return 0;
    return 1;
}

/* Lengths of the sequences: ends in the packed layouts, lengths in the others. */
static double length_at(const vn_arg *a, int i, int is_cumulative) {
    return (double)(a->ints[i] - (is_cumulative && i ? a->ints[i - 1] : 0));
}

static void work_of_attention(const operator_t *op, const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *t[MAX_OPERANDS];
    int count = operands_of(args, n, t), at = -1, wholes = 0, after_layout = 0;
    double whole[8] = {0}, sparse = 0;
    work->bytes = all_bytes(args, n);
    if (count < 3) return;
    work->dtype = t[0]->dtype;
    for (int i = 0; i < n; i++) {
        if (args[i].kind == 'c' && args[i].text && at < 0) at = i;
        else if (args[i].kind == 'n' && at < 0 && wholes < 8) whole[wholes++] = args[i].number;
        else if (args[i].kind == 'n' && at >= 0 && ++after_layout == 2) sparse = args[i].number;
    }
    if (at < 0 || wholes < 1) return;
    /* Training: ..., preTokens, nextTokens, headNum, layout; inference: numHeads, preTokens, nextTokens, layout. */
    int is_inference = op->rule == ATTENTION_INFERENCE;
    double heads = is_inference ? whole[0] : whole[wholes - 1], before = INFINITY, after = INFINITY;
    if (wholes >= 3) {
        before = whole[is_inference ? 1 : wholes - 3];
        after = whole[is_inference ? 2 : wholes - 2];
    }
    layout_t q, k;
    if (!layout_of(args[at].text, t[0], heads, &q)) return;
    if (!layout_of(args[at].text, t[1], heads, &k)) k = q;
    if (is_inference && k.batch != q.batch && !q.is_packed) k.length = k.length * k.batch / fmax(q.batch, 1);
    /* Width of the values: some models have values narrower than keys. */
    layout_t v = q;
    if (!layout_of(args[at].text, t[2], heads, &v)) v.width = q.width;
    double width_v = strlen(args[at].text) >= 3 && (t[2]->rank == 4 || q.is_packed) ? v.width : q.width;
    int has_mask = 0;
    for (int i = 3; i < count; i++) has_mask |= t[i]->rank >= 2 && (t[i]->dtype == 12 || t[i]->dtype == 4);
    if (sparse == 2 || sparse == 3) { before = INFINITY; after = 0; }
    else if (sparse == 0 && !has_mask) before = after = INFINITY;
    else if (sparse == 1) before = after = INFINITY;
    const vn_arg *lengths[2] = {NULL, NULL};
    int found = 0;
    for (int i = 0; i < n && found < 2; i++)
        if (args[i].kind == 'i' && args[i].count > 0 && args[i].ints && (!found || args[i].count == lengths[0]->count))
            lengths[found++] = &args[i];
    double pairs = 0;
    if (found) {
        const vn_arg *keys = lengths[1] ? lengths[1] : lengths[0];
        for (int i = 0; i < lengths[0]->count; i++) {
            double one = found > 1 || q.is_packed ? length_at(lengths[0], i, q.is_packed) : q.length;
            pairs += pairs_in_window(one, length_at(keys, i, q.is_packed), before, after);
        }
        /* One length stands for every sequence of the batch. */
        if (!q.is_packed && lengths[0]->count == 1) pairs *= q.batch;
    } else {
        pairs = q.batch * pairs_in_window(q.length, k.length, before, after);
    }
    work->pairs = pairs * q.heads;
    work->flops = 2 * work->pairs * (q.width + width_v) * (op->rule == ATTENTION_BACKWARD ? 2.5 : 1);
}

static void work_of_gather(const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *out = last_tensor(args, n);
    int first = -1;
    for (int i = 0; i < n && first < 0; i++)
        if (holds_tensors(&args[i])) first = i;
    if (!out) return;
    /* As much is read as written, however large the source is; and the indices. */
    work->bytes = all_bytes(args, n) - arg_bytes(&args[first]) + tensor_bytes(out);
    if (out == &args[first].tensors[args[first].count - 1]) work->bytes = 2 * tensor_bytes(out);
    work->elements = elements_shown(out);
}

static void work_of_scatter(const vn_arg *args, int n, vn_work *work) {
    int first = -1;
    double most = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        if (!holds_tensors(&args[i])) continue;
        if (first < 0) { first = i; continue; }
        if (arg_bytes(&args[i]) > most) { most = arg_bytes(&args[i]); largest = arg_elements(&args[i]); }
    }
    if (first < 0) return;
    /* Indices and values are read, and values written to a part of the target. */
    work->bytes = all_bytes(args, n) - arg_bytes(&args[first]) + most;
    work->elements = largest;
}

const char *vn_cost_work(const char *name, const vn_arg *args, int n, vn_work *work) {
    const operator_t *op = find(name);
    int is_in_place;
    plain_name(name, &is_in_place);
    memset(work, 0, sizeof *work);
    work->kernels = 1;
    if (!op) {
        other.klass = class_named("other");
        op = &other;
    }
    if (!op->klass) return NULL;
    const klass_t *klass = op->klass;
    /* aclnnScatter makes a new tensor from the old one, aclnnInplaceScatter changes a part of it. */
    rule_t rule = op->rule != SCATTER_OUT ? op->rule : is_in_place ? SCATTER : TENSORS;
    switch (rule) {
    case MATMUL: work_of_matmul(op, args, n, work); break;
    case GROUPED: work_of_grouped(args, n, work); break;
    case CONV: case CONV_BACKWARD: work_of_conv(op, args, n, work); break;
    case ATTENTION: case ATTENTION_BACKWARD: case ATTENTION_INFERENCE: work_of_attention(op, args, n, work); break;
    case GATHER: work_of_gather(args, n, work); break;
    case SCATTER: work_of_scatter(args, n, work); break;
    case COPY: {
        const vn_tensor *t[MAX_OPERANDS];
        int count = operands_of(args, n, t);
        const klass_t *found = count < 2 ? NULL
            : t[0]->dtype != t[1]->dtype ? class_named("cast")
            : !is_dense(t[0], 0) || !is_dense(t[1], 0) ? class_named("transpose") : NULL;
        work->bytes = all_bytes(args, n);
        work->elements = largest_operand(args, n);
        if (found) klass = found;
        break;
    }
    default:
        work_of_tensors(op, is_in_place, args, n, work);
        add_copies(args, n, 0, work);
    }
    return klass->name;
}

/* ---- from work to time ------------------------------------------------------------------------------------------- */

static double blocks(double size, double block) { return ceil(size / block) * block; }

static double cube_peak(int32_t dtype) {
    double peak = dtype == 0 ? device.cube_fp32 : dtype == 27 ? device.cube_bf16
                : dtype == 2 || dtype == 4 || dtype == 29 ? device.cube_int8 : device.cube_fp16;
    return peak > 0 ? peak : device.cube_fp16;
}

/* Seconds of the busiest core at full rate. Output tiles are dealt to the cores, so the last round may be partly idle;
 * a core needs at least the time to read both edges of its tile from L2; with fewer tiles than cores the summed
 * dimension is split, down to pieces of split_k. */
static double busiest_core_s(const vn_work *w) {
    double cores = fmax(device.cube_cores, 1), rate = cube_peak(w->dtype) / cores, size = bytes_of(w->dtype);
    double k = blocks(w->k, size < 2 ? 32 / size : size > 2 ? 8 : BLOCK), best = INFINITY;
    const double shapes[4][2] = {
        {device.tile_m, device.tile_n}, {device.tile_n, device.tile_m}, {device.tile_m, device.tile_m},
        {device.tile_m / 2, device.tile_n},
    };
    double l2 = device.l2_core_bytes_per_cycle * device.frequency_hz;
    for (int i = 0; i < 4; i++) {
        double m = fmin(shapes[i][0], blocks(w->m, BLOCK)), n = fmin(shapes[i][1], blocks(w->n, BLOCK));
        if (m < 1 || n < 1) continue;
        double tiles = w->batch * ceil(w->m / shapes[i][0]) * ceil(w->n / shapes[i][1]);
        double pieces = fmin(floor(cores / tiles), k / fmax(device.split_k, BLOCK));
        double depth = k / fmax(pieces, 1), one = 2 * m * n * depth / rate;
        if (l2 > 0) one = fmax(one, (m + n) * depth * size / l2);
        best = fmin(best, ceil(tiles / cores) * one);
    }
    return isfinite(best) ? best : 0;
}

static double memory_ns(const klass_t *klass, double bytes) {
    if (klass->bytes_per_s > 0) return bytes / klass->bytes_per_s * 1e9;
    if (!(device.hbm_bytes_per_s > 0) || !(klass->hbm_efficiency > 0)) return 0;
    /* What fits in L2 may be there already, or be written back later. */
    double cached = klass->l2_efficiency > 0 ? fmin(bytes, device.l2_bytes) : 0;
    double seconds = (bytes - cached) / klass->hbm_efficiency;
    if (cached > 0) seconds += cached / klass->l2_efficiency;
    return seconds / device.hbm_bytes_per_s * 1e9;
}

static double time_of(const klass_t *klass, const vn_work *w, vn_cost *out) {
    double efficiency = w->both_outer && klass->outer_efficiency > 0 ? klass->outer_efficiency : klass->cube_efficiency;
    if (w->dtype == 0 && klass->fp32_efficiency > 0) efficiency = klass->fp32_efficiency;
    if (efficiency > 0 && w->m > 0 && w->n > 0 && w->k > 0) out->cube_ns = busiest_core_s(w) / efficiency * 1e9;
    else if (efficiency > 0 && w->flops > 0 && cube_peak(w->dtype) > 0)
        out->cube_ns = w->flops / cube_peak(w->dtype) / efficiency * 1e9;
    double lanes = w->dtype == 1 && device.lanes_fp16 > 0 ? device.lanes_fp16 : device.lanes_fp32;
    if (device.lanes_fp32 > 0)
        out->vector_ns = (w->pairs * klass->cycles_per_pair / device.lanes_fp32
                          + w->elements * klass->cycles_per_element / lanes) * 1e9;
    out->memory_ns = memory_ns(klass, w->bytes);
    out->fixed_ns = klass->fixed_ns * (w->kernels > 1 ? w->kernels : 1);
    if (w->copied > 0) {
        const klass_t *moved = class_named("transpose");
        if (moved) {
            out->memory_ns += memory_ns(moved, w->copied);
            out->fixed_ns += moved->fixed_ns;
        }
    }
    out->flops = w->flops;
    out->bytes = w->bytes;
    out->klass = klass->name;
    out->ns = out->fixed_ns + fmax(out->cube_ns, fmax(out->vector_ns, out->memory_ns));
    return out->ns;
}

double vn_cost_time(const char *name, const vn_work *work, vn_cost *out) {
    const klass_t *klass = class_named(name);
    memset(out, 0, sizeof *out);
    return klass ? time_of(klass, work, out) : 0;
}

double vn_cost_kernel(const char *op, const vn_arg *args, int n, vn_cost *out) {
    vn_work work;
    const char *name = vn_cost_work(op, args, n, &work);
    return name ? vn_cost_time(name, &work, out) : 0;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static double at_rate(double fixed_ns, double bytes, double bytes_per_s) {
    return fixed_ns + (bytes_per_s > 0 ? bytes / bytes_per_s * 1e9 : 0);
}

double vn_cost_copy(int kind, double bytes) {
    switch (kind) {
    case 0: return at_rate(device.h2h_fixed_ns, bytes, device.h2h_bytes_per_s);
    case 1: return at_rate(device.h2d_fixed_ns, bytes, device.h2d_bytes_per_s);
    case 2: return at_rate(device.d2h_fixed_ns, bytes, device.d2h_bytes_per_s);
    case 3: return at_rate(device.d2d_fixed_ns, bytes, device.d2d_bytes_per_s);
    default: return at_rate(device.memset_fixed_ns, bytes, device.memset_bytes_per_s);
    }
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* Ranks in a node and nodes of a group. */
static void places_of(int ranks, int ranks_per_node, double *inside, double *nodes) {
    *inside = ranks_per_node < 1 ? 1 : ranks_per_node < ranks ? ranks_per_node : ranks;
    *nodes = ceil(ranks / *inside);
}

/* One phase of a full mesh: each rank exchanges `bytes` with each of `peers` at once. Behind a switch they share. */
static double mesh_ns(double bytes, double peers, double efficiency) {
    if (peers < 1) return 0;
    double rate = device.peer_bytes_per_s * efficiency, load = device.is_switched > 0 ? bytes * peers : bytes;
    return device.peer_step_ns + (rate > 0 ? load / rate * 1e9 : 0);
}

/* `steps` rounds between nodes in which a card sends `bytes` in all. */
static double node_ns(double bytes, double steps) {
    double rate = device.node_bytes_per_s * device.node_efficiency;
    return steps * device.node_step_ns + (rate > 0 ? bytes / rate * 1e9 : 0);
}

static int is_sent(const char *op) { return !strcmp(op, "Send") || !strcmp(op, "Recv") || !strcmp(op, "BatchSendRecv"); }

double vn_cost_collective(const char *op, double bytes, int ranks, int ranks_per_node, vn_cost *out) {
    double inside, nodes, phases = 0, fixed = device.collective_fixed_ns;
    places_of(ranks < 1 ? 1 : ranks, ranks_per_node, &inside, &nodes);
    /* Non-uniform hierarchical ring: log2 rounds; for powers of two the same as halving and doubling. */
    double rounds = nodes > 1 ? ceil(log2(nodes)) : 0, peers = inside - 1, share = (nodes - 1) / nodes;
    out->klass = "communication";
    out->bytes = bytes;
    if (ranks < 2 && !is_sent(op)) {
        out->ns = out->fixed_ns = device.single_rank_ns;
        return out->ns;
    }
    if (!strcmp(op, "AllReduce") || !strcmp(op, "Barrier")) {
        double part = bytes / inside;
        phases = 2 * mesh_ns(part, peers, device.all_reduce_efficiency);
        if (nodes > 1) phases += node_ns(2 * share * part, 2 * rounds);
    } else if (!strcmp(op, "AllGather")) {
        fixed = device.gather_fixed_ns;
        phases = mesh_ns(bytes * nodes, peers, device.all_gather_efficiency);
        if (nodes > 1) phases += node_ns((nodes - 1) * bytes, rounds);
    } else if (!strcmp(op, "ReduceScatter")) {
        fixed = device.gather_fixed_ns;
        phases = mesh_ns(bytes * nodes, peers, device.reduce_scatter_efficiency);
        if (nodes > 1) phases += node_ns((nodes - 1) * bytes, rounds);
    } else if (!strcmp(op, "Broadcast") || !strcmp(op, "Reduce")) {
        /* All of it over each link, or parts of it that the receivers then exchange: whichever is shorter. */
        double whole = mesh_ns(bytes, peers, device.send_efficiency);
        double parts = 2 * mesh_ns(bytes / inside, peers, device.all_gather_efficiency);
        phases = fmin(whole, parts);
        if (nodes > 1) phases += fmin(node_ns(rounds * bytes, rounds), node_ns(2 * share * bytes / inside, 2 * rounds));
    } else if (!strcmp(op, "Scatter")) {
        phases = mesh_ns(bytes, peers, device.send_efficiency);
        if (nodes > 1) phases += node_ns((ranks - inside) * bytes, nodes - 1);
    } else if (!strncmp(op, "AlltoAll", 8)) {
        double each = bytes / ranks;
        phases = mesh_ns(each, peers, device.send_efficiency);
        /* Links inside and between nodes work at the same time. */
        if (nodes > 1) phases = fmax(phases, node_ns((ranks - inside) * each, nodes - 1));
    } else {
        fixed = device.send_fixed_ns;
        phases = ranks_per_node >= 2 || ranks < 2 ? mesh_ns(bytes, 1, device.send_efficiency) : node_ns(bytes, 1);
    }
    out->fixed_ns = fixed;
    out->memory_ns = phases;
    out->ns = fixed + phases;
    return out->ns;
}

const char *vn_cost_algorithm(const char *op, int ranks, int ranks_per_node) {
    double inside, nodes;
    if (ranks < 2) return "NULL";
    places_of(ranks, ranks_per_node, &inside, &nodes);
    if (is_sent(op)) return "NULL";
    if (nodes < 2) return "MESH";
    if (!strncmp(op, "AlltoAll", 8)) return inside > 1 ? "MESH-PAIRWISE" : "PAIRWISE";
    return inside > 1 ? "MESH-NHR" : "NHR";
}
