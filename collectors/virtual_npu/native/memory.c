/* Device memory: address space without pages behind it, counted against the size of the HBM.
 *
 * Memory of a device is an anonymous mapping that takes no host memory until something is written to it; only small
 * copies are. The counters are what aclrtGetMemInfo answers and what makes a model too large for the device end in
 * torch_npu's own out-of-memory error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

typedef enum { ALLOCATED, RESERVED, PHYSICAL } block_kind;

typedef struct block {
    struct block *next;
    block_kind kind;
    char *address;
    size_t size;
    int device;
    int users;              /* physical: itself and each place it is mapped to */
    struct block *backing;  /* part of a reserved range that is mapped: the physical memory */
} block;

static block *blocks;       /* device memory and reserved ranges */
static block *mappings;     /* mapped parts of reserved ranges */
static int64_t used_bytes[VN_MAX_DEVICES], peak_bytes;

/* A full device, as the runtime reports it (error codes of CANN: EL0004). */
static int out_of_memory_locked(const char *function, size_t size, int device)
{
    vn_fail_locked(function, VN_ERROR_MEMORY_ALLOCATION,
                   "EL0004: Failed to allocate memory. Possible Cause: Available memory is insufficient. Solution: "
                   "Close applications not in use. (virtual device %d: %zu bytes asked, %lld of %lld in use)", device,
                   size, (long long)used_bytes[device], (long long)vn_settings()->hbm_bytes);
    return VN_ERROR_MEMORY_ALLOCATION;
}

static void count_locked(int device, int64_t delta, const void *address)
{
    used_bytes[device] += delta;
    if (used_bytes[device] > peak_bytes)
        peak_bytes = used_bytes[device];
    vn_record_locked("M\t%lld\t%lld\t%lld\t%lld\t%d", (long long)vn_now_locked(), (long long)delta,
                     (long long)used_bytes[device], (long long)(intptr_t)address, device);
}

bool vn_memory_reserve_locked(int device, int64_t bytes)
{
    if (used_bytes[device] + bytes > vn_settings()->hbm_bytes)
        return false;
    count_locked(device, bytes, NULL);
    return true;
}

void vn_memory_release_locked(int device, int64_t bytes)
{
    count_locked(device, -bytes, NULL);
}

int64_t vn_memory_peak_locked(void)
{
    return peak_bytes;
}

static char *map_nothing(size_t size, int protection)
{
    char *address = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return NULL;
    /* One written byte must not cost a huge page, and a core dump must not hold the device. */
    madvise(address, size, MADV_NOHUGEPAGE);
    madvise(address, size, MADV_DONTDUMP);
    return address;
}

static block *find(block *list, const void *address, block_kind kind)
{
    for (; list; list = list->next)
        if (list->address == address && list->kind == kind)
            return list;
    return NULL;
}

static block *add(block **list, block_kind kind, char *address, size_t size, int device)
{
    block *one = calloc(1, sizeof *one);
    *one = (block){.next = *list, .kind = kind, .address = address, .size = size, .device = device, .users = 1};
    return *list = one;
}

static void drop(block **list, block *one)
{
    while (*list != one)
        list = &(*list)->next;
    *list = one->next;
    free(one);
}

static int check_device(const char *function, int *device)
{
    *device = vn_current_device();
    return *device >= 0 ? VN_OK : vn_fail(function, VN_ERROR_CONTEXT_NULL, "%s: no device is set in this thread",
                                          function);
}

static int allocate(const char *function, void **devPtr, size_t size)
{
    int device, code = check_device(function, &device);
    if (code)
        return code;
    if (!devPtr || !size)
        return vn_fail(function, 100000, "%s: size 0 or no place for the address", function);
    vn_lock();
    *devPtr = NULL;
    if (used_bytes[device] + (int64_t)size > vn_settings()->hbm_bytes) {
        code = out_of_memory_locked(function, size, device);
    } else {
        char *address = map_nothing(size, PROT_READ | PROT_WRITE);
        if (address) {
            add(&blocks, ALLOCATED, address, size, device);
            count_locked(device, (int64_t)size, address);
            *devPtr = address;
        } else {
            code = vn_fail_locked(function, VN_ERROR_MEMORY_ALLOCATION, "%s: this machine gives no address space for "
                                  "%zu bytes (%s)", function, size, strerror(errno));
        }
    }
    vn_unlock();
    return code;
}

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    return allocate(__func__, devPtr, size);
}

aclError aclrtMallocAlign32(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    return allocate(__func__, devPtr, size);
}

aclError aclrtFree(void *devPtr)
{
    vn_lock();
    block *one = find(blocks, devPtr, ALLOCATED);
    if (one) {
        count_locked(one->device, -(int64_t)one->size, one->address);
        munmap(one->address, one->size);
        drop(&blocks, one);
    }
    vn_unlock();
    return one ? VN_OK : vn_fail(__func__, VN_ERROR_MEMORY_FREE, "aclrtFree: %p is no device memory", devPtr);
}

aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    if (!hostPtr || !size)
        return vn_fail(__func__, 100000, "aclrtMallocHost: size 0 or no place for the address");
    *hostPtr = aligned_alloc(64, (size + 63) & ~(size_t)63);
    return *hostPtr ? VN_OK : vn_fail(__func__, VN_ERROR_MEMORY_ALLOCATION, "aclrtMallocHost: no %zu bytes of host "
                                      "memory", size);
}

