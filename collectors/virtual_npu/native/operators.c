/* Operators: aclnnXGetWorkspaceSize describes and prepares a call, aclnnX launches it.
 *
 * The trampolines bring bare registers and stack. The table of signatures says how many arguments an operator has and
 * of which kind; workspace size and executor must follow as the last two. Whatever does not fit - another version of
 * the library, an operator that is not in the table - ends the call with an error that says so: figures from arguments
 * that were guessed would be worse than none.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core.h"
#include "cost.h"

enum { MAX_ARGUMENTS = 96, TEXT_BYTES = 256 };

__attribute__((weak)) double vn_cost_kernel(const char *op, const vn_arg *args, int n, vn_cost *out)
{
    (void)op, (void)args, (void)n;
    return out->ns = 2000;
}

__attribute__((weak)) int vn_cost_unknown_count(void) { return 0; }
__attribute__((weak)) const char *vn_cost_unknown(int index, int64_t *calls)
{
    (void)index, (void)calls;
    return NULL;
}

/* ---- arguments ---- */

/* Walks registers and stack as the calling convention lays arguments out (x86_64 System V and AAPCS64 on Linux: every
 * argument takes a register of its class or, once they are used up, eight bytes of the stack). */
typedef struct {
    const uint64_t *ints, *floats, *stack;
    int int_used, float_used, stack_used;
} walk;

static uint64_t next_int(walk *at)
{
    return at->int_used < VN_INT_REGISTERS ? at->ints[at->int_used++] : at->stack[at->stack_used++];
}

static uint64_t next_float(walk *at)
{
    return at->float_used < VN_FLOAT_REGISTERS ? at->floats[at->float_used++] : at->stack[at->stack_used++];
}

/* Reads memory of this process that may not be there. False: it is not. */
static bool peek(uint64_t address, void *into, size_t size)
{
    struct iovec local = {into, size}, remote = {(void *)(uintptr_t)address, size};
    ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (got < 0 && errno != EFAULT) {       /* the call is forbidden here: trust the address */
        memcpy(into, (void *)(uintptr_t)address, size);
        return true;
    }
    return got == (ssize_t)size;
}

/* A text whose end is not known: in one piece unless that would run out of the mapping, then byte by byte. */
static void peek_text(uint64_t address, char *into)
{
    memset(into, 0, TEXT_BYTES);
    if (peek(address, into, TEXT_BYTES - 1))
        return;
    for (size_t used = 0; used < TEXT_BYTES - 1 && peek(address + used, into + used, 1) && into[used]; used++)
        continue;
}

typedef struct {
    vn_arg args[MAX_ARGUMENTS];
    int count;
    vn_handle *handles[MAX_ARGUMENTS];      /* by argument: NULL unless it is one */
    int64_t integers[MAX_ARGUMENTS];
    char texts[4][TEXT_BYTES];
    int text_count;
    vn_tensor *lists;                       /* tensors of the lists, one after the other */
    int list_size, list_capacity;
} call;

static vn_handle_kind kind_of(char letter)
{
    switch (letter) {
    case 't': return VN_TENSOR;
    case 'l': return VN_TENSOR_LIST;
    case 's': return VN_SCALAR;
    case 'z': return VN_SCALAR_LIST;
    case 'i': return VN_INT_ARRAY;
    case 'f': return VN_FLOAT_ARRAY;
    case 'b': return VN_BOOL_ARRAY;
    default: return VN_FREE;
    }
}

