/* Runtime: devices, contexts, settings, versions, and the helper functions of Huawei's secure C library. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

static __thread int current_device = -1;
static bool is_active[VN_MAX_DEVICES];
static uint32_t core_limits[VN_MAX_DEVICES][2];

int vn_current_device(void)
{
    return current_device;
}

static bool is_device(int device)
{
    return device >= 0 && device < vn_settings()->device_count;
}

static int bad_device(const char *function, int device)
{
    return vn_fail(function, VN_ERROR_INVALID_DEVICE, "EE1001: The argument is invalid.Reason: Set device failed, "
                   "invalid device, set device=%d, valid device range is [0, %d)", device,
                   vn_settings()->device_count);
}

aclError aclInit(const char *configPath)
{
    (void)configPath;
    vn_settings();
    return VN_OK;
}

aclError aclFinalize(void)
{
    return VN_OK;
}

const char *aclrtGetSocName(void)
{
    return vn_settings()->soc;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    *count = (uint32_t)vn_settings()->device_count;
    return VN_OK;
}

aclError aclrtSetDevice(int32_t deviceId)
{
    if (!is_device(deviceId))
        return bad_device(__func__, deviceId);
    current_device = deviceId;
    vn_lock();
    is_active[deviceId] = true;
    vn_unlock();
    return VN_OK;
}

aclError aclrtGetDevice(int32_t *deviceId)
{
    /* Not an error worth a line: torch_npu asks in order to find out. */
    if (current_device < 0)
        return VN_ERROR_CONTEXT_NULL;
    *deviceId = current_device;
    return VN_OK;
}

aclError aclrtResetDevice(int32_t deviceId)
{
    if (!is_device(deviceId))
        return bad_device(__func__, deviceId);
    vn_lock();
    is_active[deviceId] = false;
    vn_unlock();
    return VN_OK;
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode)
{
    (void)mode;
    return VN_OK;
}

/* A context is its device: one for each. */
static char contexts[VN_MAX_DEVICES];

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    if (current_device < 0)
        return VN_ERROR_CONTEXT_NULL;
    *context = &contexts[current_device];
    return VN_OK;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    const char *one = context;
    if (one < contexts || one >= contexts + VN_MAX_DEVICES)
        return vn_fail(__func__, VN_ERROR_CONTEXT_NULL, "aclrtSetCurrentContext: %p is no context", context);
    current_device = (int)(one - contexts);
    return VN_OK;
}

aclError aclrtGetPrimaryCtxState(int32_t deviceId, uint32_t *flags, int32_t *active)
{
    if (!is_device(deviceId))
        return bad_device(__func__, deviceId);
    if (flags)
        *flags = 0;
    vn_lock();
    if (active)
        *active = is_active[deviceId];
    vn_unlock();
    return VN_OK;
}

aclError aclrtDeviceCanAccessPeer(int32_t *canAccessPeer, int32_t deviceId, int32_t peerDeviceId)
{
    if (!is_device(deviceId) || !is_device(peerDeviceId))
        return bad_device(__func__, is_device(deviceId) ? peerDeviceId : deviceId);
    *canAccessPeer = deviceId != peerDeviceId;
    return VN_OK;
}

aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags)
{
    (void)flags;
    return is_device(peerDeviceId) ? VN_OK : bad_device(__func__, peerDeviceId);
}

/* ---- what the device is ---- */

aclError aclGetDeviceCapability(uint32_t deviceId, aclDeviceInfo deviceInfo, int64_t *value)
{
    if (!is_device((int)deviceId))
        return bad_device(__func__, (int)deviceId);
    const vn_config *settings = vn_settings();
    *value = deviceInfo == 2 ? settings->l2_bytes : deviceInfo == 1 ? settings->vector_cores : settings->cube_cores;
    return VN_OK;
}

aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t *value)
{
    if (!is_device((int)deviceId))
        return bad_device(__func__, (int)deviceId);
    switch (attr) {
    case 101: case 102: *value = vn_settings()->cube_cores; break;     /* AICORE_, CUBE_CORE_NUM */
    case 201: *value = vn_settings()->vector_cores; break;             /* VECTOR_CORE_NUM */
    case 301: *value = vn_settings()->hbm_bytes; break;                /* TOTAL_GLOBAL_MEM_SIZE */
    case 302: *value = vn_settings()->l2_bytes; break;                 /* L2_CACHE_SIZE */
    default: *value = 0;
    }
    return VN_OK;
}

aclError aclrtGetDeviceUtilizationRate(int32_t deviceId, aclrtUtilizationInfo *utilizationInfo)
{
    if (!is_device(deviceId))
        return bad_device(__func__, deviceId);
    memset(utilizationInfo, 0, 4 * sizeof(int32_t));    /* four rates in percent; a model has no sensor */
    return VN_OK;
}

aclError aclrtGetDeviceResLimit(int32_t deviceId, aclrtDevResLimitType type, uint32_t *value)
{
    if (!is_device(deviceId) || type < 0 || type > 1)
        return bad_device(__func__, deviceId);
    vn_lock();
    uint32_t limit = core_limits[deviceId][type];
    vn_unlock();
    *value = limit ? limit : (uint32_t)(type ? vn_settings()->vector_cores : vn_settings()->cube_cores);
    return VN_OK;
}