aclError aclrtFreeHost(void *hostPtr)
{
    free(hostPtr);
    return VN_OK;
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free_, size_t *total)
{
    (void)attr;     /* the device has one kind of memory */
    int device, code = check_device(__func__, &device);
    if (code)
        return code;
    vn_lock();
    int64_t rest = vn_settings()->hbm_bytes - used_bytes[device];
    if (free_)
        *free_ = rest > 0 ? (size_t)rest : 0;
    if (total)
        *total = (size_t)vn_settings()->hbm_bytes;
    vn_unlock();
    return VN_OK;
}

/* ---- address ranges and physical memory apart (expandable segments of the allocator) ---- */

aclError aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment, void *expectPtr, uint64_t flags)
{
    (void)alignment, (void)expectPtr, (void)flags;
    /* The allocator tries this out before it has set a device: addresses belong to none. */
    char *address = virPtr && size ? map_nothing(size, PROT_NONE) : NULL;
    if (!address)
        return vn_fail(__func__, VN_ERROR_MEMORY_ALLOCATION, "aclrtReserveMemAddress: no address space for %zu bytes",
                       size);
    vn_lock();
    add(&blocks, RESERVED, address, size, 0);
    vn_unlock();
    *virPtr = address;
    return VN_OK;
}

aclError aclrtReleaseMemAddress(void *virPtr)
{
    vn_lock();
    block *one = find(blocks, virPtr, RESERVED);
    if (one) {
        munmap(one->address, one->size);
        drop(&blocks, one);
    }
    vn_unlock();
    return one ? VN_OK : vn_fail(__func__, VN_ERROR_PARAM_INVALID, "aclrtReleaseMemAddress: %p is not reserved",
                                 virPtr);
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *prop, uint64_t flags)
{
    (void)prop, (void)flags;
    int device, code = check_device(__func__, &device);
    if (code)
        return code;
    if (!handle || !size)
        return vn_fail(__func__, 100000, "aclrtMallocPhysical: size 0 or no place for the handle");
    vn_lock();
    *handle = NULL;
    if (used_bytes[device] + (int64_t)size > vn_settings()->hbm_bytes) {
        code = out_of_memory_locked(__func__, size, device);
    } else {
        block *one = add(&blocks, PHYSICAL, NULL, size, device);
        one->address = (char *)one;
        count_locked(device, (int64_t)size, one);
        *handle = one;
    }
    vn_unlock();
    return code;
}

static void drop_user_locked(block *physical)
{
    if (--physical->users)
        return;
    count_locked(physical->device, -(int64_t)physical->size, physical);
    drop(&blocks, physical);
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle)
{
    vn_lock();
    block *one = find(blocks, handle, PHYSICAL);
    if (one)
        drop_user_locked(one);
    vn_unlock();
    return one ? VN_OK : vn_fail(__func__, VN_ERROR_INVALID_HANDLE, "aclrtFreePhysical: %p is no physical memory",
                                 handle);
}

static bool is_reserved(const char *address, size_t size)
{
    for (const block *one = blocks; one; one = one->next)
        if (one->kind == RESERVED && address >= one->address && address + size <= one->address + one->size)
            return true;
    return false;
}

aclError aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags)
{
    (void)offset, (void)flags;
    vn_lock();
    block *physical = find(blocks, handle, PHYSICAL);
    bool fits = physical && is_reserved(virPtr, size) && !mprotect(virPtr, size, PROT_READ | PROT_WRITE);
    if (fits) {
        block *mapping = add(&mappings, RESERVED, virPtr, size, physical->device);
        mapping->backing = physical;
        physical->users++;
    }
    vn_unlock();
    return fits ? VN_OK : vn_fail(__func__, VN_ERROR_PARAM_INVALID, "aclrtMapMem: %p (%zu bytes) is not reserved, or "
                                  "%p is no physical memory", virPtr, size, handle);
}

aclError aclrtUnmapMem(void *virPtr)
{
    vn_lock();
    block *mapping = find(mappings, virPtr, RESERVED);
    if (mapping) {
        madvise(mapping->address, mapping->size, MADV_DONTNEED);
        mprotect(mapping->address, mapping->size, PROT_NONE);
        drop_user_locked(mapping->backing);
        drop(&mappings, mapping);
    }
    vn_unlock();
    return mapping ? VN_OK : vn_fail(__func__, VN_ERROR_PARAM_INVALID, "aclrtUnmapMem: %p is not mapped", virPtr);
}

/* Handing memory to another process is not modelled. */
static int not_shared(const char *function)
{
    return vn_fail(function, VN_ERROR_NOT_SUPPORTED, "%s: the virtual device cannot share memory between processes",
                   function);
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType, uint64_t flags,
                                         uint64_t *shareableHandle)
{
    (void)handle, (void)handleType, (void)flags, (void)shareableHandle;
    return not_shared(__func__);
}

aclError aclrtMemSetPidToShareableHandle(uint64_t shareableHandle, int32_t *pid, size_t pidNum)
{
    (void)shareableHandle, (void)pid, (void)pidNum;
    return not_shared(__func__);
}

aclError aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId, aclrtDrvMemHandle *handle)
{
    (void)shareableHandle, (void)deviceId, (void)handle;
    return not_shared(__func__);
}