static void describe_handle(call *made, vn_arg *arg, vn_handle *handle)
{
    arg->count = handle->count;
    switch (handle->kind) {
    case VN_TENSOR:
        arg->tensors = &handle->tensor;
        arg->count = 1;
        break;
    case VN_TENSOR_LIST: {
        if (made->list_size + handle->count > made->list_capacity) {
            made->list_capacity = (made->list_size + handle->count) * 2;
            /* Lists seen before keep offsets, not pointers, until the call is complete (see fix_lists). */
            made->lists = realloc(made->lists, (size_t)made->list_capacity * sizeof *made->lists);
        }
        arg->ints = NULL;
        arg->number = made->list_size;
        for (int i = 0; i < handle->count; i++) {
            const vn_handle *item = vn_handle_find_locked(handle->items[i]);
            made->lists[made->list_size++] = item && item->kind == VN_TENSOR ? item->tensor
                                                                             : (vn_tensor){.dtype = -1, .format = -1};
        }
        break;
    }
    case VN_SCALAR:
        arg->dtype = handle->dtype;
        arg->number = handle->number;
        break;
    case VN_SCALAR_LIST:
        arg->dtype = handle->dtype;
        arg->reals = handle->reals;
        break;
    case VN_FLOAT_ARRAY:
        arg->reals = handle->reals;
        break;
    default:
        arg->ints = handle->ints;
    }
}

static void fix_lists(call *made)
{
    for (int i = 0; i < made->count; i++)
        if (made->args[i].kind == 'l') {
            made->args[i].tensors = made->lists + (int)made->args[i].number;
            made->args[i].number = 0;
        }
}

/* Reads the arguments. NULL: they fit; else what does not (static or in `problem`). */
static const char *read_arguments(const vn_signature *operator_, walk *at, call *made, char *problem, size_t size)
{
    made->count = 0;
    made->text_count = made->list_size = 0;
    for (const char *letter = operator_->kinds; *letter; letter++) {
        if (made->count == MAX_ARGUMENTS)
            return "more arguments than the virtual NPU can take";
        int i = made->count++;
        vn_arg *arg = &made->args[i];
        *arg = (vn_arg){.kind = *letter};
        made->handles[i] = NULL;
        if (*letter == 'd' || *letter == 'e') {
            uint64_t bits = next_float(at);
            float single;
            memcpy(&single, &bits, sizeof single);
            memcpy(&arg->number, &bits, sizeof bits);
            if (*letter == 'e')
                arg->number = single;
            arg->kind = 'd';
            continue;
        }
        uint64_t word = next_int(at);
        if (*letter == 'n' || *letter == 'm' || *letter == 'y') {
            made->integers[i] = *letter == 'n' ? (int64_t)word : *letter == 'm' ? (int32_t)word : (int8_t)word;
            arg->kind = 'n';
            arg->ints = &made->integers[i];
            arg->number = (double)made->integers[i];
            continue;
        }
        if (!word) {
            arg->kind = '0';
            continue;
        }
        if (*letter == 'c') {
            char first;
            if (made->text_count == 4 || !peek(word, &first, 1)) {
                snprintf(problem, size, "argument %d is no text", i + 1);
                return problem;
            }
            arg->text = made->texts[made->text_count++];
            peek_text(word, made->texts[made->text_count - 1]);
            continue;
        }
        vn_handle *handle = vn_handle_find_locked((void *)(uintptr_t)word);
        if (!handle || handle->kind != kind_of(*letter)) {
            snprintf(problem, size, "argument %d is no live handle of kind '%c'", i + 1, *letter);
            return problem;
        }
        made->handles[i] = handle;
        describe_handle(made, arg, handle);
    }
    fix_lists(made);
    return NULL;
}

/* Workspace size and executor: places of the caller's where torch_npu has put zeros. */
static const char *read_results(walk *at, uint64_t **workspace, void ***executor)
{
    uint64_t places[2] = {next_int(at), next_int(at)}, values[2];
    for (int i = 0; i < 2; i++) {
        if (!places[i] || places[i] % 8 || places[i] >> 56)
            return "workspace size and executor do not follow the arguments";
        if (vn_handle_find_locked((void *)(uintptr_t)places[i]) || !peek(places[i], &values[i], sizeof values[i]))
            return "workspace size and executor do not follow the arguments";
    }
    if (places[0] == places[1] || values[0] || values[1])
        return "workspace size and executor are not empty";
    *workspace = (uint64_t *)(uintptr_t)places[0];
    *executor = (void **)(uintptr_t)places[1];
    return NULL;
}

