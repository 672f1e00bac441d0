/* Private declarations of the virtual device's core: what its source files share.
 *
 * One lock protects all state of a process. A call of the ACL interface takes it, changes streams and record, and gives
 * it back before it sleeps. Functions whose name ends in _locked expect the lock to be held.
 */
#ifndef ASCEND_PERF_VIRTUAL_NPU_CORE_H
#define ASCEND_PERF_VIRTUAL_NPU_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "acl_api.h"
#include "virtual_npu.h"

/* Return codes: acl/error_codes/rt_error_codes.h, acl_base_rt.h, aclnn/acl_meta.h, hccl_types.h. */
enum {
    VN_OK = 0,
    VN_ERROR_PARAM_INVALID = 107000,
    VN_ERROR_INVALID_DEVICE = 107001,
    VN_ERROR_CONTEXT_NULL = 107002,
    VN_ERROR_EVENT_TIMESTAMP_INVALID = 107006,
    VN_ERROR_INVALID_HANDLE = 107017,
    VN_ERROR_PROF_ALREADY_RUN = 100042,
    VN_ERROR_PROF_NOT_RUN = 100043,
    VN_ERROR_OPERATOR_NULL = 161001,
    VN_ERROR_OPERATOR_INVALID = 161002,
    VN_ERROR_CAPTURE_NOT_SUPPORTED = 107030,
    VN_ERROR_NOT_SUPPORTED = 207000,
    VN_ERROR_MEMORY_ALLOCATION = 207001,
    VN_ERROR_MEMORY_FREE = 207002,
    VN_ERROR_INTERNAL = 507000,
    VN_ERROR_EVENT_NOT_COMPLETE = 507006,
    VN_ERROR_STREAM_SYNC_TIMEOUT = 507046,
    VN_ERROR_EVENT_SYNC_TIMEOUT = 507047,
    VN_ERROR_REMOTE = 507057,
    VN_HCCL_PARAMETER = 1,
    VN_HCCL_NULL = 2,
    VN_HCCL_INTERNAL = 4,
    VN_HCCL_NOT_SUPPORTED = 5,
    VN_HCCL_TIMEOUT = 9,
    VN_HCCL_OUT_OF_MEMORY = 24,
};

enum { VN_MAX_DEVICES = 64 };

/* Contents of device memory are kept up to this size: larger buffers are never touched, so that a model of tens of GiB
 * costs no host memory. */
enum { VN_SMALL_BYTES = 64 * 1024 };

/* ---- config.c --------------------------------------------------------------------------------------------------- */

typedef struct {
    char soc[64];
    int device_count;               /* after ASCEND_RT_VISIBLE_DEVICES */
    int world_size, rank, local_rank;
    int ranks_per_node;
    int processes;                  /* of the job that really run; 1: this one stands for all by symmetry */
    int64_t hbm_bytes;              /* of one device */
    int cube_cores, vector_cores;
    int64_t l2_bytes;
    bool is_modelled;               /* clock: modelled instead of wall */
    int64_t host_launch_ns;         /* modelled clock: what a launch costs the host */
    int64_t launch_latency_ns;      /* from the launch on the host until the device can start it */
    char cann_version[64];
    char link_bytes_per_s[32], node_link_bytes_per_s[32];   /* for the record only: the cost model has its own */
    char record_folder[4096];       /* empty: no record */
    char meet_path[4096];           /* empty: no other process */
    double rank_factor;             /* fault slow_rank, if it is this rank's: kernels take that many times as long */
    double link_factor;             /* fault slow_link */
} vn_config;

const vn_config *vn_settings(void);     /* reads the file on the first call */
double vn_operator_factor(const char *name);    /* fault op_factor */

/* ---- clock.c ---------------------------------------------------------------------------------------------------- */

void vn_lock(void);
void vn_unlock(void);
/* Waits for vn_notify_locked or for `limit_ns` (real time); the lock is free meanwhile. */
void vn_wait_locked(int64_t limit_ns);
void vn_notify_locked(void);
bool vn_is_forked_child(void);      /* a forked child has no device, as with the real driver */

