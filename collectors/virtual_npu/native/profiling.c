/* Calls of the profiler interface (aclprof, Msprof) and of the marker library (mstx): they are recorded. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { DETAIL_BYTES = 4200 };

static bool is_initialised, is_running;

__attribute__((format(printf, 2, 3))) static void record(const char *what, const char *format, ...)
{
    char detail[DETAIL_BYTES], escaped[DETAIL_BYTES + 200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    vn_lock();
    vn_record_locked("R\t%lld\t%s\t%s", (long long)vn_now_locked(), what, vn_escape(detail, escaped, sizeof escaped));
    vn_unlock();
}

aclError aclprofInit(const char *profilerResultPath, size_t length)
{
    is_initialised = true;
    record("init", "%.*s", (int)length, profilerResultPath ? profilerResultPath : "");
    return VN_OK;
}

aclError aclprofFinalize(void)
{
    is_initialised = false;
    record("finalize", "%s", "");
    return VN_OK;
}

aclprofConfig *aclprofCreateConfig(uint32_t *deviceIdList, uint32_t deviceNums, aclprofAicoreMetrics aicoreMetrics,
                                   const aclprofAicoreEvents *aicoreEvents, uint64_t dataTypeConfig)
{
    (void)aicoreEvents;
    record("config", "device=%d metrics=%d mask=0x%llx", deviceNums && deviceIdList ? (int)deviceIdList[0] : -1,
           (int)aicoreMetrics, (unsigned long long)dataTypeConfig);
    return calloc(1, 64);
}

aclError aclprofDestroyConfig(const aclprofConfig *profilerConfig)
{
    free((void *)(uintptr_t)profilerConfig);
    return VN_OK;
}

aclError aclprofSetConfig(aclprofConfigType configType, const char *config, size_t configLength)
{
    record("config", "type=%d value=%.*s", (int)configType, (int)configLength, config ? config : "");
    return VN_OK;
}

aclError aclprofWarmup(const aclprofConfig *profilerConfig)
{
    (void)profilerConfig;
    return VN_OK;
}

aclError aclprofStart(const aclprofConfig *profilerConfig)
{
    (void)profilerConfig;
    if (is_running)
        return vn_fail(__func__, VN_ERROR_PROF_ALREADY_RUN, "aclprofStart: the profiler runs already");
    is_running = true;
    record("start", "%s", is_initialised ? "" : "not initialised");
    return VN_OK;
}

aclError aclprofStop(const aclprofConfig *profilerConfig)
{
    (void)profilerConfig;
    if (!is_running)
        return vn_fail(__func__, VN_ERROR_PROF_NOT_RUN, "aclprofStop: the profiler does not run");
    is_running = false;
    record("stop", "%s", "");
    return VN_OK;
}

/* What a profiler of CANN lists for a 910B: torch_npu warns of features that are absent. Both the record and the facts in
 * it are classes with a virtual destructor on either side. */
typedef struct {
    void *record_methods;
    char name[64];
    void *facts_methods;
    char compatibility[16], version[16], component[16], component_version[16], log[128];
} Feature;

#define FEATURE(name, shown) {NULL, name, NULL, "1", "2", "all", "all", "It not support feature: " shown "!"}
static Feature features[] = {FEATURE("ATTR", "ATTR"), FEATURE("MemoryAccess", "MEMORY_ACCESS")};

aclError aclprofGetSupportedFeatures(size_t *featuresSize, void **featuresData)
{
    *featuresSize = 1;
    *featuresData = features;
    return VN_OK;
}

aclError aclprofGetSupportedFeaturesV2(size_t *featuresSize, void **featuresData)
{
    *featuresSize = sizeof features / sizeof features[0];
    *featuresData = features;
    return VN_OK;
}

aclprofStepInfo *aclprofCreateStepInfo(void) { return calloc(1, 64); }
void aclprofDestroyStepInfo(aclprofStepInfo *stepinfo) { free(stepinfo); }

