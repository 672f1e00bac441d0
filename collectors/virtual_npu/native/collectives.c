/* Collectives and point-to-point transfers (HCCL).
 *
 * A collective is one entry of its stream. It starts when the streams of all ranks have arrived (meeting.c) and takes
 * what the cost model says; small contents are exchanged (payload.c).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

__attribute__((weak)) double vn_cost_collective(const char *op, double bytes, int ranks, int ranks_per_node,
                                                vn_cost *out)
{
    (void)op, (void)bytes, (void)ranks, (void)ranks_per_node;
    return out->ns = 2000;
}

/* ---- definitions and entries ---- */

typedef struct {
    const char *name;               /* AllReduce ... */
    double bytes;                   /* as vn_cost_collective wants them */
    uint64_t count;
    int type, reduction, root, peer;        /* -1: does not apply */
    int ranks, ranks_per_node;
} description;

static void add_number(vn_text *text, const char *name, int64_t value)
{
    vn_text_string(text, name);
    if (value < 0)
        vn_text_string(text, "null");
    else
        vn_text_int(text, value);
}

static vn_definition *define_locked(const vn_communicator *comm, const description *what)
{
    static vn_text json;
    char name[64];
    snprintf(name, sizeof name, "Hccl%s", what->name);
    vn_text_clear(&json);
    add_number(&json, "{\"count\":", (int64_t)what->count);
    add_number(&json, ",\"dtype\":", what->type);
    add_number(&json, ",\"bytes\":", (int64_t)what->bytes);
    add_number(&json, ",\"op\":", what->reduction);
    add_number(&json, ",\"root\":", what->root);
    add_number(&json, ",\"peer\":", what->peer);
    add_number(&json, ",\"ranks\":", comm->size);
    add_number(&json, ",\"ranks_per_node\":", what->ranks_per_node);
    vn_definition *definition = vn_definition_locked("comm", name, &json);
    if (definition->is_new) {
        vn_cost cost = {0};
        double ns = comm->size == 1 ? 0 : vn_cost_collective(what->name, what->bytes, what->ranks,
                                                              what->ranks_per_node, &cost);
        definition->duration_ns = (int64_t)(ns * vn_settings()->link_factor + 0.5);
        vn_text_string(&json, ",\"class\":");
        vn_text_json_string(&json, cost.klass ? cost.klass : "");
        add_number(&json, ",\"ns\":", definition->duration_ns);
        vn_text_string(&json, ",\"memory_ns\":");
        vn_text_real(&json, cost.memory_ns);
        vn_text_string(&json, ",\"fixed_ns\":");
        vn_text_real(&json, cost.fixed_ns);
        vn_text_string(&json, "}");
        vn_definition_write_locked(definition, "comm", name, &json);
    }
    return definition;
}

static vn_meeting *new_meeting(vn_communicator *comm, int parts)
{
    vn_meeting *meeting = calloc(1, sizeof *meeting + (size_t)parts * sizeof meeting->parts[0]);
    meeting->room = comm->room;
    meeting->comm = comm->id;
    meeting->size = comm->size;
    meeting->rank = comm->rank;
    meeting->async_error = &comm->async_error;
    meeting->part_count = parts;
    return meeting;
}

static int enqueue_locked(const char *function, vn_communicator *comm, aclrtStream stream, const description *what,
                          vn_meeting *meeting)
{
    vn_stream *queue = vn_stream_locked(stream);
    if (!queue) {
        vn_meeting_free_locked(meeting);
        return vn_fail_locked(function, VN_HCCL_PARAMETER, "%s: %p is no stream", function, stream);
    }
    meeting->index = comm->next_index++;
    const vn_definition *definition = define_locked(comm, what);
    vn_entry entry = {.kind = VN_COLLECTIVE, .seq = vn_next_seq_locked(), .definition = definition->id,
                      .thread = vn_thread_id(), .host_ns = vn_launch_time_locked(),
                      .duration_ns = definition->duration_ns, .meeting = meeting};
    vn_append_locked(queue, &entry);
    return VN_OK;
}