int64_t vn_raw_ns(void);            /* CLOCK_MONOTONIC_RAW */
/* Time of the calling thread on the clock of the record. */
int64_t vn_now_locked(void);
/* The same for a launch: in the modelled clock the host is that much later afterwards. Returns the time before. */
int64_t vn_launch_time_locked(void);
/* The host waits until time_ns: sleeps (the lock is free meanwhile), or jumps in the modelled clock. */
void vn_host_wait_locked(int64_t time_ns);
/* A question that was answered "not yet": in the modelled clock the thread's time must pass, else a loop that polls
 * would never end. */
void vn_polled_locked(void);
int vn_thread_id(void);

/* ---- record.c --------------------------------------------------------------------------------------------------- */

/* One line, tab-separated; opens the file on the first. The newline is added here. */
__attribute__((format(printf, 1, 2))) void vn_record_locked(const char *format, ...);
void vn_record_text_locked(const char *text, size_t length);    /* a whole line that is built already */
uint64_t vn_next_seq_locked(void);
/* Text for a field: tabs, newlines and backslashes become escapes (\t \n \r \\). Returns `into`. */
const char *vn_escape(const char *text, char *into, size_t size);
/* Text that grows; used to build definitions. */
typedef struct { char *text; size_t length, capacity; } vn_text;
void vn_text_clear(vn_text *text);
void vn_text_add(vn_text *text, const char *more, size_t length);
void vn_text_string(vn_text *text, const char *more);
void vn_text_int(vn_text *text, int64_t value);
void vn_text_real(vn_text *text, double value);     /* JSON: shortest form that reads back; NaN and infinity null */
void vn_text_json_string(vn_text *text, const char *value);
/* Id of a definition, written to the record when it is new. kind "op" or "comm"; key says what it is (name and
 * arguments), json is the whole object. */
typedef struct { int id; bool is_new; int64_t duration_ns; } vn_definition;
vn_definition *vn_definition_locked(const char *kind, const char *name, const vn_text *key);
void vn_definition_write_locked(const vn_definition *definition, const char *kind, const char *name,
                                const vn_text *json);

/* ---- errors.c --------------------------------------------------------------------------------------------------- */

/* Notes an error: X line of the record, text of aclGetRecentErrMsg of this thread. Returns `code`. */
__attribute__((format(printf, 3, 4))) int vn_fail(const char *function, int code, const char *format, ...);
__attribute__((format(printf, 3, 4))) int vn_fail_locked(const char *function, int code, const char *format, ...);
void vn_set_message(const char *text);      /* of this thread, without a line in the record */

/* ---- handles.c -------------------------------------------------------------------------------------------------- */

typedef enum {
    VN_FREE = 0, VN_TENSOR, VN_TENSOR_LIST, VN_SCALAR, VN_SCALAR_LIST, VN_INT_ARRAY, VN_FLOAT_ARRAY, VN_BOOL_ARRAY,
    VN_EXECUTOR,
} vn_handle_kind;

typedef struct vn_handle {
    vn_handle_kind kind;
    struct vn_handle *next_free;
    vn_tensor tensor;               /* tensor */
    char *data;                     /* tensor: address of its first element */
    int count;                      /* lists and arrays */
    struct vn_handle **items;       /* tensor list */
    int64_t *ints;                  /* int and bool array */
    double *reals;                  /* float array, scalar list */
    int32_t dtype;                  /* scalar */
    double number;                  /* scalar */
    const vn_signature *operator_;  /* executor: prepared call */
    vn_definition *definition;
    struct vn_small_work *work;     /* executor: what is really computed (NULL: nothing) */
} vn_handle;

vn_handle *vn_handle_new(vn_handle_kind kind);
vn_handle *vn_handle_new_locked(vn_handle_kind kind);
vn_handle *vn_handle_find_locked(const void *address);      /* NULL unless it is a live handle */
void vn_handle_free_locked(vn_handle *handle);
size_t vn_element_bits(int32_t dtype);                      /* of an aclDataType; 0: not known */

