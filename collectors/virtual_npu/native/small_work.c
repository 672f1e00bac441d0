/* The few kernels that are really computed, and only on small tensors: copies, casts, fills, padding, joining,
 * comparing, and adding and multiplying whole numbers.
 *
 * Everything else computes nothing. But sizes, flags and pickled objects travel through exactly these operators on
 * their way into and out of collectives (torch.distributed's object collectives pad, gather, copy, compare and add
 * up), and programs steer by them.
 *
 * Small results of all other operators are set to zero: memory that the allocator gives out again may hold what was
 * copied there before, and a loss read back must be 0 and not some old number, perhaps not even a finite one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { MAX_ELEMENTS = 8192, MAX_ZEROED = 1024, MAX_INPUTS = 16 };

typedef struct {
    char *data;
    vn_tensor tensor;
    int64_t count;
} view;

typedef enum {
    COPY, FILL, PAD, JOIN, SUM, ADD, SUBTRACT, MULTIPLY, GREATER, LESS, GREATER_EQUAL, LESS_EQUAL, EQUAL, NOT_EQUAL,
} work_kind;

struct vn_small_work {
    work_kind kind;
    view into;
    int input_count;
    view inputs[MAX_INPUTS];
    double number;                          /* FILL, PAD; right side where that is a scalar */
    int64_t factor;                         /* ADD, SUBTRACT: of the right side */
    int dimension;                          /* JOIN */
    int64_t before[VN_MAX_RANK];            /* PAD */
    bool is_summed[VN_MAX_RANK];            /* SUM: dimensions of the input */
};

/* ---- values: whole numbers as int64, the others as double ---- */

typedef struct { bool is_real; int64_t whole; double real; } value;

enum { FLOAT = 0, HALF = 1, INT8 = 2, INT32 = 3, UINT8 = 4, INT16 = 6, INT64 = 9, DOUBLE = 11, BOOL = 12, BRAIN = 27 };

static bool is_known(int32_t dtype)
{
    switch (dtype) {
    case FLOAT: case HALF: case INT8: case INT32: case UINT8: case INT16: case INT64: case DOUBLE: case BOOL:
    case BRAIN: return true;
    default: return false;
    }
}

static value load(const char *at, int32_t dtype)
{
    int8_t byte;
    int16_t word;
    int32_t wide;
    int64_t whole = 0;
    float single;
    double real = 0;
    bool is_real = dtype == FLOAT || dtype == HALF || dtype == DOUBLE || dtype == BRAIN;
    switch (dtype) {
    case FLOAT: memcpy(&single, at, 4); real = single; break;
    case DOUBLE: memcpy(&real, at, 8); break;
    case HALF: case BRAIN: real = vn_real_at(at, dtype == HALF ? VN_HCCL_FP16 : VN_HCCL_BF16); break;
    case INT8: memcpy(&byte, at, 1); whole = byte; break;
    case UINT8: whole = (unsigned char)*at; break;
    case BOOL: whole = *at != 0; break;
    case INT16: memcpy(&word, at, 2); whole = word; break;
    case INT32: memcpy(&wide, at, 4); whole = wide; break;
    default: memcpy(&whole, at, 8);
    }
    return (value){is_real, whole, is_real ? real : (double)whole};
}

static void store(char *at, int32_t dtype, value from)
{
    /* Casting a real number that no 64-bit integer holds is undefined in C; the device saturates. */
    int64_t whole = !from.is_real ? from.whole : !(fabs(from.real) < 9e18) ? 0 : (int64_t)from.real;
    float single = (float)from.real;
    switch (dtype) {
    case FLOAT: memcpy(at, &single, 4); break;
    case DOUBLE: memcpy(at, &from.real, 8); break;
    case HALF: case BRAIN: vn_put_real(at, dtype == HALF ? VN_HCCL_FP16 : VN_HCCL_BF16, from.real); break;
    case BOOL: *at = from.is_real ? from.real != 0 : from.whole != 0; break;
    default: memcpy(at, &whole, vn_element_bits(dtype) / 8);
    }
}

