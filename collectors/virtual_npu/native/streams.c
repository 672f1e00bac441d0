/* Streams of the virtual device.
 *
 * A stream is a queue of entries. An entry starts at
 *     max(time of its launch + launch latency, end of the entry before it, the event it waits for)
 * and gets its times as soon as all of them are known. Almost always that is in the call that launched it; only behind
 * a collective that other processes have not reached yet do entries stay in the queue. A thread of the library then
 * takes the queues on, as the device would, whatever the program is doing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { WAIT_SLICE_NS = 200000000 };

static const uint64_t STREAM_MAGIC = 0x56504e5354524d31;

static vn_stream *streams, *default_stream;
static int64_t next_stream;

/* ---- entries ---- */

static void do_copy(vn_entry *entry)
{
    if (!entry->copy_bytes)
        return;
    if (entry->copy_from)
        memmove(entry->copy_to, entry->copy_from, entry->copy_bytes);
    else
        memset(entry->copy_to, entry->copy_value, entry->copy_bytes);
    if (entry->owns_source)
        free(entry->copy_from);
}

static void fail_stream(vn_stream *stream, const char *text)
{
    if (stream->error)
        return;
    stream->error = VN_ERROR_REMOTE;
    snprintf(stream->error_text, sizeof stream->error_text, "%s", text);
}

/* Gives the entry its times and writes its line. False: something it needs is not known yet. */
static bool resolve_entry(vn_stream *stream, vn_entry *entry)
{
    int64_t ready = entry->host_ns + vn_settings()->launch_latency_ns;
    int64_t start = ready > stream->tail_ns ? ready : stream->tail_ns;
    unsigned long long seq = entry->seq;
    switch (entry->kind) {
    case VN_KERNEL:
        if (entry->work) {
            vn_small_work_do(entry->work);
            free(entry->work);
        }
        stream->tail_ns = start + entry->duration_ns;
        vn_record_locked("K\t%llu\t%d\t%lld\t%d\t%lld\t%lld\t%lld\t%lld", seq, entry->definition,
                         (long long)stream->id, entry->thread, (long long)entry->host_ns, (long long)ready,
                         (long long)start, (long long)stream->tail_ns);
        return true;
    case VN_COPY:
        do_copy(entry);
        stream->tail_ns = start + entry->duration_ns;
        vn_record_locked("P\t%llu\t%s\t%lld\t%lld\t%d\t%lld\t%lld\t%lld\t0", seq, entry->copy_name,
                         (long long)entry->copy_size, (long long)stream->id, entry->thread, (long long)entry->host_ns,
                         (long long)start, (long long)stream->tail_ns);
        return true;
    case VN_RECORD:
        entry->moment->is_resolved = true;
        entry->moment->time_ns = start;
        stream->tail_ns = start;
        break;
    case VN_WAIT:
        if (!entry->moment->is_resolved)
            return false;
        stream->tail_ns = entry->moment->time_ns > start ? entry->moment->time_ns : start;
        break;
    case VN_RESET:
        stream->tail_ns = start;
        break;
    case VN_COLLECTIVE: {
        vn_meet_state state = vn_meet_locked(entry->meeting, start);
        if (state == VN_MEET_WAITING)
            return false;
        int64_t begin = vn_meeting_start_locked(entry->meeting);
        if (begin < start)
            begin = start;
        if (state == VN_MEET_FAILED)
            fail_stream(stream, entry->meeting->error);
        stream->tail_ns = begin + entry->duration_ns;
        vn_record_locked("C\t%llu\t%d\t%lld\t%d\t%lld\t%lld\t%lld\t%lld\t%d\t%llu", seq, entry->definition,
                         (long long)stream->id, entry->thread, (long long)entry->host_ns, (long long)start,
                         (long long)begin, (long long)stream->tail_ns, entry->meeting->comm,
                         (unsigned long long)entry->meeting->index);
        vn_meeting_free_locked(entry->meeting);
        return true;
    }
    }
    vn_record_locked("E\t%llu\t%s\t%lld\t%lld\t%lld\t%lld", seq,
                     entry->kind == VN_RECORD ? "record" : entry->kind == VN_WAIT ? "wait" : "reset",
                     (long long)entry->event_id, (long long)stream->id, (long long)entry->host_ns,
                     (long long)stream->tail_ns);
    vn_moment_release_locked(entry->moment);
    return true;
}

