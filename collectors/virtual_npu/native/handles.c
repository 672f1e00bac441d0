/* Handles of the operator interface: tensors, scalars, arrays, lists and prepared calls.
 *
 * They live in slabs of equal cells, so that any value can be tested for being a live handle without a table and
 * without touching memory that is not ours: arguments of an operator come as bare machine words.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { SLAB_CELLS = 4096 };

typedef struct slab {
    struct slab *next;
    vn_handle cells[SLAB_CELLS];
} slab;

static slab *slabs;
static vn_handle *free_cells;

vn_handle *vn_handle_new_locked(vn_handle_kind kind)
{
    if (!free_cells) {
        slab *more = calloc(1, sizeof *more);
        if (!more)
            abort();
        more->next = slabs;
        slabs = more;
        for (int i = SLAB_CELLS; i-- > 0;) {
            more->cells[i].next_free = free_cells;
            free_cells = &more->cells[i];
        }
    }
    vn_handle *handle = free_cells;
    free_cells = handle->next_free;
    memset(handle, 0, sizeof *handle);
    handle->kind = kind;
    return handle;
}

vn_handle *vn_handle_new(vn_handle_kind kind)
{
    vn_lock();
    vn_handle *handle = vn_handle_new_locked(kind);
    vn_unlock();
    return handle;
}

vn_handle *vn_handle_find_locked(const void *address)
{
    const char *at = address;
    for (slab *one = slabs; one; one = one->next) {
        const char *first = (const char *)one->cells;
        if (at < first || at >= first + sizeof one->cells)
            continue;
        if ((size_t)(at - first) % sizeof(vn_handle))
            return NULL;
        vn_handle *handle = (vn_handle *)(uintptr_t)address;
        return handle->kind == VN_FREE ? NULL : handle;
    }
    return NULL;
}

void vn_handle_free_locked(vn_handle *handle)
{
    if (handle->kind == VN_TENSOR_LIST)     /* a list owns its tensors, as in CANN */
        for (int i = 0; i < handle->count; i++)
            if (vn_handle_find_locked(handle->items[i]))
                vn_handle_free_locked(handle->items[i]);
    free(handle->items);
    free(handle->ints);
    free(handle->reals);
    free(handle->work);
    handle->kind = VN_FREE;
    handle->next_free = free_cells;
    free_cells = handle;
}

static int destroy(const void *address, vn_handle_kind kind, const char *function)
{
    if (!address)
        return VN_OK;
    vn_lock();
    vn_handle *handle = vn_handle_find_locked(address);
    bool is_right = handle && handle->kind == kind;
    if (is_right)
        vn_handle_free_locked(handle);
    vn_unlock();
    return is_right ? VN_OK
                    : vn_fail(function, VN_ERROR_OPERATOR_INVALID, "%s: %p is no live handle of that kind", function,
                              address);
}

/* Bits and not bytes: int4 takes half a byte. Numbers: aclDataType in acl_base_rt.h. */
size_t vn_element_bits(int32_t dtype)
{
    switch (dtype) {
    case 29: case 40: case 41: return 4;                            /* int4, float4 */
    case 38: case 39: return 6;                                     /* float6 */
    case 2: case 4: case 12: case 34: case 35: case 36: case 37: return 8;
    case 1: case 6: case 7: case 27: return 16;
    case 0: case 3: case 8: case 33: return 32;
    case 9: case 10: case 11: case 16: return 64;
    case 17: return 128;
    case 30: return 1;
    default: return 0;
    }
}

static double number_of(const void *value, int32_t dtype)
{
    switch (dtype) {
    case 0: return *(const float *)value;
    case 1: return vn_real_at(value, VN_HCCL_FP16);
    case 2: return *(const int8_t *)value;
    case 3: return *(const int32_t *)value;
    case 4: return *(const uint8_t *)value;
    case 6: return *(const int16_t *)value;
    case 7: return *(const uint16_t *)value;
    case 8: return *(const uint32_t *)value;
    case 9: return (double)*(const int64_t *)value;
    case 10: return (double)*(const uint64_t *)value;
    case 11: return *(const double *)value;
    case 12: return *(const uint8_t *)value != 0;
    case 16: return *(const float *)value;      /* complex: the real part */
    case 17: return *(const double *)value;
    case 27: return vn_real_at(value, VN_HCCL_BF16);
    default: return 0;
    }
}

