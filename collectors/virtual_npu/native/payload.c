/* Contents of small collectives: what a rank contributes and what it takes from the contributions of all.
 *
 * Programs send sizes, flags, pickled objects and losses this way and steer by them, so these are really exchanged and
 * reduced. Where one process stands for all ranks, every rank is taken to contribute what this one does.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { FP16 = VN_HCCL_FP16, FP32 = VN_HCCL_FP32, FP64 = VN_HCCL_FP64, BF16 = VN_HCCL_BF16 };
enum { SUM = 0, PROD = 1, MAX = 2, MIN = 3 };     /* HcclReduceOp */

size_t vn_hccl_bytes(HcclDataType type)
{
    static const unsigned char bytes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2, 16, 0, 1, 1, 1, 1};
    return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 0;
}

/* ---- values ---- */

static double half_to_double(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                   : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                                  : ldexp(mantissa, -24);
    return bits >> 15 ? -value : value;
}

static uint16_t double_to_half(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    value = fabs(value);
    if (isnan(value))
        return sign | 0x7e00;
    if (value >= 65520)                                 /* rounds beyond the largest half */
        return sign | 0x7c00;
    int exponent;
    frexp(value, &exponent);
    if (value == 0 || exponent < -13)                   /* subnormal: steps of 2^-24 */
        return (uint16_t)(sign | (uint16_t)nearbyint(ldexp(value, 24)));
    double mantissa = nearbyint(ldexp(value, 11 - exponent));       /* 1024 ... 2048 */
    return (uint16_t)(sign + ((exponent + 14) << 10) + ((int)mantissa - 1024));
}

static double brain_to_double(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t double_to_brain(double number)
{
    float value = (float)number;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);    /* round to nearest even */
}

double vn_real_at(const char *from, HcclDataType type)
{
    uint16_t half;
    float single;
    double wide;
    switch (type) {
    case FP16: memcpy(&half, from, 2); return half_to_double(half);
    case BF16: memcpy(&half, from, 2); return brain_to_double(half);
    case FP32: memcpy(&single, from, 4); return single;
    default: memcpy(&wide, from, 8); return wide;
    }
}

void vn_put_real(char *into, HcclDataType type, double value)
{
    uint16_t half;
    float single = (float)value;
    switch (type) {
    case FP16: half = double_to_half(value); memcpy(into, &half, 2); break;
    case BF16: half = double_to_brain(value); memcpy(into, &half, 2); break;
    case FP32: memcpy(into, &single, 4); break;
    default: memcpy(into, &value, 8);
    }
}