/* ---- small_work.c ----------------------------------------------------------------------------------------------- */

struct vn_small_work;
struct vn_small_work *vn_small_work_new_locked(const char *name, const char *kinds, const vn_arg *args,
                                               vn_handle *const *handles, int count);
void vn_small_work_do(struct vn_small_work *work);

/* ---- memory.c --------------------------------------------------------------------------------------------------- */

int vn_current_device(void);
/* Accounts device memory that the runtime itself takes (communication buffers); false: does not fit. */
bool vn_memory_reserve_locked(int device, int64_t bytes);
void vn_memory_release_locked(int device, int64_t bytes);
int64_t vn_memory_peak_locked(void);

/* ---- streams.c -------------------------------------------------------------------------------------------------- */

/* A point in time on the device that may not be known yet. Events refer to the last one recorded; waits hold the one
 * they saw, so that recording an event again does not change what an earlier wait waits for. */
typedef struct {
    int references;
    bool is_resolved;
    int64_t time_ns;
} vn_moment;

typedef enum { VN_KERNEL, VN_COPY, VN_RECORD, VN_WAIT, VN_RESET, VN_COLLECTIVE } vn_entry_kind;

struct vn_meeting;

typedef struct vn_entry {
    struct vn_entry *next;
    vn_entry_kind kind;
    uint64_t seq;
    int definition, thread;
    int64_t host_ns, duration_ns;
    vn_moment *moment;              /* record, wait */
    int64_t event_id;
    struct vn_meeting *meeting;     /* collective */
    const char *copy_name;          /* copy: h2d d2h d2d memset */
    int64_t copy_size;              /* copy: bytes of the copy on the device */
    char *copy_to, *copy_from;      /* copy: what is really moved (from NULL: filled with the value) */
    size_t copy_bytes;
    int copy_value;
    bool owns_source;
    struct vn_small_work *work;     /* kernel: what is really computed; owned */
} vn_entry;

typedef struct vn_stream {
    uint64_t magic;
    struct vn_stream *next;
    int64_t id;
    int device;
    bool is_alive;
    int64_t tail_ns;                /* end of the last entry whose times are known */
    vn_entry *first, *last;         /* entries whose times are not known yet */
    int error;                      /* first failure of an entry; every later synchronisation returns it */
    char error_text[512];
} vn_stream;

vn_stream *vn_stream_locked(aclrtStream stream);            /* NULL: the default stream; not a stream: NULL */
/* Appends a copy of *entry and gives every entry its times whose times can be known. */
void vn_append_locked(vn_stream *stream, const vn_entry *entry);
bool vn_resolve_locked(void);                               /* true: something got its times */
bool vn_has_meetings_locked(void);                          /* some stream waits for another process */
/* Waits until all entries of the stream have their times and the host is there. limit_ms < 0: none. */
int vn_synchronize_locked(vn_stream *stream, int limit_ms, const char *function);
/* Waits (in real time) until the times of what `is_known` asks for are known. False: the limit passed first. */
bool vn_wait_until_known_locked(bool (*is_known)(const void *), const void *what, int limit_ms);
void vn_record_wait_locked(const char *kind, int64_t target, int64_t begin_ns);

/* ---- events.c --------------------------------------------------------------------------------------------------- */

void vn_moment_release_locked(vn_moment *moment);

/* ---- meeting.c -------------------------------------------------------------------------------------------------- */

/* A communicator as all its processes see it: shared memory. NULL: this process is alone. */
typedef struct vn_room vn_room;

/* Enters the room `key` of `size` ranks and waits (in real time) until all of them are there. On success *room is set,
 * or NULL if this process is alone. Returns an HcclResult; `function` is named in the error. Lock not held. */
int vn_room_enter(const char *function, const char *key, int size, int rank, vn_room **room);
int vn_room_global_rank(const vn_room *room, int rank);     /* RANK of the process that is `rank` there */

typedef enum { VN_MEET_WAITING, VN_MEET_DONE, VN_MEET_FAILED } vn_meet_state;