static bool holds(work_kind kind, value a, value b)
{
    if (!a.is_real && !b.is_real) {
        int order = (a.whole > b.whole) - (a.whole < b.whole);
        return kind == GREATER ? order > 0 : kind == LESS ? order < 0 : kind == GREATER_EQUAL ? order >= 0
               : kind == LESS_EQUAL ? order <= 0 : kind == EQUAL ? order == 0 : order != 0;
    }
    return kind == GREATER ? a.real > b.real : kind == LESS ? a.real < b.real : kind == GREATER_EQUAL ? a.real >= b.real
           : kind == LESS_EQUAL ? a.real <= b.real : kind == EQUAL ? a.real == b.real : a.real != b.real;
}

/* ---- positions ---- */

/* Address of the element with the given index of `shape`, in a view that may be smaller in leading dimensions
 * (broadcast). */
static char *address(const view *of, const int64_t *index, int rank)
{
    int64_t offset = 0;
    for (int i = 0; i < of->tensor.rank; i++) {
        int64_t at = index[rank - of->tensor.rank + i];
        offset += (of->tensor.shape[i] == 1 ? 0 : at) * of->tensor.stride[i];
    }
    return of->data + offset * (int64_t)(vn_element_bits(of->tensor.dtype) / 8);
}

static void index_of(int64_t number, const vn_tensor *shape, int64_t *index)
{
    for (int i = shape->rank; i-- > 0;) {
        index[i] = number % shape->shape[i];
        number /= shape->shape[i];
    }
}

static bool can_broadcast(const vn_tensor *from, const vn_tensor *to)
{
    if (from->rank > to->rank)
        return false;
    for (int i = 0; i < from->rank; i++) {
        int64_t size = from->shape[i];
        if (size != 1 && size != to->shape[to->rank - from->rank + i])
            return false;
    }
    return true;
}

/* ---- preparing ---- */

static bool look(const vn_handle *handle, view *into)
{
    if (!handle || handle->kind != VN_TENSOR || !handle->data || !is_known(handle->tensor.dtype))
        return false;
    int64_t count = 1;
    for (int i = 0; i < handle->tensor.rank; i++)
        count *= handle->tensor.shape[i];
    *into = (view){handle->data, handle->tensor, count};
    return count > 0 && count <= MAX_ELEMENTS;
}

static bool prepare_pad(struct vn_small_work *work, const vn_arg *args)
{
    const vn_tensor *from = &work->inputs[0].tensor, *to = &work->into.tensor;
    if (args[1].kind != 'i' || from->rank != to->rank || args[1].count % 2 || args[1].count / 2 > to->rank
        || from->dtype != to->dtype)
        return false;
    /* Pairs of (before, after), the last dimension first. */
    for (int i = 0; i < args[1].count / 2; i++)
        work->before[to->rank - 1 - i] = args[1].ints[2 * i];
    work->number = args[2].kind == 's' ? args[2].number : 0;
    return true;
}

static bool prepare_join(struct vn_small_work *work, const vn_arg *args, vn_handle *const *handles)
{
    const vn_handle *list = handles[0];
    const vn_tensor *to = &work->into.tensor;
    if (!list || list->kind != VN_TENSOR_LIST || list->count > MAX_INPUTS || args[1].kind != 'n')
        return false;
    work->dimension = (int)(*args[1].ints < 0 ? *args[1].ints + to->rank : *args[1].ints);
    if (work->dimension < 0 || work->dimension >= to->rank)
        return false;
    int64_t joined = 0;
    for (int i = 0; i < list->count; i++) {
        view *one = &work->inputs[work->input_count];
        const vn_handle *item = vn_handle_find_locked(list->items[i]);
        if (!look(item, one) || one->tensor.rank != to->rank || one->tensor.dtype != to->dtype)
            return false;
        joined += one->tensor.shape[work->dimension];
        work->input_count++;
    }
    return joined == to->shape[work->dimension];
}

