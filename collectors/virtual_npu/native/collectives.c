/* Communicators, collectives and point-to-point transfers (HCCL).
 *
 * A collective is one entry of its stream. It starts when the streams of all ranks have arrived (meeting.c) and takes
 * what the cost model says; small contents are exchanged (payload.c).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

enum { MIB = 1 << 20, DEFAULT_BUFFER_MIB = 200, BUFFERS = 2, NAME_BYTES = 128, KEY_BYTES = 160 };

static const uint64_t COMM_MAGIC = 0x56504e434f4d4d31;
static const uint32_t NOT_SET = 0xffffffff;

typedef struct {
    uint64_t magic;
    int id, size, rank, device;
    int *ranks;                     /* by rank: RANK of the process; NULL: not known */
    int ranks_per_node;             /* of its ranks, how many share this rank's node */
    char name[NAME_BYTES], key[KEY_BYTES];
    vn_room *room;
    uint64_t next_index;
    uint64_t *sent, *received;      /* by rank: point-to-point transfers so far */
    int64_t buffer_bytes;
    int async_error;
} communicator;

static int next_comm, next_root;

__attribute__((weak)) double vn_cost_collective(const char *op, double bytes, int ranks, int ranks_per_node,
                                                vn_cost *out)
{
    (void)op, (void)bytes, (void)ranks, (void)ranks_per_node;
    return out->ns = 2000;
}

/* ---- communicators ---- */

/* What the root hands out: a key that no other communicator of the job has, also not one of a process that ran before
 * it (restarts), and a name that is the same from run to run. */
typedef struct { char key[KEY_BYTES], name[NAME_BYTES]; } root_info;

HcclResult HcclGetRootInfo(HcclRootInfo *rootInfo)
{
    if (!rootInfo)
        return vn_fail(__func__, VN_HCCL_NULL, "HcclGetRootInfo: no place for the result");
    memset(rootInfo, 0, sizeof *rootInfo);
    root_info info = {0};
    vn_lock();
    int number = next_root++;
    vn_unlock();
    snprintf(info.key, sizeof info.key, "%d.%d.%d", vn_settings()->rank, (int)getpid(), number);
    snprintf(info.name, sizeof info.name, "virtual_%d_%d", vn_settings()->rank, number);
    memcpy(rootInfo->internal, &info, sizeof info);
    return VN_OK;
}

static int node_of(int rank) { return rank / vn_settings()->ranks_per_node; }

static int ranks_in_node(const communicator *comm)
{
    int per_node = vn_settings()->ranks_per_node;
    if (!comm->ranks)       /* the ranks are not known: they are taken to be neighbours */
        return comm->size < per_node ? comm->size : per_node;
    int count = 0;
    for (int i = 0; i < comm->size; i++)
        count += node_of(comm->ranks[i]) == node_of(comm->ranks[comm->rank]);
    return count;
}

/* Ranks of the job by name of the communicator. HCCL is not told which ranks a group has; where one process stands for
 * all ranks, only the program knows, and the harness tells it here before the group is used. */
typedef struct named_group {
    struct named_group *next;
    int size;
    int *ranks;
    char name[NAME_BYTES];
} named_group;

static named_group *named_groups;

__attribute__((visibility("default"))) void virtual_npu_group(const char *name, const int32_t *ranks, int32_t size)
{
    if (!name || !ranks || size < 1)
        return;
    named_group *group = calloc(1, sizeof *group);
    group->size = size;
    group->ranks = malloc((size_t)size * sizeof *group->ranks);
    for (int i = 0; i < size; i++)
        group->ranks[i] = ranks[i];
    snprintf(group->name, sizeof group->name, "%s", name);
    vn_lock();
    group->next = named_groups;
    named_groups = group;
    vn_unlock();
}

static const int *ranks_by_name(const communicator *comm)
{
    vn_lock();
    const named_group *group = named_groups;
    while (group && (group->size != comm->size || strcmp(group->name, comm->name)))
        group = group->next;
    vn_unlock();
    return group ? group->ranks : NULL;     /* groups are never freed */
}