struct vn_transfer;

/* One channel of a meeting: all ranks of a communicator, or the two ends of a point-to-point transfer. */
typedef struct {
    int from, to;                   /* -1: all ranks; else the ranks of sender and receiver */
    uint64_t index;                 /* how many meetings the channel had before */
    bool is_posted, is_done;
    int64_t start_ns;               /* latest arrival at this channel */
    char what[96];                  /* must be the same at all ranks */
    struct vn_transfer *transfer;   /* what is exchanged */
} vn_meeting_part;

/* What one entry of a stream needs of other ranks: a collective, or point-to-point transfers done together. */
typedef struct vn_meeting {
    vn_room *room;                  /* NULL: nobody else, all arrive when this rank does */
    int comm, size, rank;
    uint64_t index;
    int64_t arrive_ns, first_wait_ns;
    char error[512];
    int *async_error;               /* of the communicator */
    int part_count;
    vn_meeting_part parts[];
} vn_meeting;

/* Announces the arrival of this rank and asks for the others. */
vn_meet_state vn_meet_locked(vn_meeting *meeting, int64_t arrive_ns);
int64_t vn_meeting_start_locked(const vn_meeting *meeting);     /* latest arrival of all ranks */
void vn_meeting_free_locked(vn_meeting *meeting);

/* ---- communicators.c -------------------------------------------------------------------------------------------- */

enum { VN_COMM_NAME = 128, VN_COMM_KEY = 160 };

typedef struct {
    uint64_t magic;
    int id, size, rank, device;
    int *ranks;                     /* by rank: RANK of the process; NULL: not known */
    int ranks_per_node;             /* of its ranks, how many share this rank's node */
    char name[VN_COMM_NAME], key[VN_COMM_KEY];
    vn_room *room;
    uint64_t next_index;
    uint64_t *sent, *received;      /* by rank: point-to-point transfers so far */
    int64_t buffer_bytes;
    int async_error;
} vn_communicator;

vn_communicator *vn_communicator_find(HcclComm handle);     /* NULL: it is none */
int vn_no_communicator(const char *function, HcclComm handle);      /* notes that; returns the code */
int vn_node_of(int rank);                                   /* node of a rank of the job */

/* ---- payload.c -------------------------------------------------------------------------------------------------- */

typedef enum {
    VN_ALL_REDUCE, VN_REDUCE, VN_BROADCAST, VN_ALL_GATHER, VN_ALL_GATHER_V, VN_REDUCE_SCATTER, VN_REDUCE_SCATTER_V,
    VN_SCATTER, VN_ALL_TO_ALL, VN_ALL_TO_ALL_V, VN_BARRIER, VN_SEND, VN_RECV,
} vn_transfer_kind;

/* What a rank gives to and takes from a collective. Counts are elements; lists have one value for each rank. */
typedef struct vn_transfer {
    vn_transfer_kind kind;
    const char *send;
    char *receive;
    uint64_t count;
    HcclDataType type;
    HcclReduceOp reduction;
    int root, rank, size;
    uint64_t *send_counts, *send_offsets, *receive_counts, *receive_offsets;    /* owned */
} vn_transfer;

enum { VN_HCCL_FP16 = 3, VN_HCCL_FP32 = 4, VN_HCCL_FP64 = 10, VN_HCCL_BF16 = 11 };

size_t vn_hccl_bytes(HcclDataType type);    /* 0: not known */
double vn_real_at(const char *from, HcclDataType type);     /* one of the four types above */
void vn_put_real(char *into, HcclDataType type, double value);
/* Writes what this rank contributes to `into` (VN_SMALL_BYTES); returns its size, 0 if nothing or too much. */
size_t vn_payload_fill(const vn_transfer *transfer, char *into);
/* Takes the result from the contributions of all ranks; those of size 0 are not there. */
void vn_payload_take(const vn_transfer *transfer, const char *const *from, const size_t *sizes);
void vn_transfer_free(vn_transfer *transfer);

#endif