/* ---- definitions ---- */

static bool is_contiguous(const vn_tensor *tensor)
{
    int64_t stride = 1;
    for (int i = tensor->rank; i-- > 0;) {
        if (tensor->shape[i] != 1 && tensor->stride[i] != stride)
            return false;
        stride *= tensor->shape[i];
    }
    return true;
}

static void add_list(vn_text *text, const int64_t *values, int count)
{
    vn_text_string(text, "[");
    for (int i = 0; i < count; i++) {
        if (i)
            vn_text_string(text, ",");
        vn_text_int(text, values[i]);
    }
    vn_text_string(text, "]");
}

static void add_tensor(vn_text *text, const vn_tensor *tensor)
{
    vn_text_string(text, "[\"t\",");
    vn_text_int(text, tensor->dtype);
    vn_text_string(text, ",");
    vn_text_int(text, tensor->format);
    vn_text_string(text, ",");
    add_list(text, tensor->shape, tensor->rank);
    vn_text_string(text, ",");
    if (is_contiguous(tensor))
        vn_text_string(text, "null");
    else
        add_list(text, tensor->stride, tensor->rank);
    vn_text_string(text, "]");
}

static void add_reals(vn_text *text, const double *values, int count)
{
    vn_text_string(text, "[");
    for (int i = 0; i < count; i++) {
        if (i)
            vn_text_string(text, ",");
        vn_text_real(text, values[i]);
    }
    vn_text_string(text, "]");
}

static void add_argument(vn_text *text, const vn_arg *arg)
{
    switch (arg->kind) {
    case 't':
        add_tensor(text, arg->tensors);
        return;
    case 'l':
        vn_text_string(text, "[\"l\",[");
        for (int i = 0; i < arg->count; i++) {
            if (i)
                vn_text_string(text, ",");
            add_tensor(text, &arg->tensors[i]);
        }
        vn_text_string(text, "]]");
        return;
    case 's':
        vn_text_string(text, "[\"s\",");
        vn_text_int(text, arg->dtype);
        vn_text_string(text, ",");
        vn_text_real(text, arg->number);
        vn_text_string(text, "]");
        return;
    case 'z': case 'f':
        vn_text_string(text, arg->kind == 'z' ? "[\"z\"," : "[\"f\",");
        add_reals(text, arg->reals, arg->count);
        vn_text_string(text, "]");
        return;
    case 'i': case 'b':
        vn_text_string(text, arg->kind == 'i' ? "[\"i\"," : "[\"b\",");
        add_list(text, arg->ints, arg->count);
        vn_text_string(text, "]");
        return;
    case 'n':
        vn_text_string(text, "[\"n\",");
        vn_text_int(text, *arg->ints);
        vn_text_string(text, "]");
        return;
    case 'd':
        vn_text_string(text, "[\"d\",");
        vn_text_real(text, arg->number);
        vn_text_string(text, "]");
        return;
    case 'c':
        vn_text_string(text, "[\"c\",");
        vn_text_json_string(text, arg->text);
        vn_text_string(text, "]");
        return;
    default:
        vn_text_string(text, "null");
    }
}

static void add_real_field(vn_text *text, const char *name, double value)
{
    vn_text_string(text, name);
    vn_text_real(text, value);
}

