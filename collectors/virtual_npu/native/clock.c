/* Lock and clocks of the virtual device.
 *
 * Wall clock: the record's time is CLOCK_MONOTONIC_RAW, the clock of torch_npu's own profiler records, and the host
 * really sleeps where it waits for the device. Modelled clock: the time starts at 0 and moves only with launches and
 * waits, so that figures do not depend on the machine. The modelled host is one time line for all threads: with
 * torch_npu's task queue one thread launches and another waits, and each must see what the other did. A thread that
 * polls runs ahead on its own (see vn_polled_locked): the watchdog of a process group polls in real time, and its
 * questions must not move the time of the program.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { NS_PER_S = 1000000000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static bool forked_child;
static int64_t host_ns;                     /* modelled time of the program */
static __thread int64_t polling_ns;         /* modelled time of a thread that polls ahead of it */
static __thread int thread_id;

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&mutex); }

static void after_fork_in_child(void)
{
    forked_child = true;
    thread_id = 0;
    pthread_mutex_unlock(&mutex);
}

__attribute__((constructor)) static void start(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void vn_lock(void) { pthread_mutex_lock(&mutex); }
void vn_unlock(void) { pthread_mutex_unlock(&mutex); }
void vn_notify_locked(void) { pthread_cond_broadcast(&changed); }
bool vn_is_forked_child(void) { return forked_child; }

void vn_wait_locked(int64_t limit_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ns / NS_PER_S;
    until.tv_nsec += limit_ns % NS_PER_S;
    if (until.tv_nsec >= NS_PER_S) {
        until.tv_sec++;
        until.tv_nsec -= NS_PER_S;
    }
    pthread_cond_timedwait(&changed, &mutex, &until);
}

int64_t vn_raw_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_RAW, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

int vn_thread_id(void)
{
    if (!thread_id)
        thread_id = (int)syscall(SYS_gettid);
    return thread_id;
}

int64_t vn_now_locked(void)
{
    if (!vn_settings()->is_modelled)
        return vn_raw_ns();
    return polling_ns > host_ns ? polling_ns : host_ns;
}

int64_t vn_launch_time_locked(void)
{
    int64_t now = vn_now_locked();
    if (vn_settings()->is_modelled) {
        host_ns = now + vn_settings()->host_launch_ns;
    }
    return now;
}

void vn_host_wait_locked(int64_t time_ns)
{
    if (vn_settings()->is_modelled) {
        int64_t now = vn_now_locked();
        host_ns = time_ns > now ? time_ns : now;
        return;
    }
    /* No sleep until a time of CLOCK_MONOTONIC_RAW exists, so this one is relative and asks again. */
    for (int64_t left; (left = time_ns - vn_raw_ns()) > 0;) {
        struct timespec rest = {left / NS_PER_S, left % NS_PER_S};
        vn_unlock();
        nanosleep(&rest, NULL);
        vn_lock();
    }
}

void vn_polled_locked(void)
{
    if (vn_settings()->is_modelled)
        polling_ns = vn_now_locked() + vn_settings()->host_launch_ns;
}
