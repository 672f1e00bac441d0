/* Types in the prototypes of acl_api.h, with the layout of the originals (acl_rt.h, hccl_types.h ...). Enumerations are
 * int. A test compares size and members with the headers of the torch_npu wheel.
 */
#ifndef ASCEND_PERF_VIRTUAL_NPU_ACL_TYPES_H
#define ASCEND_PERF_VIRTUAL_NPU_ACL_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int aclError, HcclResult;
typedef int aclDataType, aclFormat, aclMemType, aclrtMemcpyKind, aclrtMemMallocPolicy, aclrtMemAttr, aclrtDevAttr;
typedef int aclrtEventRecordedStatus, aclrtEventWaitStatus, aclrtStreamStatus, aclrtFloatOverflowMode;
typedef int aclrtCallbackBlockType, aclrtCmoType, aclrtLastErrLevel, aclrtStreamAttr, aclrtDevResLimitType;
typedef int aclDeviceInfo, aclSysParamOpt, aclCompileOpt, aclopEngineType, aclopCompileType, aclLogLevel;
typedef int aclprofAicoreMetrics, aclprofConfigType, aclprofStepTag, aclCANNPackageName, aclrtMemHandleType;
typedef int aclmdlRICaptureMode, aclmdlRICaptureStatus;
typedef int HcclConfig;
typedef union { int32_t value; } HcclConfigValue;
typedef int HcclDataType, HcclReduceOp, HcclSendRecvType;
typedef void *aclrtStream, *aclrtEvent, *aclrtContext, *aclrtDrvMemHandle, *aclmdlRI, *HcclComm;
typedef void *aclrtFuncHandle, *aclrtBinHandle;
typedef void (*aclrtCallback)(void *), (*aclrtHostFunc)(void *);
typedef struct aclDataBuffer aclDataBuffer;
typedef struct aclTensorDesc aclTensorDesc;
typedef struct aclopAttr aclopAttr;
typedef struct aclprofConfig aclprofConfig;
typedef struct aclprofAicoreEvents aclprofAicoreEvents;
typedef struct aclprofStepInfo aclprofStepInfo;
typedef struct aclrtPhysicalMemProp aclrtPhysicalMemProp;
typedef struct aclrtLaunchKernelCfg aclrtLaunchKernelCfg;
typedef struct vn_placeholder aclrtPlaceHolderInfo;     /* a nameless struct in the original */
typedef union { uint64_t failureMode; uint32_t reserve[4]; } aclrtStreamAttrValue;
typedef struct { int32_t cube, vector, aicpu, memory; void *extend; } aclrtUtilizationInfo;
/* Only the first member is written; the rest of the original follows in the caller's memory. */
typedef struct { char version[128]; } aclCANNPackageVersion;

enum { VN_ROOT_INFO_BYTES = 4108, VN_COMM_NAME_BYTES = 128 };
typedef struct { char internal[VN_ROOT_INFO_BYTES]; } HcclRootInfo;
/* Only the front of it is read; the rest of the original struct follows in the caller's memory. */
typedef struct {
    char reserved[24];
    uint32_t hcclBufferSize, hcclDeterministic;
    char hcclCommName[VN_COMM_NAME_BYTES];
    char hcclUdi[128];
    uint32_t hcclOpExpansionMode, hcclRdmaTrafficClass, hcclRdmaServiceLevel, hcclWorldRankID;
    uint64_t hcclJobID;
} HcclCommConfig;
typedef struct {
    HcclSendRecvType sendRecvType;
    void *buf;
    uint64_t count;
    HcclDataType dataType;
    uint32_t remoteRank;
} HcclSendRecvItem;

/* Types of the operator interface; only pointers to them are handed around. */
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclFloatArray aclFloatArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclScalarList aclScalarList;
typedef struct aclOpExecutor aclOpExecutor;

#endif