static void fill_tensor(vn_handle *handle, const int64_t *shape, uint64_t rank, int32_t dtype, int32_t format)
{
    handle->tensor.rank = rank > VN_MAX_RANK ? VN_MAX_RANK : (int32_t)rank;
    handle->tensor.dtype = dtype;
    handle->tensor.format = format;
    for (int i = 0; i < handle->tensor.rank; i++)
        handle->tensor.shape[i] = shape[i];
    /* More dimensions than CANN allows: folded into the last, so that the size stays right. */
    for (uint64_t i = VN_MAX_RANK; i < rank; i++)
        handle->tensor.shape[VN_MAX_RANK - 1] *= shape[i];
}

static void contiguous_strides(vn_tensor *tensor)
{
    int64_t stride = 1;
    for (int i = tensor->rank; i-- > 0; stride *= tensor->shape[i])
        tensor->stride[i] = stride;
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType, const int64_t *stride,
                           int64_t offset, aclFormat format, const int64_t *storageDims, uint64_t storageDimsNum,
                           void *tensorData)
{
    (void)storageDims, (void)storageDimsNum;
    vn_handle *handle = vn_handle_new(VN_TENSOR);
    fill_tensor(handle, viewDims, viewDimsNum, dataType, format);
    if (stride && viewDimsNum <= VN_MAX_RANK)
        memcpy(handle->tensor.stride, stride, (size_t)viewDimsNum * sizeof *stride);
    else
        contiguous_strides(&handle->tensor);
    handle->data = tensorData ? (char *)tensorData + offset * (int64_t)vn_element_bits(dataType) / 8 : NULL;
    return (aclTensor *)handle;
}

aclScalar *aclCreateScalar(void *value, aclDataType dataType)
{
    vn_handle *handle = vn_handle_new(VN_SCALAR);
    handle->dtype = dataType;
    handle->number = value ? number_of(value, dataType) : 0;
    return (aclScalar *)handle;
}

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    vn_handle *handle = vn_handle_new(VN_INT_ARRAY);
    handle->count = (int)size;
    handle->ints = malloc(size * sizeof *value + 1);
    for (uint64_t i = 0; i < size; i++)
        handle->ints[i] = value[i];
    return (aclIntArray *)handle;
}

aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size)
{
    vn_handle *handle = vn_handle_new(VN_FLOAT_ARRAY);
    handle->count = (int)size;
    handle->reals = malloc(size * sizeof(double) + 1);
    for (uint64_t i = 0; i < size; i++)
        handle->reals[i] = value[i];
    return (aclFloatArray *)handle;
}

aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)
{
    vn_handle *handle = vn_handle_new(VN_BOOL_ARRAY);
    handle->count = (int)size;
    handle->ints = malloc(size * sizeof *handle->ints + 1);
    for (uint64_t i = 0; i < size; i++)
        handle->ints[i] = value[i];
    return (aclBoolArray *)handle;
}

aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size)
{
    vn_handle *handle = vn_handle_new(VN_TENSOR_LIST);
    handle->count = (int)size;
    handle->items = malloc(size * sizeof *handle->items + 1);
    for (uint64_t i = 0; i < size; i++)
        handle->items[i] = (vn_handle *)(uintptr_t)value[i];
    return (aclTensorList *)handle;
}

aclScalarList *aclCreateScalarList(const aclScalar *const *value, uint64_t size)
{
    vn_handle *handle = vn_handle_new(VN_SCALAR_LIST);
    handle->count = (int)size;
    handle->reals = calloc(size + 1, sizeof(double));
    vn_lock();
    for (uint64_t i = 0; i < size; i++) {
        vn_handle *scalar = vn_handle_find_locked(value[i]);
        if (scalar && scalar->kind == VN_SCALAR) {
            handle->reals[i] = scalar->number;
            handle->dtype = scalar->dtype;
            vn_handle_free_locked(scalar);      /* the list owns its scalars */
        }
    }
    vn_unlock();
    return (aclScalarList *)handle;
}