static vn_definition *define_locked(const char *name, const vn_arg *args, int count)
{
    static vn_text json;
    vn_text_clear(&json);
    vn_text_string(&json, "{\"args\":[");
    for (int i = 0; i < count; i++) {
        if (i)
            vn_text_string(&json, ",");
        add_argument(&json, &args[i]);
    }
    vn_text_string(&json, "]");
    vn_definition *definition = vn_definition_locked("op", name, &json);
    if (!definition->is_new)
        return definition;
    vn_cost cost = {0};
    int unknown = vn_cost_unknown_count();
    double ns = vn_cost_kernel(name, args, count, &cost);
    for (; unknown < vn_cost_unknown_count(); unknown++)
        vn_record_locked("U\t%s", vn_cost_unknown(unknown, NULL));
    ns *= vn_settings()->rank_factor * vn_operator_factor(name);
    definition->duration_ns = ns > 0 ? (int64_t)(ns + 0.5) : 0;
    vn_text_string(&json, ",\"class\":");
    vn_text_json_string(&json, cost.klass ? cost.klass : "");
    add_real_field(&json, ",\"flops\":", cost.flops);
    add_real_field(&json, ",\"bytes\":", cost.bytes);
    add_real_field(&json, ",\"ns\":", (double)definition->duration_ns);
    add_real_field(&json, ",\"cube_ns\":", cost.cube_ns);
    add_real_field(&json, ",\"vector_ns\":", cost.vector_ns);
    add_real_field(&json, ",\"memory_ns\":", cost.memory_ns);
    add_real_field(&json, ",\"fixed_ns\":", cost.fixed_ns);
    vn_text_string(&json, "}");
    vn_definition_write_locked(definition, "op", name, &json);
    return definition;
}

/* ---- the two calls ---- */

static int refuse(const vn_signature *operator_, const char *problem)
{
    fprintf(stderr, "virtual NPU: %s of torch_npu (%s): %s; expected %s\n", operator_->name, vn_build_id, problem,
            operator_->kinds ? operator_->kinds : "an operator of the table");
    return vn_fail(operator_->name, VN_ERROR_OPERATOR_INVALID, "EZ1001: %sGetWorkspaceSize: %s; the table of "
                   "signatures expects \"%s\" (library %s)", operator_->name, problem,
                   operator_->kinds ? operator_->kinds : "", vn_build_id);
}

int vn_operator_prepare(const vn_signature *operator_, const uint64_t *ints, const uint64_t *floats,
                        const uint64_t *stack)
{
    if (!operator_->kinds)
        return refuse(operator_, "its arguments are not known");
    static call made;       /* large; used under the lock only */
    walk at = {.ints = ints, .floats = floats, .stack = stack};
    uint64_t *workspace;
    void **place;
    char text[128];
    vn_lock();
    const char *problem = read_arguments(operator_, &at, &made, text, sizeof text);
    if (!problem)
        problem = read_results(&at, &workspace, &place);
    if (!problem) {
        vn_handle *executor = vn_handle_new_locked(VN_EXECUTOR);
        executor->operator_ = operator_;
        executor->definition = define_locked(operator_->name, made.args, made.count);
        executor->work = vn_small_work_new_locked(operator_->name, operator_->kinds, made.args, made.handles,
                                                  made.count);
        *workspace = 0;
        *place = executor;
    }
    vn_unlock();
    return problem ? refuse(operator_, problem) : VN_OK;
}

static int launch_locked(const char *function, const vn_definition *definition, aclrtStream stream,
                         struct vn_small_work *work)
{
    vn_stream *queue = vn_stream_locked(stream);
    if (!queue)
        return vn_fail_locked(function, VN_ERROR_INVALID_HANDLE, "%s: %p is no stream", function, stream);
    vn_entry entry = {.kind = VN_KERNEL, .seq = vn_next_seq_locked(), .definition = definition->id,
                      .thread = vn_thread_id(), .host_ns = vn_launch_time_locked(),
                      .duration_ns = definition->duration_ns, .work = work};
    vn_append_locked(queue, &entry);
    return VN_OK;
}

int vn_operator_launch(const vn_signature *operator_, void *workspace, uint64_t size, void *executor, void *stream)
{
    (void)workspace, (void)size;
    vn_lock();
    vn_handle *prepared = vn_handle_find_locked(executor);
    int code;
    if (!prepared || prepared->kind != VN_EXECUTOR || prepared->operator_ != operator_) {
        code = vn_fail_locked(operator_->name, VN_ERROR_OPERATOR_NULL, "%s: the executor %p was not prepared for it",
                              operator_->name, executor);
    } else {
        code = launch_locked(operator_->name, prepared->definition, stream, prepared->work);
        if (!code)
            prepared->work = NULL;  /* the entry's now */
        vn_handle_free_locked(prepared);
    }
    vn_unlock();
    return code;
}

