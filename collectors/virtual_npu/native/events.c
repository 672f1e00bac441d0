/* Events of the virtual device, and host functions in a stream.
 *
 * An event is the last point that was recorded with it. Streams that wait for it keep the point that they saw, so that
 * recording it again changes nothing for them.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "core.h"

static const uint64_t EVENT_MAGIC = 0x56504e4556454e31;

typedef struct event {
    uint64_t magic;
    struct event *next_free;
    int64_t id;
    vn_moment *moment;      /* last record; NULL: never recorded */
} event;

static int64_t next_event;
static event *free_events;

static vn_moment *new_moment(void)
{
    vn_moment *moment = calloc(1, sizeof *moment);
    moment->references = 1;
    return moment;
}

void vn_moment_release_locked(vn_moment *moment)
{
    if (moment && !--moment->references)
        free(moment);
}

static bool is_resolved(const void *moment) { return ((const vn_moment *)moment)->is_resolved; }

aclError aclrtCreateEventExWithFlag(aclrtEvent *new_event, uint32_t flag)
{
    (void)flag;
    vn_lock();
    event *one = free_events;
    if (one)
        free_events = one->next_free;
    else
        one = calloc(1, sizeof *one);
    *one = (event){.magic = EVENT_MAGIC, .id = next_event++};
    *new_event = one;
    vn_unlock();
    return VN_OK;
}

aclError aclrtCreateEventWithFlag(aclrtEvent *new_event, uint32_t flag)
{
    return aclrtCreateEventExWithFlag(new_event, flag);
}

aclError aclrtCreateEvent(aclrtEvent *new_event)
{
    return aclrtCreateEventExWithFlag(new_event, 0);
}

/* As enter, for an event. */
static event *enter_event(const char *function, aclrtEvent handle)
{
    vn_lock();
    event *one = handle;
    if (one && one->magic == EVENT_MAGIC)
        return one;
    vn_unlock();
    vn_fail(function, VN_ERROR_INVALID_HANDLE, "%s: %p is no event", function, handle);
    return NULL;
}

aclError aclrtDestroyEvent(aclrtEvent handle)
{
    event *one = enter_event(__func__, handle);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    vn_moment_release_locked(one->moment);
    *one = (event){.next_free = free_events};
    free_events = one;
    vn_unlock();
    return VN_OK;
}

static int append_event(const char *function, aclrtEvent handle, aclrtStream stream, vn_entry_kind kind)
{
    event *one = enter_event(function, handle);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    vn_stream *queue = vn_stream_locked(stream);
    if (!queue) {
        vn_unlock();
        return vn_fail(function, VN_ERROR_INVALID_HANDLE, "%s: %p is no stream", function, stream);
    }
    vn_entry entry = {.kind = kind, .seq = vn_next_seq_locked(), .thread = vn_thread_id(), .host_ns = vn_now_locked(),
                      .event_id = one->id};
    if (kind == VN_RECORD) {
        vn_moment_release_locked(one->moment);
        entry.moment = one->moment = new_moment();
        one->moment->references++;
    } else if (kind == VN_WAIT) {
        if (!one->moment) {     /* waiting for an event that was never recorded ends at once */
            one->moment = new_moment();
            one->moment->is_resolved = true;
        }
        entry.moment = one->moment;
        one->moment->references++;
    }
    vn_append_locked(queue, &entry);
    vn_unlock();
    return VN_OK;
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream)
{
    return append_event(__func__, handle, stream, VN_RECORD);
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent handle)
{
    return append_event(__func__, handle, stream, VN_WAIT);
}

aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream)
{
    return append_event(__func__, handle, stream, VN_RESET);
}

aclError aclrtSynchronizeEvent(aclrtEvent handle)
{
    event *one = enter_event(__func__, handle);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    int64_t begin = vn_now_locked();
    vn_moment *moment = one->moment;
    if (moment) {
        moment->references++;       /* the event may be recorded again or destroyed meanwhile */
        vn_wait_until_known_locked(is_resolved, moment, -1);
        vn_host_wait_locked(moment->time_ns);
        vn_moment_release_locked(moment);
    }
    vn_record_wait_locked("event", one->id, begin);
    vn_unlock();
    return VN_OK;
}

/* Queries of events are not recorded: the watchdog of a process group asks in real time, many times a second. */
static int query(const char *function, aclrtEvent handle, bool *is_complete, bool unrecorded)
{
    event *one = enter_event(function, handle);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    *is_complete = one->moment ? one->moment->is_resolved && one->moment->time_ns <= vn_now_locked() : unrecorded;
    if (!*is_complete)
        vn_polled_locked();
    vn_unlock();
    return VN_OK;
}

aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status)
{
    bool is_complete = false;
    int code = query(__func__, handle, &is_complete, false);
    *status = is_complete ? 1 : 0;      /* ACL_EVENT_RECORDED_STATUS_COMPLETE, _NOT_READY */
    return code;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus *status)
{
    bool is_complete = true;
    int code = query(__func__, handle, &is_complete, true);
    *status = is_complete ? 0 : 1;      /* ACL_EVENT_WAIT_STATUS_COMPLETE, _NOT_READY */
    return code;
}

/* Time of an event that has happened; an error code else. */
static int time_of(const char *function, aclrtEvent handle, int64_t *time_ns)
{
    event *one = enter_event(function, handle);
    if (!one)
        return VN_ERROR_INVALID_HANDLE;
    vn_resolve_locked();
    int code = !one->moment ? VN_ERROR_EVENT_TIMESTAMP_INVALID
               : !one->moment->is_resolved || one->moment->time_ns > vn_now_locked() ? VN_ERROR_EVENT_NOT_COMPLETE
                                                                                     : VN_OK;
    if (!code)
        *time_ns = one->moment->time_ns;
    vn_unlock();
    return code ? vn_fail(function, code, "%s: event %s", function,
                          code == VN_ERROR_EVENT_NOT_COMPLETE ? "is not complete" : "was not recorded") : VN_OK;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    int64_t start, end;
    int code = time_of(__func__, startEvent, &start);
    if (!code)
        code = time_of(__func__, endEvent, &end);
    if (!code)
        *ms = (float)((double)(end - start) / 1e6);
    return code;
}

aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t *timestamp)
{
    int64_t time_ns;
    int code = time_of(__func__, handle, &time_ns);
    if (!code)
        *timestamp = (uint64_t)time_ns / 1000;      /* us */
    return code;
}

/* ---- host functions in a stream ---- */

/* They run at once: nothing they can see differs from a device that has reached them. */
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc fn, void *args)
{
    (void)stream;
    fn(args);
    return VN_OK;
}

aclError aclrtLaunchCallback(aclrtCallback fn, void *userData, aclrtCallbackBlockType blockType, aclrtStream stream)
{
    (void)blockType, (void)stream;
    fn(userData);
    return VN_OK;
}

aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream)
{
    (void)threadId, (void)stream;
    return VN_OK;
}

aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream)
{
    (void)threadId, (void)stream;
    return VN_OK;
}

/* The thread of torch_npu that asks for callbacks; there never are any, because they ran at once. */
aclError aclrtProcessReport(int32_t timeout)
{
    vn_lock();
    vn_wait_locked((timeout > 0 && timeout < 100 ? timeout : 100) * 1000000ll);
    vn_unlock();
    return 507012;      /* ACL_ERROR_RT_REPORT_TIMEOUT */
}