static int *known_ranks(const communicator *comm, const int *given)
{
    bool is_all = comm->size == vn_settings()->world_size;
    if (!comm->room && !given)
        given = ranks_by_name(comm);
    if (!comm->room && !given && !is_all)
        return NULL;
    int *ranks = malloc((size_t)comm->size * sizeof *ranks);
    for (int i = 0; i < comm->size; i++)
        ranks[i] = comm->room ? vn_room_global_rank(comm->room, i) : given ? given[i] : i;
    return ranks;
}

static void record_comm_locked(const communicator *comm)
{
    static vn_text line;
    char name[2 * NAME_BYTES];
    vn_text_clear(&line);
    vn_text_string(&line, "G\t");
    vn_text_int(&line, comm->id);
    vn_text_string(&line, "\t");
    vn_text_string(&line, vn_escape(comm->name, name, sizeof name));
    vn_text_string(&line, "\t");
    vn_text_int(&line, comm->size);
    vn_text_string(&line, "\t");
    vn_text_int(&line, comm->rank);
    vn_text_string(&line, comm->ranks ? "\t[" : "\tnull");
    for (int i = 0; comm->ranks && i < comm->size; i++) {
        if (i)
            vn_text_string(&line, ",");
        vn_text_int(&line, comm->ranks[i]);
    }
    if (comm->ranks)
        vn_text_string(&line, "]");
    vn_record_text_locked(line.text, line.length);
}

/* Bytes of the two communication buffers of a communicator (HCCL_BUFFSIZE, in MB). */
static int64_t buffer_bytes(const HcclCommConfig *config)
{
    const char *text = getenv("HCCL_BUFFSIZE");
    int64_t mib = config && config->hcclBufferSize && config->hcclBufferSize != NOT_SET ? config->hcclBufferSize
                  : text && atoll(text) > 0 ? atoll(text) : DEFAULT_BUFFER_MIB;
    return BUFFERS * mib * MIB;
}

static int make(const char *function, int size, const char *key, const char *name, int rank, const int *ranks,
                const HcclCommConfig *config, HcclComm *result)
{
    if (!result)
        return vn_fail(function, VN_HCCL_NULL, "%s: no place for the communicator", function);
    *result = NULL;
    if (size < 1 || rank < 0 || rank >= size)
        return vn_fail(function, VN_HCCL_PARAMETER, "EI0003: In [%s], value [%d] for parameter [rank] is invalid. "
                       "Reason: the communicator has %d ranks", function, rank, size);
    int device = vn_current_device();
    communicator *comm = calloc(1, sizeof *comm);
    *comm = (communicator){.magic = COMM_MAGIC, .size = size, .rank = rank, .device = device < 0 ? 0 : device,
                           .buffer_bytes = buffer_bytes(config)};
    snprintf(comm->key, sizeof comm->key, "%s", key);
    bool is_named = config && config->hcclCommName[0];
    snprintf(comm->name, sizeof comm->name, "%.*s", NAME_BYTES - 1, is_named ? config->hcclCommName : name);
    int code = vn_room_enter(function, key, size, rank, &comm->room);
    if (code) {
        free(comm);
        return code;
    }
    comm->ranks = known_ranks(comm, ranks);
    comm->ranks_per_node = ranks_in_node(comm);
    comm->sent = calloc((size_t)size, sizeof *comm->sent);
    comm->received = calloc((size_t)size, sizeof *comm->received);
    vn_lock();
    if (size > 1 && !vn_memory_reserve_locked(comm->device, comm->buffer_bytes)) {
        vn_unlock();
        return vn_fail(function, VN_HCCL_OUT_OF_MEMORY, "EL0004: Failed to allocate memory. Possible Cause: Available "
                       "memory is insufficient. (%s: communication buffers of %lld bytes, HCCL_BUFFSIZE)", function,
                       (long long)comm->buffer_bytes);
    }
    comm->id = next_comm++;
    record_comm_locked(comm);
    vn_unlock();
    *result = comm;
    return VN_OK;
}