/* ---- other ways to launch ---- */

static int launch_described(const char *function, const char *name, const aclTensorDesc *const *inputs, int input_count,
                            aclTensorDesc *const *outputs, int output_count, aclrtStream stream)
{
    vn_lock();
    vn_arg args[MAX_ARGUMENTS];
    int count = 0;
    for (int i = 0; i < input_count + output_count && count < MAX_ARGUMENTS; i++) {
        vn_handle *handle = vn_handle_find_locked(i < input_count ? inputs[i] : outputs[i - input_count]);
        args[count++] = handle && handle->kind == VN_TENSOR
                            ? (vn_arg){.kind = 't', .tensors = &handle->tensor, .count = 1} : (vn_arg){.kind = '0'};
    }
    int code = launch_locked(function, define_locked(name, args, count), stream, NULL);
    vn_unlock();
    return code;
}

aclError aclopCompileAndExecute(const char *opType, int numInputs, const aclTensorDesc *const inputDesc[],
                                const aclDataBuffer *const inputs[], int numOutputs,
                                const aclTensorDesc *const outputDesc[], aclDataBuffer *const outputs[],
                                const aclopAttr *attr, aclopEngineType engineType, aclopCompileType compileFlag,
                                const char *opPath, aclrtStream stream)
{
    (void)inputs, (void)outputs, (void)attr, (void)engineType, (void)compileFlag, (void)opPath;
    char name[128];
    snprintf(name, sizeof name, "aclop%s", opType);
    return launch_described(__func__, name, inputDesc, numInputs, (aclTensorDesc *const *)(uintptr_t)outputDesc,
                            numOutputs, stream);
}

aclError aclopCompileAndExecuteV2(const char *opType, int numInputs, aclTensorDesc *inputDesc[],
                                  aclDataBuffer *inputs[], int numOutputs, aclTensorDesc *outputDesc[],
                                  aclDataBuffer *outputs[], aclopAttr *attr, aclopEngineType engineType,
                                  aclopCompileType compileFlag, const char *opPath, aclrtStream stream)
{
    return aclopCompileAndExecute(opType, numInputs, (const aclTensorDesc *const *)inputDesc,
                                  (const aclDataBuffer *const *)inputs, numOutputs,
                                  (const aclTensorDesc *const *)outputDesc, outputs, attr, engineType, compileFlag,
                                  opPath, stream);
}

/* A kernel of the program's own (Triton, Ascend C): nothing is known about what it does. */
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle funcHandle, uint32_t numBlocks, aclrtStream stream,
                                       aclrtLaunchKernelCfg *cfg, void *hostArgs, size_t argsSize,
                                       aclrtPlaceHolderInfo *placeHolderArray, size_t placeHolderNum)
{
    (void)funcHandle, (void)cfg, (void)hostArgs, (void)argsSize, (void)placeHolderArray, (void)placeHolderNum;
    int64_t blocks = numBlocks;
    vn_arg arg = {.kind = 'n', .ints = &blocks, .number = (double)blocks};
    vn_lock();
    int code = launch_locked(__func__, define_locked("aclrtLaunchKernel", &arg, 1), stream, NULL);
    vn_unlock();
    return code;
}

/* Memory that operators ask for while they run; here they ask for none. */
int InitHugeMemThreadLocal(void *arg, bool sync)
{
    (void)arg, (void)sync;
    return VN_OK;
}

void UnInitHugeMemThreadLocal(void *arg, bool sync) { (void)arg, (void)sync; }
void ReleaseHugeMem(void *arg, bool sync) { (void)arg, (void)sync; }