aclError aclprofGetStepTimestamp(aclprofStepInfo *stepInfo, aclprofStepTag tag, aclrtStream stream)
{
    (void)stepInfo, (void)tag, (void)stream;
    return VN_OK;
}

/* ---- reports of torch_npu to the CANN profiler: their content is in the record already ---- */

int32_t MsprofRegisterCallback(uint32_t moduleId, void *handle)
{
    (void)moduleId, (void)handle;
    return VN_OK;
}

int32_t MsprofReportApi(uint32_t flag, const void *api)
{
    (void)flag, (void)api;
    return VN_OK;
}

int32_t MsprofReportCompactInfo(uint32_t flag, void *data, uint32_t length)
{
    (void)flag, (void)data, (void)length;
    return VN_OK;
}

int32_t MsprofReportAdditionalInfo(uint32_t flag, void *data, uint32_t length)
{
    (void)flag, (void)data, (void)length;
    return VN_OK;
}

uint64_t MsprofSysCycleTime(void)
{
    return (uint64_t)vn_raw_ns();
}

uint64_t MsprofGetHashId(const char *hashInfo, size_t length)
{
    uint64_t hash = 1469598103934665603ull;     /* FNV-1a: only has to be the same for the same name */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)hashInfo[i]) * 1099511628211ull;
    return hash;
}

/* ---- markers ---- */

static uint64_t next_range = 1;

/* Text of a start is "<id> <message>", of an end "<id>", so that the two can be tied together. */
static uint64_t mark(const char *kind, const char *message, uint64_t id, const char *domain, aclrtStream stream)
{
    char text[DETAIL_BYTES / 2], escaped[DETAIL_BYTES], escaped_domain[256];
    vn_lock();
    if (!strcmp(kind, "start"))
        id = next_range++;
    if (id && message)
        snprintf(text, sizeof text, "%llu %s", (unsigned long long)id, message);
    else if (id)
        snprintf(text, sizeof text, "%llu", (unsigned long long)id);
    else
        snprintf(text, sizeof text, "%s", message ? message : "");
    const vn_stream *queue = stream ? vn_stream_locked(stream) : NULL;
    vn_record_locked("N\t%lld\t%s\t%s\t%d\t%llu\t%s\t%lld", (long long)vn_now_locked(), kind,
                     vn_escape(text, escaped, sizeof escaped), vn_thread_id(), (unsigned long long)id,
                     vn_escape(domain ? domain : "default", escaped_domain, sizeof escaped_domain),
                     queue ? (long long)queue->id : -1);
    vn_unlock();
    return id;
}

void mstxMarkA(const char *message, aclrtStream stream) { mark("mark", message, 0, NULL, stream); }
uint64_t mstxRangeStartA(const char *message, aclrtStream stream) { return mark("start", message, 0, NULL, stream); }
void mstxRangeEnd(uint64_t id) { mark("end", NULL, id, NULL, NULL); }

/* A domain is its name. */
void *mstxDomainCreateA(const char *name) { return strdup(name ? name : "default"); }
void mstxDomainDestroy(void *domain) { free(domain); }

void mstxDomainMarkA(void *domain, const char *message, aclrtStream stream)
{
    mark("mark", message, 0, domain, stream);
}

uint64_t mstxDomainRangeStartA(void *domain, const char *message, aclrtStream stream)
{
    return mark("start", message, 0, domain, stream);
}

void mstxDomainRangeEnd(void *domain, uint64_t id) { mark("end", NULL, id, domain, NULL); }

/* Marker through the profiler: torch_npu puts one at each operator to tie host and device together. Not kept: too
 * many, and the record has the launches. */
aclError aclprofMarkEx(const char *msg, size_t msgLen, aclrtStream stream)
{
    (void)msg, (void)msgLen, (void)stream;
    return VN_OK;
}
