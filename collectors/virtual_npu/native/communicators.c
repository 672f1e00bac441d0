/* Communicators (HCCL): who is in them, and where their ranks meet. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

enum { MIB = 1 << 20, DEFAULT_BUFFER_MIB = 200, BUFFERS = 2 };

static const uint64_t COMM_MAGIC = 0x56504e434f4d4d31;
static const uint32_t NOT_SET = 0xffffffff;

static int next_comm, next_root;

/* What the root hands out: a key that no other communicator of the job has, also not one of a process that ran before
 * it (restarts), and a name that is the same from run to run. */
typedef struct { char key[VN_COMM_KEY], name[VN_COMM_NAME]; } root_info;

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

int vn_node_of(int rank) { return rank / vn_settings()->ranks_per_node; }

static int ranks_in_node(const vn_communicator *comm)
{
    int per_node = vn_settings()->ranks_per_node;
    if (!comm->ranks)       /* the ranks are not known: they are taken to be neighbours */
        return comm->size < per_node ? comm->size : per_node;
    int count = 0;
    for (int i = 0; i < comm->size; i++)
        count += vn_node_of(comm->ranks[i]) == vn_node_of(comm->ranks[comm->rank]);
    return count;
}

/* Ranks of the job by name of the communicator. HCCL is not told which ranks a group has; where one process stands for
 * all ranks, only the program knows, and the harness tells it here before the group is used. */
typedef struct named_group {
    struct named_group *next;
    int size;
    int *ranks;
    char name[VN_COMM_NAME];
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

static const int *ranks_by_name(const vn_communicator *comm)
{
    vn_lock();
    const named_group *group = named_groups;
    while (group && (group->size != comm->size || strcmp(group->name, comm->name)))
        group = group->next;
    vn_unlock();
    return group ? group->ranks : NULL;     /* groups are never freed */
}

/* For point-to-point transfers torch_npu makes communicators of two ranks without a name; whom the next transfer of
 * this thread is with, the harness tells here. The lower rank is the first. */
static __thread int next_peer = -1;

__attribute__((visibility("default"))) void virtual_npu_peer(int32_t rank)
{
    next_peer = rank;
}

static int *known_ranks(const vn_communicator *comm, const int *given, bool is_named)
{
    bool is_all = comm->size == vn_settings()->world_size;
    int self = vn_settings()->rank, pair[2] = {self < next_peer ? self : next_peer, self < next_peer ? next_peer : self};
    if (!comm->room && !given)
        given = ranks_by_name(comm);
    if (!comm->room && !given && !is_named && comm->size == 2 && next_peer >= 0 && next_peer != self)
        given = pair;
    if (!comm->room && !given && !is_all)
        return NULL;
    int *ranks = malloc((size_t)comm->size * sizeof *ranks);
    for (int i = 0; i < comm->size; i++)
        ranks[i] = comm->room ? vn_room_global_rank(comm->room, i) : given ? given[i] : i;
    return ranks;
}

static void record_comm_locked(const vn_communicator *comm)
{
    static vn_text line;
    char name[2 * VN_COMM_NAME];
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
    vn_communicator *comm = calloc(1, sizeof *comm);
    *comm = (vn_communicator){.magic = COMM_MAGIC, .size = size, .rank = rank, .device = device < 0 ? 0 : device,
                           .buffer_bytes = buffer_bytes(config)};
    snprintf(comm->key, sizeof comm->key, "%s", key);
    bool is_named = config && config->hcclCommName[0];
    snprintf(comm->name, sizeof comm->name, "%.*s", VN_COMM_NAME - 1, is_named ? config->hcclCommName : name);
    int code = vn_room_enter(function, key, size, rank, &comm->room);
    if (code) {
        free(comm);
        return code;
    }
    comm->ranks = known_ranks(comm, ranks, is_named);
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

vn_communicator *vn_communicator_find(HcclComm handle)
{
    vn_communicator *comm = handle;
    return comm && comm->magic == COMM_MAGIC ? comm : NULL;
}

int vn_no_communicator(const char *function, HcclComm handle)
{
    return vn_fail(function, VN_HCCL_NULL, "%s: %p is no communicator", function, handle);
}

HcclResult HcclCreateSubCommConfig(HcclComm *comm, uint32_t rankNum, uint32_t *rankIds, uint64_t subCommId,
                                   uint32_t subCommRankId, HcclCommConfig *config, HcclComm *subComm)
{
    vn_communicator *parent = comm ? vn_communicator_find(*comm) : NULL;
    if (!parent)
        return vn_no_communicator(__func__, comm ? *comm : NULL);
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
    char key[VN_COMM_KEY], name[VN_COMM_NAME];
    snprintf(key, sizeof key, "%.100s/%llu", parent->key, (unsigned long long)subCommId);
    snprintf(name, sizeof name, "%.90s_%llu", parent->name, (unsigned long long)subCommId);
    int code = make(__func__, (int)rankNum, key, name, (int)subCommRankId, ranks, config, subComm);
    free(ranks);
    return code;
}

/* The object stays, so that work still queued for it finds it. */
HcclResult HcclCommDestroy(HcclComm handle)
{
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm)
        return vn_no_communicator(__func__, handle);
    vn_lock();
    comm->magic = 0;
    if (comm->size > 1)
        vn_memory_release_locked(comm->device, comm->buffer_bytes);
    vn_unlock();
    return VN_OK;
}

HcclResult HcclGetCommName(HcclComm handle, char *commName)
{
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm || !commName)
        return vn_no_communicator(__func__, handle);
    strcpy(commName, comm->name);
    return VN_OK;
}

HcclResult HcclGetRankSize(HcclComm handle, uint32_t *rankSize)
{
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm || !rankSize)
        return vn_no_communicator(__func__, handle);
    *rankSize = (uint32_t)comm->size;
    return VN_OK;
}

HcclResult HcclGetRankId(HcclComm handle, uint32_t *rank)
{
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm || !rank)
        return vn_no_communicator(__func__, handle);
    *rank = (uint32_t)comm->rank;
    return VN_OK;
}

HcclResult HcclGetCommAsyncError(HcclComm handle, HcclResult *asyncError)
{
    vn_communicator *comm = vn_communicator_find(handle);
    if (!comm || !asyncError)
        return vn_no_communicator(__func__, handle);
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