static bool is_whole(const view *of)
{
    return of->tensor.dtype != FLOAT && of->tensor.dtype != DOUBLE && of->tensor.dtype != HALF
           && of->tensor.dtype != BRAIN;
}

/* Only whole numbers: sizes are added up; a sum of losses is as unknown as the losses. */
static bool prepare_sum(struct vn_small_work *work, const vn_arg *args)
{
    const vn_tensor *from = &work->inputs[0].tensor;
    if (args[1].kind != 'i' || !is_whole(&work->inputs[0]))
        return false;
    int summed = 0;
    for (int i = 0; i < args[1].count; i++) {
        int64_t dimension = args[1].ints[i] < 0 ? args[1].ints[i] + from->rank : args[1].ints[i];
        if (dimension < 0 || dimension >= from->rank)
            return false;
        work->is_summed[dimension] = true;
    }
    for (int i = 0; i < from->rank; i++)
        summed += work->is_summed[i] = work->is_summed[i] || !args[1].count;
    return work->into.tensor.rank == from->rank || work->into.tensor.rank == from->rank - summed;
}

static const struct { const char *name; work_kind kind; const char *kinds; } table[] = {
    {"aclnnInplaceCopy", COPY, "tt"}, {"aclnnCast", COPY, "tmt"}, {"aclnnInplaceZero", FILL, "t"},
    {"aclnnInplaceOne", FILL, "t"}, {"aclnnInplaceFillScalar", FILL, "ts"}, {"aclnnConstantPadNd", PAD, "tist"},
    {"aclnnCat", JOIN, "lnt"}, {"aclnnReduceSum", SUM, "tiymt"}, {"aclnnGtTensor", GREATER, "ttt"},
    {"aclnnLtTensor", LESS, "ttt"},
    {"aclnnGeTensor", GREATER_EQUAL, "ttt"}, {"aclnnLeTensor", LESS_EQUAL, "ttt"}, {"aclnnEqTensor", EQUAL, "ttt"},
    {"aclnnNeTensor", NOT_EQUAL, "ttt"}, {"aclnnGtScalar", GREATER, "tst"}, {"aclnnLtScalar", LESS, "tst"},
    {"aclnnGeScalar", GREATER_EQUAL, "tst"}, {"aclnnLeScalar", LESS_EQUAL, "tst"}, {"aclnnEqScalar", EQUAL, "tst"},
    {"aclnnNeScalar", NOT_EQUAL, "tst"}, {"aclnnAdd", ADD, "ttst"}, {"aclnnAdds", ADD, "tsst"},
    {"aclnnSub", SUBTRACT, "ttst"}, {"aclnnSubs", SUBTRACT, "tsst"}, {"aclnnMul", MULTIPLY, "ttt"},
    {"aclnnMuls", MULTIPLY, "tst"}, {"aclnnInplaceAdd", ADD, "tts"}, {"aclnnInplaceAdds", ADD, "tss"},
};

/* Two sides, the right one a tensor or a scalar. */
static bool prepare_two(struct vn_small_work *work, const vn_arg *args, vn_handle *const *handles, int result)
{
    work->input_count = args[1].kind == 't' ? 2 : 1;
    work->number = args[1].kind == 's' ? args[1].number : 0;
    if (!look(handles[result], &work->into))
        return false;
    for (int i = 0; i < work->input_count; i++)
        if (!look(handles[i], &work->inputs[i]) || !can_broadcast(&work->inputs[i].tensor, &work->into.tensor))
            return false;
    return args[1].kind == 't' || args[1].kind == 's';
}