/* A collective of all ranks. `transfer` is copied; lists in it are taken over. */
static int collective(const char *function, HcclComm handle, aclrtStream stream, const char *name,
                      const vn_transfer *transfer, double bytes)
{
    vn_transfer *kept = malloc(sizeof *kept);
    *kept = *transfer;
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm || (!vn_hccl_bytes(transfer->type) && transfer->kind != VN_BARRIER)) {
        vn_transfer_free(kept);
        return !comm ? vn_no_communicator(function, handle)
                     : vn_fail(function, VN_HCCL_PARAMETER, "EI0003: In [%s], value [%d] for parameter [dataType] is "
                               "invalid. Reason: no such type", function, transfer->type);
    }
    kept->size = comm->size;
    kept->rank = comm->rank;
    bool has_reduction = kept->kind == VN_ALL_REDUCE || kept->kind == VN_REDUCE || kept->kind == VN_REDUCE_SCATTER
                         || kept->kind == VN_REDUCE_SCATTER_V;
    bool has_root = kept->kind == VN_BROADCAST || kept->kind == VN_SCATTER || kept->kind == VN_REDUCE;
    bool is_even = kept->kind != VN_ALL_TO_ALL_V && kept->kind != VN_REDUCE_SCATTER_V && kept->kind != VN_ALL_GATHER_V;
    description what = {.name = name, .bytes = bytes, .count = kept->count, .type = kept->type,
                        .reduction = has_reduction ? (int)kept->reduction : -1, .root = has_root ? kept->root : -1,
                        .peer = -1, .ranks = comm->size, .ranks_per_node = comm->ranks_per_node};
    vn_meeting *meeting = new_meeting(comm, 1);
    vn_meeting_part *part = &meeting->parts[0];
    part->from = part->to = -1;
    part->transfer = kept;
    /* Ranks may give different counts to the collectives whose counts are lists. */
    snprintf(part->what, sizeof part->what, "%s count %lld type %d op %d root %d", name,
             is_even ? (long long)kept->count : -1, kept->type, what.reduction, what.root);
    vn_lock();
    part->index = comm->next_index;
    int code = enqueue_locked(function, comm, stream, &what, meeting);
    vn_unlock();
    return code;
}

static double total(uint64_t count, HcclDataType type)
{
    return (double)count * (double)vn_hccl_bytes(type);
}

HcclResult HcclAllReduce(void *sendBuf, void *recvBuf, uint64_t count, HcclDataType dataType, HcclReduceOp op,
                         HcclComm comm, aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_ALL_REDUCE, .send = sendBuf, .receive = recvBuf, .count = count,
                            .type = dataType, .reduction = op};
    return collective(__func__, comm, stream, "AllReduce", &transfer, total(count, dataType));
}

HcclResult HcclReduce(void *sendBuf, void *recvBuf, uint64_t count, HcclDataType dataType, HcclReduceOp op,
                      uint32_t root, HcclComm comm, aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_REDUCE, .send = sendBuf, .receive = recvBuf, .count = count, .type = dataType,
                            .reduction = op, .root = (int)root};
    return collective(__func__, comm, stream, "Reduce", &transfer, total(count, dataType));
}

HcclResult HcclBroadcast(void *buf, uint64_t count, HcclDataType dataType, uint32_t root, HcclComm comm,
                         aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_BROADCAST, .send = buf, .receive = buf, .count = count, .type = dataType,
                            .root = (int)root};
    return collective(__func__, comm, stream, "Broadcast", &transfer, total(count, dataType));
}

HcclResult HcclReduceScatter(void *sendBuf, void *recvBuf, uint64_t recvCount, HcclDataType dataType, HcclReduceOp op,
                             HcclComm comm, aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_REDUCE_SCATTER, .send = sendBuf, .receive = recvBuf, .count = recvCount,
                            .type = dataType, .reduction = op};
    return collective(__func__, comm, stream, "ReduceScatter", &transfer, total(recvCount, dataType));
}