bool vn_resolve_locked(void)
{
    bool is_any = false;
    /* An entry that got its times can free one in another stream (events), so until a round brings nothing. */
    for (bool is_new = true; is_new;) {
        is_new = false;
        for (vn_stream *stream = streams; stream; stream = stream->next)
            while (stream->first && resolve_entry(stream, stream->first)) {
                vn_entry *done = stream->first;
                stream->first = done->next;
                if (!stream->first)
                    stream->last = NULL;
                free(done);
                is_new = is_any = true;
            }
    }
    if (is_any)
        vn_notify_locked();
    return is_any;
}

bool vn_has_meetings_locked(void)
{
    for (const vn_stream *stream = streams; stream; stream = stream->next)
        if (stream->first && stream->first->kind == VN_COLLECTIVE)
            return true;
    return false;
}

void vn_append_locked(vn_stream *stream, const vn_entry *entry)
{
    vn_entry now = *entry;
    if (!stream->first && resolve_entry(stream, &now)) {
        /* Only a record can free what another stream waits for. */
        if (entry->kind == VN_RECORD && vn_has_meetings_locked())
            vn_resolve_locked();
        return;
    }
    vn_entry *kept = malloc(sizeof *kept);
    *kept = now;
    kept->next = NULL;
    if (stream->last)
        stream->last->next = kept;
    else
        stream->first = kept;
    stream->last = kept;
    vn_notify_locked();     /* wakes the library's own thread */
}

/* ---- streams ---- */

static vn_stream *new_stream(int device, uint32_t flags)
{
    vn_stream *stream = calloc(1, sizeof *stream);
    stream->magic = STREAM_MAGIC;
    stream->id = next_stream++;
    stream->device = device;
    stream->is_alive = true;
    stream->next = streams;
    streams = stream;
    vn_record_locked("S\t%lld\t%u\t%d", (long long)stream->id, flags, device);
    return stream;
}

vn_stream *vn_stream_locked(aclrtStream stream)
{
    if (!stream) {
        if (!default_stream)
            default_stream = new_stream(vn_current_device() < 0 ? 0 : vn_current_device(), 0);
        return default_stream;
    }
    vn_stream *one = stream;
    return one->magic == STREAM_MAGIC && one->is_alive ? one : NULL;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    (void)priority;
    int device = vn_current_device();
    if (device < 0)
        return vn_fail(__func__, VN_ERROR_CONTEXT_NULL, "aclrtCreateStream: no device is set in this thread");
    vn_lock();
    *stream = new_stream(device, flag);
    vn_unlock();
    return VN_OK;
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    return aclrtCreateStreamWithConfig(stream, 0, 0);
}

/* The object stays: whoever uses the stream after this gets an error and no crash. */
aclError aclrtDestroyStreamForce(aclrtStream stream)
{
    vn_lock();
    vn_stream *one = stream ? vn_stream_locked(stream) : NULL;
    if (one)
        one->is_alive = false;
    vn_unlock();
    return one ? VN_OK : vn_fail(__func__, VN_ERROR_INVALID_HANDLE, "aclrtDestroyStream: %p is no stream", stream);
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    return aclrtDestroyStreamForce(stream);
}