HcclResult HcclCommInitRootInfoConfig(uint32_t nRanks, const HcclRootInfo *rootInfo, uint32_t rank,
                                      const HcclCommConfig *config, HcclComm *comm)
{
    if (!rootInfo)
        return vn_fail(__func__, VN_HCCL_NULL, "HcclCommInitRootInfo: no root information");
    root_info info;
    memcpy(&info, rootInfo->internal, sizeof info);
    info.key[sizeof info.key - 1] = info.name[sizeof info.name - 1] = 0;
    return make("HcclCommInitRootInfo", (int)nRanks, info.key, info.name, (int)rank, NULL, config, comm);
}

HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo *rootInfo, uint32_t rank, HcclComm *comm)
{
    return HcclCommInitRootInfoConfig(nRanks, rootInfo, rank, NULL, comm);
}

HcclResult HcclCommInitAll(uint32_t ndev, int32_t *devices, HcclComm *comms)
{
    (void)devices;
    int code = VN_OK;
    for (uint32_t i = 0; i < ndev && !code; i++)
        code = make(__func__, (int)ndev, "all", "virtual_all", (int)i, NULL, NULL, &comms[i]);
    return code;
}

static communicator *find(HcclComm handle)
{
    communicator *comm = handle;
    return comm && comm->magic == COMM_MAGIC ? comm : NULL;
}

static int no_comm(const char *function, HcclComm handle)
{
    return vn_fail(function, VN_HCCL_NULL, "%s: %p is no communicator", function, handle);
}

HcclResult HcclCreateSubCommConfig(HcclComm *comm, uint32_t rankNum, uint32_t *rankIds, uint64_t subCommId,
                                   uint32_t subCommRankId, HcclCommConfig *config, HcclComm *subComm)
{
    communicator *parent = comm ? find(*comm) : NULL;
    if (!parent)
        return no_comm(__func__, comm ? *comm : NULL);
    if (!rankIds)
        return vn_fail(__func__, VN_HCCL_NULL, "HcclCreateSubCommConfig: no list of ranks");
    int *ranks = malloc(rankNum * sizeof *ranks + 1);
    for (uint32_t i = 0; i < rankNum; i++) {
        if ((int64_t)rankIds[i] >= parent->size) {
            free(ranks);
            return vn_fail(__func__, VN_HCCL_PARAMETER, "HcclCreateSubCommConfig: rank %u of %d", rankIds[i],
                           parent->size);
        }
        ranks[i] = parent->ranks ? parent->ranks[rankIds[i]] : (int)rankIds[i];
    }
    char key[KEY_BYTES], name[NAME_BYTES];
    snprintf(key, sizeof key, "%.100s/%llu", parent->key, (unsigned long long)subCommId);
    snprintf(name, sizeof name, "%.90s_%llu", parent->name, (unsigned long long)subCommId);
    int code = make(__func__, (int)rankNum, key, name, (int)subCommRankId, ranks, config, subComm);
    free(ranks);
    return code;
}

/* The object stays, so that work still queued for it finds it. */
HcclResult HcclCommDestroy(HcclComm handle)
{
    communicator *comm = find(handle);
    if (!comm)
        return no_comm(__func__, handle);
    vn_lock();
    comm->magic = 0;
    if (comm->size > 1)
        vn_memory_release_locked(comm->device, comm->buffer_bytes);
    vn_unlock();
    return VN_OK;
}

HcclResult HcclGetCommName(HcclComm handle, char *commName)
{
    communicator *comm = find(handle);
    if (!comm || !commName)
        return no_comm(__func__, handle);
    strcpy(commName, comm->name);
    return VN_OK;
}

HcclResult HcclGetRankSize(HcclComm handle, uint32_t *rankSize)
{
    communicator *comm = find(handle);
    if (!comm || !rankSize)
        return no_comm(__func__, handle);
    *rankSize = (uint32_t)comm->size;
    return VN_OK;
}

HcclResult HcclGetRankId(HcclComm handle, uint32_t *rank)
{
    communicator *comm = find(handle);
    if (!comm || !rank)
        return no_comm(__func__, handle);
    *rank = (uint32_t)comm->rank;
    return VN_OK;
}