HcclResult HcclScatter(void *sendBuf, void *recvBuf, uint64_t recvCount, HcclDataType dataType, uint32_t root,
                       HcclComm comm, aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_SCATTER, .send = sendBuf, .receive = recvBuf, .count = recvCount,
                            .type = dataType, .root = (int)root};
    return collective(__func__, comm, stream, "Scatter", &transfer, total(recvCount, dataType));
}

HcclResult HcclAllGather(void *sendBuf, void *recvBuf, uint64_t sendCount, HcclDataType dataType, HcclComm comm,
                         aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_ALL_GATHER, .send = sendBuf, .receive = recvBuf, .count = sendCount,
                            .type = dataType};
    return collective(__func__, comm, stream, "AllGather", &transfer, total(sendCount, dataType));
}

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream)
{
    vn_transfer transfer = {.kind = VN_BARRIER};
    return collective(__func__, comm, stream, "Barrier", &transfer, 0);
}

HcclResult HcclAlltoAll(const void *sendBuf, uint64_t sendCount, HcclDataType sendType, const void *recvBuf,
                        uint64_t recvCount, HcclDataType recvType, HcclComm comm, aclrtStream stream)
{
    vn_communicator *one = vn_communicator_find(comm);
    if (one && (sendCount != recvCount || sendType != recvType))
        return vn_fail(__func__, VN_HCCL_PARAMETER, "HcclAlltoAll: counts and types of both sides must be equal");
    vn_transfer transfer = {.kind = VN_ALL_TO_ALL, .send = sendBuf, .receive = (char *)(uintptr_t)recvBuf,
                            .count = sendCount, .type = sendType};
    return collective(__func__, comm, stream, "AlltoAll", &transfer,
                      total(sendCount, sendType) * (one ? one->size : 1));
}

/* ---- collectives with a count for each rank ---- */

static uint64_t *list_of(const void *values, int size)
{
    uint64_t *list = calloc((size_t)size, sizeof *list);
    if (values)
        memcpy(list, values, (size_t)size * sizeof *list);
    return list;
}

static uint64_t sum_of(const uint64_t *list, int size)
{
    uint64_t sum = 0;
    for (int i = 0; i < size; i++)
        sum += list[i];
    return sum;
}

HcclResult HcclReduceScatterV(void *sendBuf, const void *sendCounts, const void *sendDispls, void *recvBuf,
                              uint64_t recvCount, HcclDataType dataType, HcclReduceOp op, HcclComm comm,
                              aclrtStream stream)
{
    vn_communicator *one = vn_communicator_find(comm);
    if (!one)
        return vn_no_communicator(__func__, comm);
    vn_transfer transfer = {.kind = VN_REDUCE_SCATTER_V, .send = sendBuf, .receive = recvBuf, .count = recvCount,
                            .type = dataType, .reduction = op, .send_counts = list_of(sendCounts, one->size),
                            .send_offsets = list_of(sendDispls, one->size)};
    double mean = total(sum_of(transfer.send_counts, one->size), dataType) / one->size;
    return collective(__func__, comm, stream, "ReduceScatter", &transfer, mean);
}

HcclResult HcclAllGatherV(void *sendBuf, uint64_t sendCount, void *recvBuf, const void *recvCounts,
                          const void *recvDispls, HcclDataType dataType, HcclComm comm, aclrtStream stream)
{
    vn_communicator *one = vn_communicator_find(comm);
    if (!one)
        return vn_no_communicator(__func__, comm);
    vn_transfer transfer = {.kind = VN_ALL_GATHER_V, .send = sendBuf, .receive = recvBuf, .count = sendCount,
                            .type = dataType, .receive_counts = list_of(recvCounts, one->size),
                            .receive_offsets = list_of(recvDispls, one->size)};
    double mean = total(sum_of(transfer.receive_counts, one->size), dataType) / one->size;
    return collective(__func__, comm, stream, "AllGather", &transfer, mean);
}