/* Takes the lock and finds the stream; NULL: the lock is free and the error noted. */
static vn_stream *enter(const char *function, aclrtStream stream)
{
    vn_lock();
    vn_stream *one = vn_stream_locked(stream);
    if (!one) {
        vn_unlock();
        vn_fail(function, VN_ERROR_INVALID_HANDLE, "%s: %p is no stream", function, stream);
    }
    return one;
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t *streamId)
{
    vn_stream *one = enter(__func__, stream);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    *streamId = (int32_t)one->id;
    vn_unlock();
    return VN_OK;
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)
{
    vn_stream *one = enter(__func__, stream);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    int64_t now = vn_now_locked();
    bool is_complete = !one->first && one->tail_ns <= now;
    *status = is_complete ? 0 : 1;      /* ACL_STREAM_STATUS_COMPLETE, _NOT_READY */
    vn_record_locked("Y\t%llu\tquery\t%lld\t%d\t%lld\t%lld", (unsigned long long)vn_next_seq_locked(),
                     (long long)one->id, vn_thread_id(), (long long)now, (long long)now);
    if (!is_complete)
        vn_polled_locked();
    vn_unlock();
    return VN_OK;
}

bool vn_wait_until_known_locked(bool (*is_known)(const void *), const void *what, int limit_ms)
{
    int64_t begin = vn_raw_ns();
    while (!is_known(what)) {
        vn_resolve_locked();
        if (is_known(what))
            break;
        if (limit_ms >= 0 && vn_raw_ns() - begin > (int64_t)limit_ms * 1000000)
            return false;
        vn_wait_locked(WAIT_SLICE_NS);
    }
    return true;
}

static bool is_empty(const void *stream) { return !((const vn_stream *)stream)->first; }

int vn_synchronize_locked(vn_stream *stream, int limit_ms, const char *function)
{
    if (!vn_wait_until_known_locked(is_empty, stream, limit_ms))
        return vn_fail_locked(function, VN_ERROR_STREAM_SYNC_TIMEOUT, "EE9999: %s: stream %lld was not done in %d ms",
                              function, (long long)stream->id, limit_ms);
    int64_t end = stream->tail_ns;
    if (limit_ms >= 0 && end - vn_now_locked() > (int64_t)limit_ms * 1000000) {
        vn_host_wait_locked(vn_now_locked() + (int64_t)limit_ms * 1000000);
        return vn_fail_locked(function, VN_ERROR_STREAM_SYNC_TIMEOUT, "EE9999: %s: stream %lld was not done in %d ms",
                              function, (long long)stream->id, limit_ms);
    }
    vn_host_wait_locked(end);
    if (stream->error)
        vn_set_message(stream->error_text);
    return stream->error;
}

void vn_record_wait_locked(const char *kind, int64_t target, int64_t begin)
{
    vn_record_locked("Y\t%llu\t%s\t%lld\t%d\t%lld\t%lld", (unsigned long long)vn_next_seq_locked(), kind,
                     (long long)target, vn_thread_id(), (long long)begin, (long long)vn_now_locked());
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    vn_stream *one = enter(__func__, stream);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    int64_t begin = vn_now_locked();
    int code = vn_synchronize_locked(one, timeout, "aclrtSynchronizeStream");
    vn_record_wait_locked("stream", one->id, begin);
    vn_unlock();
    return code;
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    return aclrtSynchronizeStreamWithTimeout(stream, -1);
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout)
{
    int device = vn_current_device();
    if (device < 0)
        return vn_fail(__func__, VN_ERROR_CONTEXT_NULL, "aclrtSynchronizeDevice: no device is set in this thread");
    vn_lock();
    int64_t begin = vn_now_locked();
    int code = VN_OK;
    for (vn_stream *one = streams; one && !code; one = one->next)
        if (one->device == device && one->is_alive)
            code = vn_synchronize_locked(one, timeout, "aclrtSynchronizeDevice");
    vn_record_wait_locked("device", device, begin);
    vn_unlock();
    return code;
}

aclError aclrtSynchronizeDevice(void)
{
    return aclrtSynchronizeDeviceWithTimeout(-1);
}
