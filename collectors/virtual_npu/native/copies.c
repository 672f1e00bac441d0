/* Copies and memsets. Host to device and device to host move the bytes for real, so that data which a program sends to
 * the device and takes back is right; on the device only small pieces are really moved (VN_SMALL_BYTES).
 *
 * The bytes move when the call is made, not at the time when the modelled device would do it: a program that is
 * correct does not look in between. The exception is a stream that waits for another process: there a copy belongs
 * after the collective whose result it reads, so it is done when its turn comes.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { HOST_TO_HOST = 0, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3, BY_ADDRESS = 4, MEMSET = 4 };

__attribute__((weak)) double vn_cost_copy(int kind, double bytes)
{
    (void)kind, (void)bytes;
    return 2000;
}

static const char *const names[] = {"h2h", "h2d", "d2h", "d2d", "memset"};

static int known_kind(aclrtMemcpyKind kind)
{
    if (kind == 5)
        return HOST_TO_DEVICE;          /* through a buffer of the runtime */
    if (kind == 6 || kind == 7)
        return DEVICE_TO_DEVICE;        /* inside a device, between devices */
    return kind >= HOST_TO_HOST && kind <= DEVICE_TO_DEVICE ? kind : kind == BY_ADDRESS ? DEVICE_TO_DEVICE : -1;
}

static bool is_moved(int kind, size_t count)
{
    return kind == DEVICE_TO_DEVICE ? count <= VN_SMALL_BYTES : true;
}

static int check(const char *function, const void *dst, size_t destMax, const void *src, size_t count, int kind)
{
    if (kind < 0)
        return vn_fail(function, 100000, "%s: kind of copy that does not exist", function);
    if (count > destMax)
        return vn_fail(function, VN_ERROR_PARAM_INVALID, "EE1001: The argument is invalid. Reason: %s: %zu bytes into "
                       "a destination of %zu", function, count, destMax);
    if (count && (!dst || !src))
        return vn_fail(function, VN_ERROR_PARAM_INVALID, "EE1001: The argument is invalid. Reason: %s: address is "
                       "null", function);
    return VN_OK;
}

static int64_t duration(int kind, size_t bytes)
{
    double ns = vn_cost_copy(kind, (double)bytes);
    return ns > 0 ? (int64_t)(ns + 0.5) : 0;
}

/* A call that the host waits for and that belongs to no stream. */
static void wait_for_copy_locked(int kind, size_t count)
{
    int64_t begin = vn_now_locked(), end = begin + duration(kind, count);
    vn_record_locked("P\t%llu\t%s\t%zu\t-1\t%d\t%lld\t%lld\t%lld\t1", (unsigned long long)vn_next_seq_locked(),
                     names[kind], count, vn_thread_id(), (long long)begin, (long long)begin, (long long)end);
    vn_host_wait_locked(end);
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    int way = known_kind(kind), code = check(__func__, dst, destMax, src, count, way);
    if (code)
        return code;
    if (is_moved(way, count))
        memmove(dst, src, count);
    vn_lock();
    wait_for_copy_locked(way, count);
    vn_unlock();
    return VN_OK;
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    int code = check(__func__, devPtr, maxCount, devPtr, count, MEMSET);
    if (code)
        return code;
    if (count <= VN_SMALL_BYTES)
        memset(devPtr, value, count);
    vn_lock();
    wait_for_copy_locked(MEMSET, count);
    vn_unlock();
    return VN_OK;
}

static int append(const char *function, aclrtStream stream, vn_entry *entry, int kind, size_t count)
{
    vn_lock();
    vn_stream *queue = vn_stream_locked(stream);
    if (!queue) {
        vn_unlock();
        return vn_fail(function, VN_ERROR_INVALID_HANDLE, "%s: %p is no stream", function, stream);
    }
    entry->kind = VN_COPY;
    entry->copy_name = names[kind];
    entry->copy_size = (int64_t)count;
    entry->seq = vn_next_seq_locked();
    entry->thread = vn_thread_id();
    entry->host_ns = vn_launch_time_locked();
    entry->duration_ns = duration(kind, count);
    /* The source of a host-to-device copy may change once the call is over: a small one is kept. */
    if (kind == HOST_TO_DEVICE && entry->copy_from && queue->first) {
        if (count <= VN_SMALL_BYTES) {
            char *kept = malloc(count + 1);
            memcpy(kept, entry->copy_from, count);
            entry->copy_from = kept;
            entry->owns_source = true;
        } else {
            memcpy(entry->copy_to, entry->copy_from, count);
            entry->copy_bytes = 0;
        }
    }
    vn_append_locked(queue, entry);
    vn_unlock();
    return VN_OK;
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream)
{
    int way = known_kind(kind), code = check(__func__, dst, destMax, src, count, way);
    if (code)
        return code;
    vn_entry entry = {.copy_to = dst, .copy_from = (char *)(uintptr_t)src,
                      .copy_bytes = is_moved(way, count) ? count : 0};
    return append(__func__, stream, &entry, way, count);
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream)
{
    int code = check(__func__, devPtr, maxCount, devPtr, count, MEMSET);
    if (code)
        return code;
    vn_entry entry = {.copy_to = devPtr, .copy_value = value, .copy_bytes = count <= VN_SMALL_BYTES ? count : 0};
    return append(__func__, stream, &entry, MEMSET, count);
}

/* Prefetch into the L2 cache: a hint, no work of its own in this model. */
aclError aclrtCmoAsync(void *src, size_t size, aclrtCmoType cmoType, aclrtStream stream)
{
    (void)src, (void)size, (void)cmoType, (void)stream;
    return VN_OK;
}