HcclResult HcclAlltoAllV(const void *sendBuf, const void *sendCounts, const void *sdispls, HcclDataType sendType,
                         const void *recvBuf, const void *recvCounts, const void *rdispls, HcclDataType recvType,
                         HcclComm comm, aclrtStream stream)
{
    (void)recvType;
    vn_communicator *one = vn_communicator_find(comm);
    if (!one)
        return vn_no_communicator(__func__, comm);
    vn_transfer transfer = {.kind = VN_ALL_TO_ALL_V, .send = sendBuf, .receive = (char *)(uintptr_t)recvBuf,
                            .type = sendType, .send_counts = list_of(sendCounts, one->size),
                            .send_offsets = list_of(sdispls, one->size),
                            .receive_counts = list_of(recvCounts, one->size),
                            .receive_offsets = list_of(rdispls, one->size)};
    transfer.count = sum_of(transfer.send_counts, one->size);
    return collective(__func__, comm, stream, "AlltoAllV", &transfer, total(transfer.count, sendType));
}

/* The matrix says what every rank sends to every other; parts lie without gaps. */
HcclResult HcclAlltoAllVC(const void *sendBuf, const void *sendCountMatrix, HcclDataType sendType,
                          const void *recvBuf, HcclDataType recvType, HcclComm comm, aclrtStream stream)
{
    (void)recvType;
    vn_communicator *one = vn_communicator_find(comm);
    if (!one)
        return vn_no_communicator(__func__, comm);
    if (!sendCountMatrix)
        return vn_fail(__func__, VN_HCCL_NULL, "HcclAlltoAllVC: no matrix of counts");
    const uint64_t *matrix = sendCountMatrix;
    int size = one->size;
    vn_transfer transfer = {.kind = VN_ALL_TO_ALL_V, .send = sendBuf, .receive = (char *)(uintptr_t)recvBuf,
                            .type = sendType, .send_counts = list_of(matrix + (size_t)one->rank * (size_t)size, size),
                            .send_offsets = list_of(NULL, size), .receive_counts = list_of(NULL, size),
                            .receive_offsets = list_of(NULL, size)};
    for (int i = 0; i < size; i++)
        transfer.receive_counts[i] = matrix[(size_t)i * (size_t)size + (size_t)one->rank];
    for (int i = 1; i < size; i++) {
        transfer.send_offsets[i] = transfer.send_offsets[i - 1] + transfer.send_counts[i - 1];
        transfer.receive_offsets[i] = transfer.receive_offsets[i - 1] + transfer.receive_counts[i - 1];
    }
    transfer.count = sum_of(transfer.send_counts, size);
    return collective(__func__, comm, stream, "AlltoAllV", &transfer, total(transfer.count, sendType));
}

/* ---- point to point ---- */

static vn_transfer_kind direction(const HcclSendRecvItem *item)
{
    return item->sendRecvType == 0 ? VN_SEND : VN_RECV;
}

static bool is_near(const vn_communicator *comm, int peer)
{
    int other = comm->ranks ? comm->ranks[peer] : peer, self = comm->ranks ? comm->ranks[comm->rank] : comm->rank;
    return vn_node_of(other) == vn_node_of(self);
}

static int check_items(const char *function, const vn_communicator *comm, const HcclSendRecvItem *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].remoteRank >= (uint32_t)comm->size)
            return vn_fail(function, VN_HCCL_PARAMETER, "EI0003: In [%s], value [%u] for parameter [remoteRank] is "
                           "invalid. Reason: the communicator has %d ranks", function, items[i].remoteRank,
                           comm->size);
        if (!vn_hccl_bytes(items[i].dataType))
            return vn_fail(function, VN_HCCL_PARAMETER, "EI0003: In [%s], value [%d] for parameter [dataType] is "
                           "invalid. Reason: no such type", function, items[i].dataType);
    }
    return VN_OK;
}

