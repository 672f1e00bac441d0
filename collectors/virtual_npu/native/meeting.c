/* Where the processes of a job meet: a file that all of them map.
 *
 * A communicator is a room in that file. For each of its collectives every rank writes the time at which its stream
 * arrived and its small contribution; a collective starts at the latest of these times. Rooms are found by the key of
 * the communicator (what HcclGetRootInfo handed out). Slots are used again after RING collectives, and a rank goes on
 * only when all have read what it would overwrite.
 *
 * Point-to-point transfers meet in a channel for each ordered pair of ranks, made when it is first used.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { RING = 8, MAX_ROOMS = 4096, KEY_BYTES = 160, PAGE_BYTES = 4096 };

/* Address space only: pages come when something is written. */
static const uint64_t FILE_BYTES = 64ull << 30, FILE_MAGIC = 0x56504e4d45455431;
static const int64_t PATIENCE_NS = 1000000000, POLL_NS = 100000000;

typedef struct {
    _Atomic uint64_t turn;          /* index of the meeting in this slot, plus one */
    int64_t arrive_ns;
    uint64_t payload_bytes;
    char what[96];
} post;

typedef struct {
    int32_t participants;
    uint64_t payload_offset;        /* in the channel: participants x RING x VN_SMALL_BYTES */
    uint64_t posts_offset;          /* participants x RING */
    _Atomic uint64_t done[];        /* by participant: meetings whose slots it has read */
} channel;

struct vn_room {
    char key[KEY_BYTES];
    int32_t size;
    _Atomic int32_t present;        /* ranks that have entered */
    uint64_t all_offset;            /* channel of all ranks */
    uint64_t members_offset;        /* by rank: process id and RANK */
    uint64_t pairs_offset;          /* size x size offsets of channels; 0: not made yet */
};

typedef struct { int32_t pid, global_rank; } member;

typedef struct {
    _Atomic uint64_t magic;
    _Atomic uint32_t pulse;         /* futex: changes with every post */
    _Atomic uint64_t next_free;
    _Atomic int32_t room_count;
    struct vn_room rooms[MAX_ROOMS];
} hall;

static hall *shared;
static int file = -1;

static void *at(uint64_t offset) { return (char *)shared + offset; }
static member *members(const vn_room *room) { return at(room->members_offset); }

static post *post_of(channel *in, int participant, uint64_t index)
{
    return (post *)((char *)in + in->posts_offset) + (uint64_t)participant * RING + index % RING;
}

static char *payload_of(channel *in, int participant, uint64_t index)
{
    return (char *)in + in->payload_offset + ((uint64_t)participant * RING + index % RING) * VN_SMALL_BYTES;
}