/* Kept and answered; the cost model does not know of it. */
aclError aclrtSetDeviceResLimit(int32_t deviceId, aclrtDevResLimitType type, uint32_t value)
{
    if (!is_device(deviceId) || type < 0 || type > 1)
        return bad_device(__func__, deviceId);
    vn_lock();
    core_limits[deviceId][type] = value;
    vn_unlock();
    return VN_OK;
}

/* ---- settings without effect on the model ---- */

enum { OPTIONS = 64 };
static int64_t options[OPTIONS];
static bool is_option_set[OPTIONS];

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t *value)
{
    if (opt < 0 || opt >= OPTIONS)
        return vn_fail(__func__, VN_ERROR_PARAM_INVALID, "aclrtGetSysParamOpt: option %d", opt);
    *value = options[opt];
    return VN_OK;
}

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    if (opt < 0 || opt >= OPTIONS)
        return vn_fail(__func__, VN_ERROR_PARAM_INVALID, "aclrtSetSysParamOpt: option %d", opt);
    options[opt] = value;
    is_option_set[opt] = true;
    return VN_OK;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value)
{
    return aclrtSetSysParamOpt(opt, value);
}

aclError aclSetCompileopt(aclCompileOpt opt, const char *value)
{
    (void)opt, (void)value;
    return VN_OK;
}

/* The only option that torch_npu reads is compiling at run time; with "enable" it would take the old operator route. */
aclError aclGetCompileopt(aclCompileOpt opt, char *value, size_t length)
{
    (void)opt;
    snprintf(value, length, "disable");
    return VN_OK;
}

size_t aclGetCompileoptSize(aclCompileOpt opt)
{
    (void)opt;
    return sizeof "disable";
}

aclError aclrtSetOpWaitTimeout(uint32_t timeout)
{
    (void)timeout;
    return VN_OK;
}

aclError aclrtSetOpExecuteTimeOut(uint32_t timeout)
{
    (void)timeout;
    return VN_OK;
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t *actualTimeout)
{
    if (actualTimeout)
        *actualTimeout = timeout;
    return VN_OK;
}

aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode)
{
    (void)stream, (void)mode;
    return VN_OK;
}

aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag)
{
    (void)stream, (void)flag;
    return VN_OK;
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t *flag)
{
    (void)stream;
    *flag = 0;
    return VN_OK;
}

aclError aclrtSetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType, aclrtStreamAttrValue *value)
{
    (void)stream, (void)stmAttrType, (void)value;
    return VN_OK;
}

/* ---- graph capture ---- */

/* Not "feature not supported": torch_npu takes that code for an old driver, warns and goes on into an assertion. */
static int no_capture(const char *function)
{
    return vn_fail(function, VN_ERROR_CAPTURE_NOT_SUPPORTED, "EE9999: %s: the virtual NPU does not capture graphs "
                   "(NPUGraph); run the model without capture", function);
}

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode)
{
    (void)stream, (void)mode;
    return no_capture(__func__);
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *modelRI)
{
    (void)stream, (void)modelRI;
    return no_capture(__func__);
}

/* Asked by torch_npu outside of captures too: nothing is being captured. */
aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *modelRI)
{
    (void)stream;
    if (status)
        *status = 0;
    if (modelRI)
        *modelRI = NULL;
    return VN_OK;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode)
{
    if (mode)
        *mode = 0;
    return VN_OK;
}

aclError aclmdlRIExecuteAsync(aclmdlRI modelRI, aclrtStream stream)
{
    (void)modelRI, (void)stream;
    return no_capture(__func__);
}

aclError aclmdlRIDestroy(aclmdlRI modelRI)
{
    (void)modelRI;
    return VN_OK;
}

/* ---- versions, driver ---- */

aclError aclsysGetVersionStr(char *pkgName, char *versionStr)
{
    (void)pkgName;
    strcpy(versionStr, vn_settings()->cann_version);
    return VN_OK;
}

aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion *version)
{
    (void)name;
    snprintf(version->version, sizeof version->version, "%s", vn_settings()->cann_version);
    return VN_OK;
}

int halGetAPIVersion(int *version)
{
    *version = 0x072000;    /* high enough for all that torch_npu asks the driver */
    return VN_OK;
}

int halGetDeviceInfo(uint32_t device, int32_t module, int32_t kind, int64_t *value)
{
    (void)device, (void)module, (void)kind;
    *value = 0;
    return VN_OK;
}

void aclAppLog(aclLogLevel logLevel, const char *func, const char *file, uint32_t line, const char *fmt, ...)
{
    (void)logLevel, (void)func, (void)file, (void)line, (void)fmt;     /* CANN writes these to its own log folder */
}

/* ---- secure C library ---- */

int vsnprintf_s(char *dest, size_t size, size_t count, const char *format, va_list arguments)
{
    if (!dest || !size || !format)
        return -1;
    int length = vsnprintf(dest, size < count + 1 ? size : count + 1, format, arguments);
    return length >= 0 && (size_t)length < size && (size_t)length <= count ? length : -1;
}

int snprintf_s(char *dest, size_t size, size_t count, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf_s(dest, size, count, format, arguments);
    va_end(arguments);
    return length;
}

int strcpy_s(char *dest, size_t size, const char *source)
{
    if (!dest || !source || strlen(source) >= size)
        return 34;      /* ERANGE */
    strcpy(dest, source);
    return 0;
}
