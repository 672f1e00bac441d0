"""Our prototypes against the headers of CANN that the torch_npu wheel brings: the C++ compiler compares them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests._virtual_npu import ready_npu
from tests.collectors.virtual_npu._device import NATIVE

PROGRAM = """
#include <cstddef>
#include <cstdint>
#include "acl/acl.h"
#include "acl/acl_op_compiler.h"
#include "acl/acl_prof.h"
#include "third_party/hccl/inc/hccl/hccl.h"
struct aclTensor; struct aclScalar; struct aclIntArray; struct aclFloatArray; struct aclBoolArray;
struct aclTensorList; struct aclScalarList; struct aclOpExecutor;
#define VN_REAL_HEADERS
#include "acl_api.h"
%s
"""

LAYOUT = """
// Types of acl_types.h have the layout of the originals.
namespace own {
#include "acl_types.h"
}
#define SAME(type, member) static_assert(offsetof(own::type, member) == offsetof(::type, member), #member)
SAME(HcclCommConfig, hcclBufferSize); SAME(HcclCommConfig, hcclCommName); SAME(HcclCommConfig, hcclWorldRankID);
SAME(HcclCommConfig, hcclJobID); SAME(HcclSendRecvItem, buf); SAME(HcclSendRecvItem, count);
SAME(HcclSendRecvItem, dataType); SAME(HcclSendRecvItem, remoteRank); SAME(aclCANNPackageVersion, version);
static_assert(sizeof(own::HcclSendRecvItem) == sizeof(::HcclSendRecvItem));
static_assert(sizeof(own::HcclRootInfo) == sizeof(::HcclRootInfo));
static_assert(sizeof(own::HcclConfigValue) == sizeof(::HcclConfigValue));
static_assert(offsetof(own::aclrtUtilizationInfo, extend) == offsetof(::aclrtUtilizationInfo, utilizationExtend));
"""


@pytest.fixture(scope="module")
def include() -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++: `make cross` installs it")
    return ready_npu().site / "torch_npu" / "include"


def compiled(include: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-I", NATIVE, "-I", include, "-I",
         include / "third_party" / "acl" / "inc", "-"],
        input=program, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip


def test_prototypes_and_layouts_are_those_of_cann(include: Path) -> None:
    run = compiled(include, PROGRAM % LAYOUT)
    assert run.returncode == 0, run.stderr


def test_a_prototype_that_differs_is_found(include: Path) -> None:
    run = compiled(include, PROGRAM % 'extern "C" aclError aclrtFree(void *address, int more);')
    assert run.returncode != 0
    assert "conflicting declaration" in run.stderr