static bool prepare(struct vn_small_work *work, const char *name, const vn_arg *args, vn_handle *const *handles,
                    int count)
{
    int last = count - 1;
    switch (work->kind) {
    case COPY:      /* InplaceCopy(into, from), Cast(from, type, into) */
        work->input_count = 1;
        return look(handles[last == 1 ? 0 : 2], &work->into) && look(handles[last == 1 ? 1 : 0], &work->inputs[0])
               && can_broadcast(&work->inputs[0].tensor, &work->into.tensor);
    case FILL:
        work->number = last == 1 ? args[1].number : !strcmp(name, "aclnnInplaceOne");
        return look(handles[0], &work->into);
    case PAD:
        work->input_count = 1;
        return look(handles[last], &work->into) && look(handles[0], &work->inputs[0]) && prepare_pad(work, args);
    case JOIN:
        return look(handles[last], &work->into) && prepare_join(work, args, handles);
    case SUM:
        work->input_count = 1;
        return look(handles[last], &work->into) && look(handles[0], &work->inputs[0]) && prepare_sum(work, args);
    case ADD: case SUBTRACT: case MULTIPLY:
        work->factor = work->kind == MULTIPLY ? 1 : args[2].kind == 's' ? (int64_t)args[2].number : 0;
        last = strstr(name, "Inplace") ? 0 : last;
        return prepare_two(work, args, handles, last) && is_whole(&work->into) && is_whole(&work->inputs[0])
               && (work->input_count == 1 ? args[1].dtype != FLOAT && args[1].dtype != DOUBLE
                                          : is_whole(&work->inputs[1]));
    default:
        return prepare_two(work, args, handles, last);
    }
}

/* Operators change one of their arguments in place; their last tensor is an input then. */
static bool is_in_place(const char *name)
{
    static const char *const parts[] = {"Inplace", "Foreach", "IndexPut", "Apply", "Renorm", "Update", "Scatter",
                                        "Fused", "PutLike", "Grouped"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

/* Results of the operators that have several and whose values programs read. */
static int results_of(const char *name)
{
    static const struct { const char *name; int results; } several[] = {
        {"aclnnCrossEntropyLoss", 4}, {"aclnnNLLLoss", 2}, {"aclnnNLLLoss2d", 2}, {"aclnnMaxDim", 2},
        {"aclnnMinDim", 2}, {"aclnnTopk", 2}, {"aclnnSort", 2}, {"aclnnMedianDim", 2}, {"aclnnKthvalue", 2},
        {"aclnnVarMean", 2}, {"aclnnStdMeanCorrection", 2}, {"aclnnUnique2", 3}, {"aclnnAminmaxAll", 2},
    };
    for (size_t i = 0; i < sizeof several / sizeof *several; i++)
        if (!strcmp(several[i].name, name))
            return several[i].results;
    return 1;
}

/* By the convention of the interface the results are the last tensors. */
static struct vn_small_work *zero_results(const char *name, const vn_arg *args, vn_handle *const *handles, int count)
{
    if (is_in_place(name))
        return NULL;
    struct vn_small_work *work = NULL;
    int left = results_of(name);
    /* The first argument is no result: an operator with one tensor only changes it in place. */
    for (int i = count - 1; i > 0 && left > 0 && args[i].kind != 'l'; i--) {
        view into;
        left -= args[i].kind == 't';
        if (args[i].kind != 't' || !look(handles[i], &into) || into.count > MAX_ZEROED)
            continue;
        if (!work) {
            work = calloc(1, sizeof *work);
            work->kind = FILL;
            work->into = into;
        } else if (work->input_count < MAX_INPUTS) {
            work->inputs[work->input_count++] = into;
        }
    }
    return work;
}

/* The work of a call, or NULL if it is not one of these or not small. The arguments are read now, the contents of the
 * tensors when it is done. */
struct vn_small_work *vn_small_work_new_locked(const char *name, const char *kinds, const vn_arg *args,
                                               vn_handle *const *handles, int count)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].name, name) || strcmp(table[i].kinds, kinds))
            continue;
        struct vn_small_work *work = calloc(1, sizeof *work);
        work->kind = table[i].kind;
        if (prepare(work, name, args, handles, count))
            return work;
        free(work);
        break;
    }
    return zero_results(name, args, handles, count);
}

/* ---- doing ---- */