/* Integers of all widths as 64 bits; is_signed by HcclDataType: int8 int16 int32 int64 are 0 1 2 5. */
static int64_t integer_at(const char *from, size_t bytes, bool is_signed)
{
    uint64_t value = 0;
    memcpy(&value, from, bytes);        /* little-endian, as every machine that CANN runs on */
    int unused = 64 - 8 * (int)bytes;
    return is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

static double join_reals(double a, double b, HcclReduceOp op)
{
    return op == SUM ? a + b : op == PROD ? a * b : op == MAX ? fmax(a, b) : fmin(a, b);
}

static int64_t join_integers(int64_t a, int64_t b, HcclReduceOp op, bool is_signed)
{
    bool is_less = is_signed ? a < b : (uint64_t)a < (uint64_t)b;
    switch (op) {
    case SUM: return (int64_t)((uint64_t)a + (uint64_t)b);
    case PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case MAX: return is_less ? b : a;
    default: return is_less ? a : b;
    }
}

/* Reduces `count` values of all ranks in rank order. */
static void reduce(char *into, const char *const *from, int ranks, uint64_t count, HcclDataType type, HcclReduceOp op)
{
    size_t bytes = vn_hccl_bytes(type);
    bool is_real = type == FP16 || type == FP32 || type == FP64 || type == BF16;
    bool is_signed = type == 0 || type == 1 || type == 2 || type == 5;
    if (!is_real && (bytes > 8 || type > BF16))
        return;     /* 128-bit and 8-bit float formats: not computed */
    for (uint64_t i = 0; i < count; i++) {
        size_t at = i * bytes;
        if (is_real) {
            double value = vn_real_at(from[0] + at, type);
            for (int rank = 1; rank < ranks; rank++)
                value = join_reals(value, vn_real_at(from[rank] + at, type), op);
            vn_put_real(into + at, type, value);
        } else {
            int64_t value = integer_at(from[0] + at, bytes, is_signed);
            for (int rank = 1; rank < ranks; rank++)
                value = join_integers(value, integer_at(from[rank] + at, bytes, is_signed), op, is_signed);
            memcpy(into + at, &value, bytes);
        }
    }
}

/* ---- contributions ---- */

static size_t copy_small(char *into, const char *from, uint64_t bytes)
{
    if (!from || !bytes || bytes > VN_SMALL_BYTES)
        return 0;
    memcpy(into, from, bytes);
    return bytes;
}

/* Parts for each rank one after the other, behind a list of their sizes. */
static size_t fill_parts(const vn_transfer *transfer, char *into)
{
    size_t bytes = vn_hccl_bytes(transfer->type), at = (size_t)transfer->size * sizeof(uint64_t);
    for (int rank = 0; rank < transfer->size; rank++) {
        uint64_t part = transfer->send_counts[rank] * bytes;
        if (part > VN_SMALL_BYTES || at + part > VN_SMALL_BYTES)
            return 0;
        memcpy(into + (size_t)rank * sizeof part, &part, sizeof part);
        if (part)
            memcpy(into + at, transfer->send + transfer->send_offsets[rank] * bytes, part);
        at += part;
    }
    return at;
}

size_t vn_payload_fill(const vn_transfer *transfer, char *into)
{
    uint64_t bytes = transfer->count * vn_hccl_bytes(transfer->type);
    switch (transfer->kind) {
    case VN_ALL_REDUCE: case VN_REDUCE: case VN_ALL_GATHER: case VN_ALL_GATHER_V: case VN_SEND:
        return copy_small(into, transfer->send, bytes);
    case VN_BROADCAST:
        return transfer->rank == transfer->root ? copy_small(into, transfer->send, bytes) : 0;
    case VN_SCATTER:
        return transfer->rank == transfer->root
                   ? copy_small(into, transfer->send, bytes * (uint64_t)transfer->size) : 0;
    case VN_REDUCE_SCATTER: case VN_ALL_TO_ALL:
        return copy_small(into, transfer->send, bytes * (uint64_t)transfer->size);
    case VN_ALL_TO_ALL_V: case VN_REDUCE_SCATTER_V:
        return fill_parts(transfer, into);
    case VN_BARRIER: case VN_RECV:
        return 0;
    }
    return 0;
}

/* ---- results ---- */

/* Part for this rank of a contribution made by fill_parts. */
static const char *part_of(const char *from, const vn_transfer *transfer, uint64_t *bytes)
{
    size_t at = (size_t)transfer->size * sizeof(uint64_t);
    for (int rank = 0; rank < transfer->rank; rank++) {
        memcpy(bytes, from + (size_t)rank * sizeof *bytes, sizeof *bytes);
        at += *bytes;
    }
    memcpy(bytes, from + (size_t)transfer->rank * sizeof *bytes, sizeof *bytes);
    return from + at;
}

static void take_reduced(const vn_transfer *transfer, const char *const *from, const size_t *sizes)
{
    size_t mine = 0;
    const char **parts = malloc((size_t)transfer->size * sizeof *parts);
    if (transfer->kind == VN_REDUCE_SCATTER)
        mine = (size_t)transfer->rank * transfer->count * vn_hccl_bytes(transfer->type);
    bool is_whole = true;
    for (int rank = 0; rank < transfer->size; rank++) {
        uint64_t bytes = transfer->count * vn_hccl_bytes(transfer->type);
        is_whole = is_whole && sizes[rank];
        if (is_whole && transfer->kind == VN_REDUCE_SCATTER_V) {
            uint64_t part_bytes;
            parts[rank] = part_of(from[rank], transfer, &part_bytes);
            is_whole = part_bytes == bytes;
        } else if (is_whole) {
            parts[rank] = from[rank] + mine;
        }
    }
    if (is_whole && (transfer->kind != VN_REDUCE || transfer->rank == transfer->root))
        reduce(transfer->receive, parts, transfer->size, transfer->count, transfer->type, transfer->reduction);
    free(parts);
}

void vn_payload_take(const vn_transfer *transfer, const char *const *from, const size_t *sizes)
{
    size_t element = vn_hccl_bytes(transfer->type);
    uint64_t bytes = transfer->count * element;
    switch (transfer->kind) {
    case VN_ALL_REDUCE: case VN_REDUCE: case VN_REDUCE_SCATTER: case VN_REDUCE_SCATTER_V:
        take_reduced(transfer, from, sizes);
        return;
    case VN_BROADCAST:
        if (sizes[transfer->root] == bytes)
            memmove(transfer->receive, from[transfer->root], bytes);
        return;
    case VN_SCATTER:
        if (sizes[transfer->root])
            memmove(transfer->receive, from[transfer->root] + (size_t)transfer->rank * bytes, bytes);
        return;
    case VN_ALL_GATHER:
        for (int rank = 0; rank < transfer->size; rank++)
            if (sizes[rank] == bytes)
                memmove(transfer->receive + (size_t)rank * bytes, from[rank], bytes);
        return;
    case VN_ALL_GATHER_V:
        for (int rank = 0; rank < transfer->size; rank++)
            if (sizes[rank] == transfer->receive_counts[rank] * element)
                memmove(transfer->receive + transfer->receive_offsets[rank] * element, from[rank], sizes[rank]);
        return;
    case VN_ALL_TO_ALL:
        for (int rank = 0; rank < transfer->size; rank++)
            if (sizes[rank])
                memmove(transfer->receive + (size_t)rank * bytes, from[rank] + (size_t)transfer->rank * bytes, bytes);
        return;
    case VN_ALL_TO_ALL_V:
        for (int rank = 0; rank < transfer->size; rank++) {
            uint64_t part;
            const char *data = sizes[rank] ? part_of(from[rank], transfer, &part) : NULL;
            if (data && part == transfer->receive_counts[rank] * element)
                memmove(transfer->receive + transfer->receive_offsets[rank] * element, data, part);
        }
        return;
    case VN_RECV:
        if (sizes[0] == bytes)
            memmove(transfer->receive, from[0], bytes);
        return;
    case VN_BARRIER: case VN_SEND:
        return;
    }
}

void vn_transfer_free(vn_transfer *transfer)
{
    if (!transfer)
        return;
    free(transfer->send_counts);
    free(transfer->send_offsets);
    free(transfer->receive_counts);
    free(transfer->receive_offsets);
    free(transfer);
}
