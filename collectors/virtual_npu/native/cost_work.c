/* Work of a call from its arguments: products, bytes, elements. */
#include "cost_table.h"

#include <math.h>
#include <string.h>

enum { MAX_OPERANDS = 24 };     /* tensors of a call that rules other than sums look at */

/* ---- sizes of tensors -------------------------------------------------------------------------------------------- */

double vn_cost_bytes_of(int32_t dtype) {
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

static double tensor_bytes(const vn_tensor *t) { return elements_held(t) * vn_cost_bytes_of(t->dtype); }

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

double vn_cost_blocks(double size, double block) { return ceil(size / block) * block; }

static double channel_block(int32_t dtype) { return fmax(floor(32 / fmax(vn_cost_bytes_of(dtype), 1)), 1); }

/* ---- rules: work from arguments ---------------------------------------------------------------------------------- */

static void work_of_tensors(const vn_cost_operator *op, int is_in_place, const vn_arg *args, int n, vn_work *work) {
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

static void work_of_matmul(const vn_cost_operator *op, const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *t[MAX_OPERANDS], *c = last_tensor(args, n);
    int count = operands_of(args, n, t), a = op->skipped, b = op->skipped + 1;
    work->bytes = all_bytes(args, n);
    if (count < op->skipped + 3 || !c) return;
    work->written = tensor_bytes(c);
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
static void work_of_conv(const vn_cost_operator *op, const vn_arg *args, int n, vn_work *work) {
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
    double channels = (double)w->shape[1], taps = elements_shown(w) / (double)w->shape[0] / fmax(channels, 1);
    work->n = (double)w->shape[0];
    work->m = elements_shown(is_transposed ? x : y) / work->n;
    work->flops = 2 * gradients * work->m * work->n * channels * taps;
    /* Channels are stored in blocks of 32 bytes; the cube multiplies the padding too. */
    work->k = taps * vn_cost_blocks(channels, channel_block(x->dtype));
    work->batch = fmax(gradients, 1);
    work->kernels = gradients > 1 ? gradients : 1;
}

/* Pairs that attention computes: query i meets keys from i - before to i + after (a causal mask: after = 0). Half of
 * the square when causal, as the analyzers count, not (S + 1) / 2. */
static double pairs_in_window(double queries, double keys, double before, double after) {
    double shorter = fmin(queries, keys);
    double later = fmin(fmax(keys - fmax(after, 0), 0), shorter);
    double earlier = fmin(fmax(queries - fmax(before, 0), 0), shorter);
    return fmax(queries * keys - (later * later + earlier * earlier) / 2, 0);
}

typedef struct { double batch, heads, length, width; int is_packed; } layout_t;

/* Sizes of queries, keys or values by the name of their layout; 0 when the tensor does not fit it. Where heads and
 * width share a dimension (H), `heads` are given. */
static int layout_of(const char *layout, const vn_tensor *t, double heads, layout_t *out) {
    static const char *const NAMES[] = {"BNSD", "BSND", "BSH", "SBH", "TND", "NTD"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const char *name = NAMES[i];
        /* Inference may name the layout of the result behind that of the queries: BNSD_BSND. */
        if (strncmp(layout, name, strlen(name)) || t->rank != (int)strlen(name)) continue;
        *out = (layout_t){1, heads, 1, 0, 0};
        for (int at = 0; at < t->rank; at++) {
            double size = (double)t->shape[at];
            switch (name[at]) {
            case 'B': out->batch = size; break;
            case 'N': out->heads = size; break;
            case 'S': out->length = size; break;
            case 'T': out->length = size; out->is_packed = 1; break;
            case 'D': out->width = size; break;
            default: out->width = size / fmax(heads, 1);
            }
        }
        return 1;
    }
    return 0;
}

/* Lengths of the sequences: ends in the packed layouts, lengths in the others. */
static double length_at(const vn_arg *a, int i, int is_cumulative) {
    return (double)(a->ints[i] - (is_cumulative && i ? a->ints[i - 1] : 0));
}

static void work_of_attention(const vn_cost_operator *op, const vn_arg *args, int n, vn_work *work) {
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
    /* Keys may be a pool of blocks: then what shows is not sequences by lengths. */
    double held = k.batch * k.length;
    if (is_inference && k.batch != q.batch && !q.is_packed) k.length = held / fmax(q.batch, 1);
    /* Some models have values narrower than keys; where heads and width share a dimension they are taken as equal. */
    layout_t v;
    double width_v = !strchr(args[at].text, 'H') && layout_of(args[at].text, t[2], heads, &v) ? v.width : q.width;
    /* After query, key, value (backward: and the gradient): position bias, dropout mask, padding mask, mask; in
     * inference: position bias, mask. */
    int first = op->rule == ATTENTION_BACKWARD ? 4 : 3, mask = first + (is_inference ? 1 : 3);
    if (mask >= n) return;
    int has_mask = holds_tensors(&args[mask]) && elements_shown(args[mask].tensors) > 0;
    for (int i = first; !is_inference && i < first + 2; i++)
        work->extras += holds_tensors(&args[i]) && elements_shown(args[i].tensors) > 0;
    if (sparse == 2 || sparse == 3) { before = INFINITY; after = 0; }
    else if (sparse == 0 && !has_mask) before = after = INFINITY;
    else if (sparse == 1) before = after = INFINITY;
    /* Elsewhere arrays of integers are something else, such as where a slice of the sequence starts. */
    const vn_arg *lengths[2] = {NULL, NULL};
    int found = 0;
    for (int i = 0; (q.is_packed || is_inference) && i < n && found < 2; i++)
        if (args[i].kind == 'i' && args[i].count > 0 && args[i].ints && (!found || args[i].count == lengths[0]->count))
            lengths[found++] = &args[i];
    double pairs = 0;
    if (found) {
        const vn_arg *keys = lengths[1] ? lengths[1] : lengths[0];
        double tokens = 0, times = !q.is_packed && keys->count == 1 ? q.batch : 1;     /* one length stands for all */
        for (int i = 0; i < keys->count; i++) {
            double one = found > 1 || q.is_packed ? length_at(lengths[0], i, q.is_packed) : q.length;
            double other = length_at(keys, i, q.is_packed);
            pairs += times * pairs_in_window(one, other, before, after);
            tokens += times * other;
        }
        /* Keys and values may be the pool of all sequences: only those of these ones are read. */
        if (is_inference && held > 0)
            work->bytes = tensor_bytes(t[0]) + tensor_bytes(last_tensor(args, n))
                        + fmin(tokens / held, 1) * (tensor_bytes(t[1]) + tensor_bytes(t[2]));
    } else {
        pairs = q.batch * pairs_in_window(q.length, k.length, before, after);
    }
    work->pairs = pairs * q.heads;
    work->flops = 2 * work->pairs * (q.width + width_v) * (op->rule == ATTENTION_BACKWARD ? 2.5 : 1);
}

/* source, indices, ..., out: as much is read as written, however large the source is; and the indices. */
static void work_of_gather(const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *out = last_tensor(args, n);
    double moved = out ? 2 * tensor_bytes(out) : 0;
    int at = 0;
    work->bytes = moved;
    for (int i = 0; i < n; i++) {
        if (!holds_tensors(&args[i])) continue;
        if (at++ == 0 || &args[i].tensors[args[i].count - 1] == out) continue;
        work->bytes += arg_bytes(&args[i]);
        for (int j = 0; j < args[i].count; j++)
            work->elements = fmax(work->elements, elements_shown(&args[i].tensors[j]));
    }
}

/* target, indices and values in any order: indices and values are read, and values written to a part of the target. */
static void work_of_scatter(const vn_arg *args, int n, vn_work *work) {
    int at = 0;
    double values = 0;
    for (int i = 0; i < n; i++) {
        if (!holds_tensors(&args[i]) || at++ == 0) continue;
        work->bytes += arg_bytes(&args[i]);
        values = fmax(values, arg_bytes(&args[i]));
        for (int j = 0; j < args[i].count; j++)
            if (args[i].tensors[j].dtype == 3 || args[i].tensors[j].dtype == 9)
                work->elements = fmax(work->elements, elements_shown(&args[i].tensors[j]));
    }
    work->bytes += values;
}

/* gradient, indices, out: out is cleared, then rows of it are read and written. */
static void work_of_scatter_grad(const vn_arg *args, int n, vn_work *work) {
    const vn_tensor *t[MAX_OPERANDS];
    int count = operands_of(args, n, t);
    work->bytes = all_bytes(args, n);
    if (count < 3) return;
    work->bytes += 2 * tensor_bytes(t[0]);
    work->elements = elements_shown(t[1]);
    work->kernels = 2;
}

const char *vn_cost_work(const char *name, const vn_arg *args, int n, vn_work *work) {
    static vn_cost_operator other;  /* stands for what no line names */
    int is_in_place;
    const vn_cost_operator *op = vn_cost_find(name, &is_in_place);
    memset(work, 0, sizeof *work);
    work->kernels = 1;
    if (!op) {
        other.klass = vn_cost_class_named("other");
        op = &other;
    }
    if (!op->klass) return NULL;
    const vn_cost_class *klass = op->klass;
    /* aclnnScatter makes a new tensor from the old one, aclnnInplaceScatter changes a part of it. */
    vn_cost_rule rule = op->rule != SCATTER_OUT ? op->rule : is_in_place ? SCATTER : TENSORS;
    switch (rule) {
    case MATMUL: work_of_matmul(op, args, n, work); break;
    case GROUPED: work_of_grouped(args, n, work); break;
    case CONV: case CONV_BACKWARD: work_of_conv(op, args, n, work); break;
    case ATTENTION: case ATTENTION_BACKWARD: case ATTENTION_INFERENCE: work_of_attention(op, args, n, work); break;
    case GATHER: work_of_gather(args, n, work); break;
    case SCATTER: work_of_scatter(args, n, work); break;
    case SCATTER_GRAD: work_of_scatter_grad(args, n, work); break;
    case COPY: {
        const vn_tensor *t[MAX_OPERANDS];
        int count = operands_of(args, n, t);
        const vn_cost_class *found = count < 2 ? NULL
            : t[0]->dtype != t[1]->dtype ? vn_cost_class_named("cast")
            : !is_dense(t[0], 0) || !is_dense(t[1], 0) ? vn_cost_class_named("transpose") : NULL;
        work->bytes = all_bytes(args, n);
        work->elements = largest_operand(args, n);
        if (found) klass = found;
        break;
    }
    default:
        work_of_tensors(op, is_in_place, args, n, work);
        add_copies(args, n, 0, work);
        if (op->rule == SCATTER_OUT && n > 0) {
            /* The target is copied as a whole, but time by element is by index: those of the others, without out. */
            vn_work put;
            memset(&put, 0, sizeof put);
            work_of_scatter(args, n - 1, &put);
            work->elements = put.elements;
        }
    }
    return klass->name;
}