HcclResult HcclGetCommAsyncError(HcclComm handle, HcclResult *asyncError)
{
    communicator *comm = find(handle);
    if (!comm || !asyncError)
        return no_comm(__func__, handle);
    vn_lock();
    *asyncError = (HcclResult)comm->async_error;
    vn_unlock();
    return VN_OK;
}

const char *HcclGetErrorString(HcclResult code)
{
    static const char *const names[] = {
        "no error", "parameter error", "empty pointer", "memory error", "internal error", "not support feature",
        "not found specific resource", "resource unavailable", "call system interface error", "timeout",
    };
    return code >= 0 && (size_t)code < sizeof names / sizeof *names ? names[code]
           : code == VN_HCCL_OUT_OF_MEMORY                           ? "out of memory"
                                                                     : "unknown error";
}

/* All of the settings of HcclCommConfig are understood; the ones without meaning here are ignored. */
uint32_t HcclGetCommConfigCapability(void)
{
    return 12;      /* HCCL_COMM_CONFIG_RESERVED */
}

/* Deterministic reduction on or off: kept, and without effect on the model. */
enum { CONFIGS = 8 };
static int32_t configs[CONFIGS];

HcclResult HcclSetConfig(HcclConfig config, HcclConfigValue configValue)
{
    if (config < 0 || config >= CONFIGS)
        return vn_fail(__func__, VN_HCCL_PARAMETER, "HcclSetConfig: setting %d", config);
    configs[config] = configValue.value;
    return VN_OK;
}

HcclResult HcclGetConfig(HcclConfig config, HcclConfigValue *configValue)
{
    if (config < 0 || config >= CONFIGS || !configValue)
        return vn_fail(__func__, VN_HCCL_PARAMETER, "HcclGetConfig: setting %d", config);
    configValue->value = configs[config];
    return VN_OK;
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

static vn_definition *define_locked(const communicator *comm, const description *what)
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

static vn_meeting *new_meeting(communicator *comm, int parts)
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

static int enqueue_locked(const char *function, communicator *comm, aclrtStream stream, const description *what,
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
    communicator *comm = find(handle);
    if (!comm || (!vn_hccl_bytes(transfer->type) && transfer->kind != VN_BARRIER)) {
        vn_transfer_free(kept);
        return comm ? vn_fail(function, VN_HCCL_PARAMETER, "EI0003: In [%s], value [%d] for parameter [dataType] is "
                              "invalid. Reason: no such type", function, transfer->type) : no_comm(function, handle);
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
    communicator *one = find(comm);
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
    communicator *one = find(comm);
    if (!one)
        return no_comm(__func__, comm);
    vn_transfer transfer = {.kind = VN_REDUCE_SCATTER_V, .send = sendBuf, .receive = recvBuf, .count = recvCount,
                            .type = dataType, .reduction = op, .send_counts = list_of(sendCounts, one->size),
                            .send_offsets = list_of(sendDispls, one->size)};
    double mean = total(sum_of(transfer.send_counts, one->size), dataType) / one->size;
    return collective(__func__, comm, stream, "ReduceScatter", &transfer, mean);
}

HcclResult HcclAllGatherV(void *sendBuf, uint64_t sendCount, void *recvBuf, const void *recvCounts,
                          const void *recvDispls, HcclDataType dataType, HcclComm comm, aclrtStream stream)
{
    communicator *one = find(comm);
    if (!one)
        return no_comm(__func__, comm);
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
    communicator *one = find(comm);
    if (!one)
        return no_comm(__func__, comm);
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
    communicator *one = find(comm);
    if (!one)
        return no_comm(__func__, comm);
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

static bool is_near(const communicator *comm, int peer)
{
    int other = comm->ranks ? comm->ranks[peer] : peer, self = comm->ranks ? comm->ranks[comm->rank] : comm->rank;
    return node_of(other) == node_of(self);
}

static int check_items(const char *function, const communicator *comm, const HcclSendRecvItem *items, uint32_t count)
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
    communicator *comm = find(handle);
    if (!comm)
        return no_comm(function, handle);
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