static void pad(const struct vn_small_work *work, const int64_t *index, char *to)
{
    const view *from = &work->inputs[0];
    int64_t inside[VN_MAX_RANK];
    bool is_inside = true;
    for (int i = 0; i < work->into.tensor.rank; i++) {
        inside[i] = index[i] - work->before[i];
        is_inside = is_inside && inside[i] >= 0 && inside[i] < from->tensor.shape[i];
    }
    store(to, work->into.tensor.dtype, is_inside ? load(address(from, inside, from->tensor.rank), from->tensor.dtype)
                                                 : (value){true, 0, work->number});
}

static void join(const struct vn_small_work *work, int64_t *index, char *to)
{
    int64_t along = index[work->dimension];
    for (int i = 0; i < work->input_count; i++) {
        const view *from = &work->inputs[i];
        int64_t size = from->tensor.shape[work->dimension];
        if (along < size) {
            index[work->dimension] = along;
            memcpy(to, address(from, index, from->tensor.rank), vn_element_bits(from->tensor.dtype) / 8);
            return;
        }
        along -= size;
    }
}

static bool is_arithmetic(work_kind kind)
{
    return kind == ADD || kind == SUBTRACT || kind == MULTIPLY;
}

static void fill(const view *into, double number)
{
    for (int64_t i = 0; i < into->count; i++) {
        int64_t index[VN_MAX_RANK];
        index_of(i, &into->tensor, index);
        store(address(into, index, into->tensor.rank), into->tensor.dtype, (value){true, 0, number});
    }
}

static void sum(const struct vn_small_work *work)
{
    const view *from = &work->inputs[0], *into = &work->into;
    bool keeps = into->tensor.rank == from->tensor.rank;
    fill(into, 0);
    for (int64_t i = 0; i < from->count; i++) {
        int64_t index[VN_MAX_RANK], left[VN_MAX_RANK];
        int rank = 0;
        index_of(i, &from->tensor, index);
        for (int j = 0; j < from->tensor.rank; j++)
            if (keeps || !work->is_summed[j])
                left[rank++] = work->is_summed[j] ? 0 : index[j];
        char *to = address(into, left, rank);
        value total = load(to, into->tensor.dtype);
        value more = load(address(from, index, from->tensor.rank), from->tensor.dtype);
        store(to, into->tensor.dtype, (value){total.is_real, total.whole + more.whole, total.real + more.real});
    }
}

void vn_small_work_do(struct vn_small_work *work)
{
    if (work->kind == SUM) {
        sum(work);
        return;
    }
    if (work->kind == FILL) {
        fill(&work->into, work->number);
        for (int i = 0; i < work->input_count; i++)
            fill(&work->inputs[i], 0);
        return;
    }
    int64_t index[VN_MAX_RANK] = {0};
    int rank = work->into.tensor.rank;
    const view *a = &work->inputs[0], *b = &work->inputs[1];
    for (int64_t i = 0; i < work->into.count; i++) {
        index_of(i, &work->into.tensor, index);
        char *to = address(&work->into, index, rank);
        switch (work->kind) {
        case COPY:
            store(to, work->into.tensor.dtype, load(address(a, index, rank), a->tensor.dtype));
            break;
        case PAD:
            pad(work, index, to);
            break;
        case JOIN:
            join(work, index, to);
            break;
        default: {
            value left = load(address(a, index, rank), a->tensor.dtype);
            value right = work->input_count == 2 ? load(address(b, index, rank), b->tensor.dtype)
                                                 : is_arithmetic(work->kind)
                                                           ? (value){false, (int64_t)work->number, work->number}
                                                           : (value){true, 0, work->number};
            int64_t whole = !is_arithmetic(work->kind)  ? holds(work->kind, left, right)
                            : work->kind == MULTIPLY    ? left.whole * right.whole
                            : work->kind == SUBTRACT    ? left.whole - work->factor * right.whole
                                                        : left.whole + work->factor * right.whole;
            store(to, work->into.tensor.dtype, (value){false, whole, 0});
        }
        }
    }
}