/* Transfers that belong together: one entry of the stream, which starts when the other ends of all are there. */
static int batch(const char *function, const HcclSendRecvItem *items, uint32_t count, HcclComm handle,
                 aclrtStream stream)
{
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm)
        return vn_no_communicator(function, handle);
    if (!items || !count)
        return vn_fail(function, VN_HCCL_NULL, "%s: nothing to transfer", function);
    int code = check_items(function, comm, items, count);
    if (code)
        return code;
    vn_meeting *meeting = new_meeting(comm, (int)count);
    double sent = 0, received = 0;
    bool is_single = count == 1, is_all_near = true;
    uint64_t elements = 0;
    vn_lock();
    for (uint32_t i = 0; i < count; i++) {
        vn_meeting_part *part = &meeting->parts[i];
        bool is_send = direction(&items[i]) == VN_SEND;
        int peer = (int)items[i].remoteRank;
        part->from = is_send ? comm->rank : peer;
        part->to = is_send ? peer : comm->rank;
        part->index = is_send ? comm->sent[peer]++ : comm->received[peer]++;
        part->transfer = calloc(1, sizeof *part->transfer);
        *part->transfer = (vn_transfer){.kind = direction(&items[i]), .send = items[i].buf, .receive = items[i].buf,
                                        .count = items[i].count, .type = items[i].dataType, .size = 2};
        snprintf(part->what, sizeof part->what, "transfer %d to %d count %llu type %d", part->from, part->to,
                 (unsigned long long)items[i].count, items[i].dataType);
        part->is_done = peer == comm->rank;     /* to itself: nobody to wait for (its contents are not moved) */
        *(is_send ? &sent : &received) += total(items[i].count, items[i].dataType);
        is_all_near = is_all_near && is_near(comm, peer);
        elements += items[i].count;
    }
    description what = {.name = !is_single ? "BatchSendRecv" : direction(items) == VN_SEND ? "Send" : "Recv",
                        .bytes = sent > received ? sent : received, .count = elements, .type = items[0].dataType,
                        .reduction = -1, .root = -1, .peer = is_single ? (int)items[0].remoteRank : -1,
                        .ranks = is_single ? 2 : comm->size};
    what.ranks_per_node = is_all_near ? what.ranks : 1;
    code = enqueue_locked(function, comm, stream, &what, meeting);
    vn_unlock();
    return code;
}

/* Calls between HcclGroupStart and HcclGroupEnd wait for its end and are done together. */
typedef struct { HcclSendRecvItem item; HcclComm comm; aclrtStream stream; } grouped;
static __thread int group_depth;
static __thread grouped *group;
static __thread uint32_t group_count;

static int single(const char *function, const HcclSendRecvItem *item, HcclComm comm, aclrtStream stream)
{
    if (!group_depth)
        return batch(function, item, 1, comm, stream);
    group = realloc(group, (group_count + 1) * sizeof *group);
    group[group_count++] = (grouped){*item, comm, stream};
    return VN_OK;
}

HcclResult HcclSend(void *sendBuf, uint64_t count, HcclDataType dataType, uint32_t destRank, HcclComm comm,
                    aclrtStream stream)
{
    HcclSendRecvItem item = {0, sendBuf, count, dataType, destRank};
    return single(__func__, &item, comm, stream);
}

HcclResult HcclRecv(void *recvBuf, uint64_t count, HcclDataType dataType, uint32_t srcRank, HcclComm comm,
                    aclrtStream stream)
{
    HcclSendRecvItem item = {1, recvBuf, count, dataType, srcRank};
    return single(__func__, &item, comm, stream);
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem *sendRecvInfo, uint32_t itemNum, HcclComm comm, aclrtStream stream)
{
    return batch(__func__, sendRecvInfo, itemNum, comm, stream);
}

HcclResult HcclGroupStart(void)
{
    group_depth++;
    return VN_OK;
}

HcclResult HcclGroupEnd(void)
{
    if (!group_depth)
        return vn_fail(__func__, VN_HCCL_PARAMETER, "HcclGroupEnd: no group was started");
    if (--group_depth)
        return VN_OK;
    int code = VN_OK;
    HcclSendRecvItem *items = malloc((group_count + 1) * sizeof *items);
    while (group_count && !code) {
        grouped first = group[0];
        uint32_t taken = 0, left = 0;
        for (uint32_t i = 0; i < group_count; i++)
            if (group[i].comm == first.comm && group[i].stream == first.stream)
                items[taken++] = group[i].item;
            else
                group[left++] = group[i];
        group_count = left;
        code = batch("HcclGroupEnd", items, taken, first.comm, first.stream);
    }
    group_count = 0;
    free(items);
    return code;
}