int aclDestroyTensor(const aclTensor *tensor) { return destroy(tensor, VN_TENSOR, __func__); }
int aclDestroyScalar(const aclScalar *scalar) { return destroy(scalar, VN_SCALAR, __func__); }
int aclDestroyIntArray(const aclIntArray *array) { return destroy(array, VN_INT_ARRAY, __func__); }
int aclDestroyFloatArray(const aclFloatArray *array) { return destroy(array, VN_FLOAT_ARRAY, __func__); }
int aclDestroyBoolArray(const aclBoolArray *array) { return destroy(array, VN_BOOL_ARRAY, __func__); }
int aclDestroyTensorList(const aclTensorList *array) { return destroy(array, VN_TENSOR_LIST, __func__); }
int aclDestroyScalarList(const aclScalarList *array) { return destroy(array, VN_SCALAR_LIST, __func__); }
int aclDestroyAclOpExecutor(aclOpExecutor *executor) { return destroy(executor, VN_EXECUTOR, __func__); }

/* The caller frees the array with delete[]; for a plain array of integers that is free() in libstdc++. */
int aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum)
{
    vn_lock();
    vn_handle *handle = vn_handle_find_locked(tensor);
    bool is_tensor = handle && handle->kind == VN_TENSOR && viewDims && viewDimsNum;
    if (is_tensor) {
        *viewDimsNum = (uint64_t)handle->tensor.rank;
        *viewDims = malloc(VN_MAX_RANK * sizeof **viewDims);
        memcpy(*viewDims, handle->tensor.shape, VN_MAX_RANK * sizeof **viewDims);
    }
    vn_unlock();
    return is_tensor ? VN_OK : vn_fail(__func__, VN_ERROR_OPERATOR_NULL, "aclGetViewShape: %p is no tensor",
                                       (const void *)tensor);
}

/* ---- descriptions of the old single-operator route: the same cells ---- */

aclTensorDesc *aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t *dims, aclFormat format)
{
    vn_handle *handle = vn_handle_new(VN_TENSOR);
    fill_tensor(handle, dims, numDims > 0 ? (uint64_t)numDims : 0, dataType, format);
    contiguous_strides(&handle->tensor);
    return (aclTensorDesc *)handle;
}

void aclDestroyTensorDesc(const aclTensorDesc *desc) { destroy(desc, VN_TENSOR, __func__); }

static vn_tensor tensor_of(const aclTensorDesc *desc)
{
    vn_lock();
    vn_handle *handle = vn_handle_find_locked(desc);
    vn_tensor tensor = handle && handle->kind == VN_TENSOR ? handle->tensor : (vn_tensor){.dtype = -1, .format = -1};
    vn_unlock();
    return tensor;
}

aclDataType aclGetTensorDescType(const aclTensorDesc *desc) { return tensor_of(desc).dtype; }
aclFormat aclGetTensorDescFormat(const aclTensorDesc *desc) { return tensor_of(desc).format; }
size_t aclGetTensorDescNumDims(const aclTensorDesc *desc) { return (size_t)tensor_of(desc).rank; }

aclError aclGetTensorDescDimV2(const aclTensorDesc *desc, size_t index, int64_t *dimSize)
{
    vn_tensor tensor = tensor_of(desc);
    if (!dimSize || index >= (size_t)tensor.rank)
        return vn_fail(__func__, 100000, "aclGetTensorDescDimV2: dimension %zu of %d", index, tensor.rank);
    *dimSize = tensor.shape[index];
    return VN_OK;
}

/* Opaque objects that only have to exist and to be different. */
aclDataBuffer *aclCreateDataBuffer(void *data, size_t size)
{
    (void)data, (void)size;
    return calloc(1, 64);
}

aclError aclDestroyDataBuffer(const aclDataBuffer *dataBuffer)
{
    free((void *)(uintptr_t)dataBuffer);
    return VN_OK;
}

aclopAttr *aclopCreateAttr(void) { return calloc(1, 64); }
void aclopDestroyAttr(const aclopAttr *attr) { free((void *)(uintptr_t)attr); }