static void wake_all(void)
{
    atomic_fetch_add(&shared->pulse, 1);
    syscall(SYS_futex, &shared->pulse, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void sleep_until_pulse(uint32_t seen)
{
    struct timespec limit = {0, POLL_NS};
    syscall(SYS_futex, &shared->pulse, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Gets the disk under a part of the file: a full one is an error here and not a SIGBUS while writing. False: errno. */
static bool back(uint64_t offset, uint64_t bytes)
{
    int code = posix_fallocate(file, (off_t)offset, (off_t)bytes);
    if (code)
        errno = code;
    return !code;
}

/* Takes a part of the file of which the first `backed` bytes are there to be written. 0: no room, errno says why. */
static uint64_t take(uint64_t bytes, uint64_t backed)
{
    uint64_t size = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    uint64_t offset = atomic_fetch_add(&shared->next_free, size);
    if (offset + size > FILE_BYTES) {
        errno = ENOSPC;
        return 0;
    }
    return back(offset, backed) ? offset : 0;
}

static uint64_t new_channel(int participants)
{
    uint64_t posts = sizeof(channel) + (uint64_t)participants * sizeof(uint64_t);
    posts = (posts + 63) / 64 * 64;
    uint64_t payload = posts + (uint64_t)participants * RING * sizeof(post);
    payload = (payload + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    /* Payloads get their disk when there is one: most collectives carry more than the ranks exchange here. */
    uint64_t offset = take(payload + (uint64_t)participants * RING * VN_SMALL_BYTES, payload);
    if (!offset)
        return 0;
    channel *made = at(offset);
    made->participants = participants;
    made->posts_offset = posts;
    made->payload_offset = payload;
    return offset;
}

static bool open_hall(void)
{
    if (shared)
        return true;
    file = open(vn_settings()->meet_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat status;
    if (file < 0 || flock(file, LOCK_EX) || fstat(file, &status))
        return false;
    if ((status.st_size == 0 && ftruncate(file, (off_t)FILE_BYTES)) || !back(0, sizeof(hall))) {
        int problem = errno;
        flock(file, LOCK_UN);
        errno = problem;
        return false;
    }
    void *mapped = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (mapped != MAP_FAILED) {
        madvise(mapped, FILE_BYTES, MADV_DONTDUMP);
        shared = mapped;
        if (atomic_load(&shared->magic) != FILE_MAGIC) {
            atomic_store(&shared->next_free, (sizeof(hall) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
            atomic_store(&shared->magic, FILE_MAGIC);
        }
    }
    flock(file, LOCK_UN);
    return shared != NULL;
}

/* Finds the room or makes it. Called with the file's lock: processes; and the process's lock: its threads. */
static vn_room *find_room(const char *key, int size)
{
    int count = atomic_load(&shared->room_count);
    for (int i = 0; i < count; i++)
        if (!strcmp(shared->rooms[i].key, key))
            return &shared->rooms[i];
    if (count == MAX_ROOMS) {
        errno = ENOSPC;
        return NULL;
    }
    vn_room *room = &shared->rooms[count];
    snprintf(room->key, sizeof room->key, "%s", key);
    room->size = size;
    uint64_t member_bytes = (uint64_t)size * sizeof(member), pair_bytes = (uint64_t)size * size * sizeof(uint64_t);
    room->members_offset = take(member_bytes, member_bytes);
    room->pairs_offset = room->members_offset ? take(pair_bytes, pair_bytes) : 0;
    room->all_offset = room->pairs_offset ? new_channel(size) : 0;
    if (!room->all_offset)
        return NULL;
    atomic_store(&shared->room_count, count + 1);
    return room;
}

/* Takes the queues on while the program does something else: other ranks may wait for what is queued here. */
static void *device_thread(void *unused)
{
    (void)unused;
    vn_lock();
    for (;;) {
        if (!vn_has_meetings_locked()) {
            vn_wait_locked(10 * PATIENCE_NS);
            continue;
        }
        uint32_t seen = atomic_load(&shared->pulse);
        if (vn_resolve_locked())
            continue;
        vn_unlock();
        sleep_until_pulse(seen);
        vn_lock();
    }
    return NULL;
}

static void start_device_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);       /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, device_thread, NULL))
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int64_t seconds_from(const char *variable, int64_t otherwise)
{
    const char *text = getenv(variable);
    int64_t value = text ? atoll(text) : 0;
    return value > 0 ? value : otherwise;
}

int vn_room_enter(const char *function, const char *key, int size, int rank, vn_room **entered)
{
    *entered = NULL;
    if (vn_settings()->processes <= 1 || size == 1)
        return VN_OK;
    vn_lock();
    static pthread_once_t started = PTHREAD_ONCE_INIT;
    if (!open_hall()) {
        vn_unlock();
        return vn_fail(function, VN_HCCL_INTERNAL, "%s: the ranks of the job cannot meet in %s: %s", function,
                       vn_settings()->meet_path, strerror(errno));
    }
    flock(file, LOCK_EX);
    vn_room *room = find_room(key, size);
    int problem = errno;
    if (room && room->size == size) {
        members(room)[rank] = (member){(int32_t)getpid(), vn_settings()->rank};
        atomic_fetch_add(&room->present, 1);
    }
    flock(file, LOCK_UN);
    vn_unlock();
    if (!room)
        return vn_fail(function, VN_HCCL_INTERNAL, "%s: the ranks of the job cannot meet in %s: %s", function,
                       vn_settings()->meet_path, strerror(problem));
    if (room->size != size)
        return vn_fail(function, VN_HCCL_PARAMETER, "EI0005: The arguments for collective communication are "
                       "inconsistent between ranks. Reason: %s: %d ranks here, %d at another rank", function, size,
                       room->size);
    wake_all();
    pthread_once(&started, start_device_thread);
    int64_t limit_s = seconds_from("HCCL_CONNECT_TIMEOUT", 120), begin = vn_raw_ns();
    for (;;) {
        uint32_t seen = atomic_load(&shared->pulse);
        if (atomic_load(&room->present) >= size)
            break;
        if (vn_raw_ns() - begin > limit_s * PATIENCE_NS)
            return vn_fail(function, VN_HCCL_TIMEOUT, "EI0015: Waiting for the ranks of a communicator timed out. "
                           "Reason: %s: %d of %d ranks came in %lld s (HCCL_CONNECT_TIMEOUT)", function,
                           atomic_load(&room->present), size, (long long)limit_s);
        sleep_until_pulse(seen);
    }
    *entered = room;
    return VN_OK;
}

int vn_room_global_rank(const vn_room *room, int rank)
{
    return members(room)[rank].global_rank;
}

/* ---- meetings ---- */

static channel *channel_of(vn_room *room, const vn_meeting_part *part)
{
    if (part->from < 0)
        return at(room->all_offset);
    _Atomic uint64_t *pair = (_Atomic uint64_t *)at(room->pairs_offset) + part->from * room->size + part->to;
    if (!atomic_load(pair)) {
        uint64_t made = new_channel(2), none = 0;
        if (made)       /* the other end may have been faster: then what was made here stays unused */
            atomic_compare_exchange_strong(pair, &none, made);
    }
    return atomic_load(pair) ? at(atomic_load(pair)) : NULL;
}

static int place_of(const vn_meeting *meeting, const vn_meeting_part *part)
{
    return part->from < 0 ? meeting->rank : part->from == meeting->rank ? 0 : 1;
}

static int rank_of(const vn_meeting_part *part, int place)
{
    return part->from < 0 ? place : place ? part->to : part->from;
}

/* A process that is gone, or only waits to be reaped, will not come. */
static bool has_ended(int pid)
{
    if (kill(pid, 0) && errno == ESRCH)
        return true;
    char path[40], line[256];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int status = open(path, O_RDONLY | O_CLOEXEC);
    if (status < 0)
        return false;
    ssize_t length = read(status, line, sizeof line - 1);
    close(status);
    line[length > 0 ? length : 0] = 0;
    const char *state = strrchr(line, ')');
    return state && (state[2] == 'Z' || state[2] == 'X');
}

static bool fail(vn_meeting *meeting, const char *text)
{
    snprintf(meeting->error, sizeof meeting->error, "%s", text);
    *meeting->async_error = VN_HCCL_INTERNAL;
    vn_fail_locked("hccl", VN_ERROR_REMOTE, "%s", text);
    fprintf(stderr, "virtual NPU: %s\n", text);
    return false;
}

/* False: rank `rank` will not come any more (noted). */
static bool is_worth_waiting(vn_meeting *meeting, const vn_meeting_part *part, int rank)
{
    int64_t now = vn_raw_ns();
    if (!meeting->first_wait_ns)
        meeting->first_wait_ns = now;
    int64_t waited = now - meeting->first_wait_ns;
    if (waited < PATIENCE_NS)
        return true;
    char text[400];
    const member *other = &members(meeting->room)[rank];
    if (has_ended(other->pid)) {
        snprintf(text, sizeof text, "EI0002: The wait execution of the Notify register times out. Reason: rank %d has "
                 "ended and rank %d waits for it in collective %llu (%s)", other->global_rank, vn_settings()->rank,
                 (unsigned long long)meeting->index, part->what);
        return fail(meeting, text);
    }
    if (waited > seconds_from("HCCL_EXEC_TIMEOUT", 1836) * PATIENCE_NS) {
        snprintf(text, sizeof text, "EI0002: The wait execution of the Notify register times out. Reason: rank %d did "
                 "not come to collective %llu (%s) in HCCL_EXEC_TIMEOUT", other->global_rank,
                 (unsigned long long)meeting->index, part->what);
        return fail(meeting, text);
    }
    return true;
}

/* Writes this rank's arrival. Waiting: a slot that somebody has not read yet is in the way. */
static vn_meet_state announce(vn_meeting *meeting, vn_meeting_part *part, channel *in, int me)
{
    for (int other = 0; part->index >= RING && other < in->participants; other++)
        if (atomic_load(&in->done[other]) + RING <= part->index)
            return VN_MEET_WAITING;
    static char payload[VN_SMALL_BYTES];    /* used under the lock only */
    post *mine = post_of(in, me, part->index);
    char *place = payload_of(in, me, part->index);
    mine->arrive_ns = meeting->arrive_ns;
    mine->payload_bytes = vn_payload_fill(part->transfer, payload);
    if (mine->payload_bytes) {
        if (!back((uint64_t)(place - (char *)shared), mine->payload_bytes)) {
            char text[200];
            snprintf(text, sizeof text, "EI0007: the ranks cannot exchange %llu bytes in the file where they meet: %s",
                     (unsigned long long)mine->payload_bytes, strerror(errno));
            fail(meeting, text);
            return VN_MEET_FAILED;
        }
        memcpy(place, payload, mine->payload_bytes);
    }
    memcpy(mine->what, part->what, sizeof mine->what);
    atomic_store(&mine->turn, part->index + 1);
    part->is_posted = true;
    wake_all();
    return VN_MEET_DONE;
}

static void take_results(vn_meeting_part *part, channel *in)
{
    const char **from = malloc((size_t)in->participants * sizeof *from);
    size_t *sizes = malloc((size_t)in->participants * sizeof *sizes);
    for (int place = 0; place < in->participants; place++) {
        from[place] = payload_of(in, place, part->index);
        sizes[place] = post_of(in, place, part->index)->payload_bytes;
    }
    vn_payload_take(part->transfer, from, sizes);
    free(from);
    free(sizes);
}

static vn_meet_state meet_part(vn_meeting *meeting, vn_meeting_part *part)
{
    channel *in = channel_of(meeting->room, part);
    if (!in) {
        fail(meeting, "EI0007: no room is left in the file where the ranks meet");
        return VN_MEET_FAILED;
    }
    int me = place_of(meeting, part);
    vn_meet_state posted = part->is_posted ? VN_MEET_DONE : announce(meeting, part, in, me);
    if (posted != VN_MEET_DONE)
        return posted;
    for (int place = 0; place < in->participants; place++) {
        const post *other = post_of(in, place, part->index);
        if (atomic_load(&other->turn) != part->index + 1)
            return is_worth_waiting(meeting, part, rank_of(part, place)) ? VN_MEET_WAITING : VN_MEET_FAILED;
        if (other->arrive_ns > part->start_ns)
            part->start_ns = other->arrive_ns;
    }
    vn_meet_state state = VN_MEET_DONE;
    for (int place = 0; place < in->participants; place++) {
        const post *other = post_of(in, place, part->index);
        if (!strcmp(other->what, part->what))
            continue;
        char text[480];
        snprintf(text, sizeof text, "EI0005: The arguments for collective communication are inconsistent between "
                 "ranks. Reason: collective %llu is %s at rank %d and %s at rank %d",
                 (unsigned long long)meeting->index, part->what, vn_settings()->rank, other->what,
                 members(meeting->room)[rank_of(part, place)].global_rank);
        fail(meeting, text);
        state = VN_MEET_FAILED;
        break;
    }
    if (state == VN_MEET_DONE)
        take_results(part, in);
    part->is_done = true;
    atomic_store(&in->done[me], part->index + 1);
    wake_all();
    return state;
}

/* Nobody else: all ranks contribute what this one does. */
static void meet_alone(vn_meeting *meeting)
{
    char *own = malloc(VN_SMALL_BYTES);
    const char **from = malloc((size_t)meeting->size * sizeof *from);
    size_t *sizes = malloc((size_t)meeting->size * sizeof *sizes);
    for (int i = 0; i < meeting->part_count; i++) {
        const vn_transfer *transfer = meeting->parts[i].transfer;
        size_t bytes = vn_payload_fill(transfer, own);
        for (int rank = 0; rank < meeting->size; rank++) {
            from[rank] = own;
            sizes[rank] = bytes;
        }
        vn_payload_take(transfer, from, sizes);
    }
    free(own);
    free(from);
    free(sizes);
}

vn_meet_state vn_meet_locked(vn_meeting *meeting, int64_t arrive_ns)
{
    meeting->arrive_ns = arrive_ns;
    if (!meeting->room) {
        meet_alone(meeting);
        return VN_MEET_DONE;
    }
    vn_meet_state state = VN_MEET_DONE;
    /* All ends of a batch are announced before any is waited for: two ranks that send to each other first. */
    for (int i = 0; i < meeting->part_count; i++) {
        vn_meeting_part *part = &meeting->parts[i];
        vn_meet_state one = part->is_done ? VN_MEET_DONE : meet_part(meeting, part);
        if (one == VN_MEET_FAILED)
            return one;
        if (one == VN_MEET_WAITING)
            state = one;
    }
    return state;
}

int64_t vn_meeting_start_locked(const vn_meeting *meeting)
{
    int64_t start = meeting->arrive_ns;
    for (int i = 0; i < meeting->part_count; i++)
        if (meeting->parts[i].start_ns > start)
            start = meeting->parts[i].start_ns;
    return start;
}

void vn_meeting_free_locked(vn_meeting *meeting)
{
    for (int i = 0; i < meeting->part_count; i++)
        vn_transfer_free(meeting->parts[i].transfer);
    free(meeting);
}
