"""Kinds of arguments from the calls of a library: names by hand, and a small library made as torch_npu's is."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu import signatures
from ascend_perf.collectors.virtual_npu.call_sites import CallSites, kinds_of, operators_of, read_call_sites
from ascend_perf.collectors.virtual_npu.elf import Elf
from ascend_perf.errors import InputError

END = "EEbPvPKcS1_RKN7c10_npu21DeterministicSnapshotEDpOT_EUlvE_"
STRUCTURE = """
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
namespace at { struct Tensor { void *p; }; }
namespace c10 {
template <class T> struct ArrayRef { const T *p; size_t n; };
template <class T> struct OptionalArrayRef { std::optional<ArrayRef<T>> v; };
struct Scalar { long v; };
enum class ScalarType : signed char { Int };
}
namespace c10_npu { struct DeterministicSnapshot { int level; }; }
struct TensorWrapper { at::Tensor t; };
struct TensorListWrapper { at::Tensor t; };
enum aclDataType { ACL_FLOAT };
struct aclTensor; struct aclIntArray;
int run(const char *, std::function<int()>);
void *address(const char *);

template <typename... Args>
__attribute__((noinline)) bool hit_cache(void *stream, const char *api, void *phrase2,
                                         const c10_npu::DeterministicSnapshot &snapshot, Args &&...args)
{
    static void *found = address(api);
    (void)std::initializer_list<int>{((void)args, 0)...};
    int level = snapshot.level;
    return run(api, [stream, phrase2, level]() -> int { return stream == phrase2 ? level : 3; }) != (found != nullptr);
}
#define CALL(api, ...)                                                                          \\
    do {                                                                                        \\
        static void *size = address(#api "GetWorkspaceSize"), *second = address(#api);          \\
        if (!hit_cache(size, #api, second, snapshot, __VA_ARGS__)) run(#api, nullptr);          \\
    } while (false)
c10_npu::DeterministicSnapshot snapshot;
"""
CALLS = """
void one(const at::Tensor &a, at::Tensor &out, const std::optional<at::Tensor> &maybe, c10::Scalar &s)
{
    CALL(aclnnAdd, a, a, s, out);
    CALL(aclnnMaybe, maybe, out);
}
void two(c10::ArrayRef<at::Tensor> &list, c10::ArrayRef<long> &sizes, c10::OptionalArrayRef<long> &perhaps,
         c10::ArrayRef<c10::Scalar> &scalars, TensorListWrapper &wrapped, const std::optional<c10::Scalar> &none)
{
    CALL(aclnnLists, list, sizes, perhaps, scalars, wrapped, none);
}
void three(TensorWrapper &t, long n, bool flag, double d, float f, int i, char *text, signed char small,
           c10::ScalarType type, aclDataType dtype, unsigned long seed)
{
    char layout[20] = "BSND";
    std::array<bool, 3> mask = {true, false, true};
    CALL(aclnnNumbers, t, n, flag, d, f, i, text, small, type, dtype, seed, layout, mask, "fixed", t);
}
void four(const at::Tensor &a, const aclTensor *handle, const aclIntArray *array, std::string text)
{
    auto null = nullptr;
    CALL(aclnnHandles, a, handle, array, a);
    CALL(aclnnSometimesNull, a, null);
    CALL(aclnnSometimesNull, a, a);
    CALL(aclnnAlwaysNull, null, a);
    CALL(aclnnTwoWays, a, a);
    CALL(aclnnTwoWays, a, array);
    CALL(aclnnOtherLength, a, a);
    CALL(aclnnOtherLength, a, a, a);
    CALL(aclnnUnknownType, a, snapshot);
    run("aclnnUncheckedGetWorkspaceSize", nullptr);
}
"""
TRUTH = {
    "aclnnAdd": "ttst", "aclnnMaybe": "tt", "aclnnLists": "liizls", "aclnnNumbers": "tnydemcymmncbct",
    "aclnnHandles": "ttit", "aclnnSometimesNull": "tt",
}  # fmt: skip


def compiled(folder: Path, compiler: str) -> Elf:
    source, target = folder / "calls.cpp", folder / "libtorch_npu.so"
    source.write_text(STRUCTURE + CALLS, "utf-8")
    subprocess.run(
        [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-o", str(target),
         str(source)],
        check=True,
    )  # fmt: skip
    return Elf(target)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Elf:
    if shutil.which("g++") is None:
        pytest.skip("no g++: `make cross` installs it")
    return compiled(tmp_path_factory.mktemp("calls"), "g++")


def test_a_small_library(library: Elf) -> None:
    check(library)


def test_a_small_library_for_the_other_machine(tmp_path: Path) -> None:
    compiler = f"{'aarch64' if platform.machine() == 'x86_64' else 'x86_64'}-linux-gnu-g++"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    check(compiled(tmp_path, compiler))


def check(library: Elf) -> None:
    found = read_call_sites(library)

    assert found.settled() == TRUTH
    assert set(found.kinds) == {*TRUTH, "aclnnAlwaysNull", "aclnnTwoWays", "aclnnOtherLength"}
    assert found.kinds["aclnnAlwaysNull"] == {"0t": 1}
    assert found.kinds["aclnnTwoWays"] == {"tt": 1, "ti": 1}
    assert found.operators == tuple(sorted({*found.kinds, "aclnnUnknownType", "aclnnUnchecked"}))
    assert operators_of(library) == list(found.operators)


@pytest.mark.parametrize(
    ("types", "kinds"),
    [
        ("RN2at6TensorES2_S2_", "ttt"),
        ("RKN2at6TensorERN3c1010ScalarTypeERS1_", "tmt"),
        ("RKN2at6TensorERN3c108ArrayRefIlEERS1_", "tit"),
        ("R13TensorWrapperS1_", "tt"),
        ("RKSt8optionalIN2at6TensorEERb", "ty"),
        ("RN3c108ArrayRefIN2at6TensorEEERKNS1_IlEE", "li"),
        ("RA20_cRKA6_cRPcRPKc", "cccc"),
        ("RSt5arrayIbLm3EERKDnRl", "b0n"),
        ("RPK9aclTensorRPK11aclIntArrayR11aclDataType", "tim"),
        ("RKmRaRhRjRdRf", "nyymde"),
        ("", ""),
    ],
)
def test_names_as_compilers_spell_them(types: str, kinds: str) -> None:
    assert kinds_of(f"Z9hit_cacheIJ{types}{END}") == kinds


@pytest.mark.parametrize(
    "name",
    ["", "Z9hit_cache", "Z9hit_cacheIJ", "Z9hit_cacheIJR", "Z9hit_cacheIJRN2at6Tens", "Z9hit_cacheIJS9_E",
     "Z9hit_cacheIJ99999TensorE", "Z12hit_cache_v2IJlE", "Z9hit_cacheIJR7UnknownE"],
)  # fmt: skip
def test_names_that_are_none(name: str) -> None:
    assert kinds_of(name) is None


@settings(max_examples=300, deadline=None)
@given(st.text("RKPNSEIJLZ_0123456789lbdfcaimTtensorat", max_size=60))
def test_any_text_is_read_or_not(text: str) -> None:
    found = kinds_of(f"Z9hit_cacheIJ{text}")
    assert found is None or set(found) <= {*signatures.KINDS, "0"}


def test_calls_that_agree_but_for_nulls() -> None:
    def settled(*seen: str) -> str | None:
        return CallSites(operators=("a",), kinds={"a": dict.fromkeys(seen, 1)}).settled().get("a")

    assert settled("tt0", "t0n") == "ttn"
    assert settled("t0") is None
    assert settled("tn", "tt") is None
    assert settled("t", "tt") is None
    assert settled("") == ""


def test_a_library_without_calls(tmp_path: Path) -> None:
    source = tmp_path / "none.c"
    source.write_text("int nothing(void) { return 0; }\n", "utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "none.so"), str(source)], check=True)
    found = read_call_sites(Elf(tmp_path / "none.so"))
    assert (found.operators, found.kinds) == ((), {})


def test_the_table_of_the_package() -> None:
    table = signatures.table()
    assert "2.13.0" in table.versions
    assert len(table.rows) > 900
    # By hand, from the declarations in CANN's documentation.
    assert table.rows["aclnnMatmul"].kinds == "ttty"
    assert table.rows["aclnnAdd"].kinds == "ttst"
    assert table.rows["aclnnSoftmax"].kinds == "tnt"
    assert table.rows["aclnnCat"].kinds == "lnt"
    assert table.rows["aclnnRmsNorm"].kinds == "ttdtt"
    assert table.rows["aclnnApplyAdamW"].kinds == "ttttttttttttyy"
    assert all(row.evidence for row in table.rows.values())


@pytest.mark.parametrize("text", ["operator,kinds,evidence\na,tX,call", "operator,kinds,evidence\na,t,rumour",
                                  "operator,kinds,evidence\na,t,call\na,t,call"])  # fmt: skip
def test_a_table_that_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="row a is wrong"):
        signatures.parse(text)


def test_a_damaged_table_of_functions_is_an_input_error(tmp_path: Path, library: Elf) -> None:
    section = library.section(".eh_frame_hdr")
    content = bytearray(library.path.read_bytes())
    content[section.offset + 8 : section.offset + 12] = b"\xff\xff\xff\x7f"
    (tmp_path / "damaged.so").write_bytes(content)
    with pytest.raises(InputError, match="reaches beyond its end"):
        read_call_sites(Elf(tmp_path / "damaged.so"))
