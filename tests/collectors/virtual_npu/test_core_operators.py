"""Calls of operators: how arguments are read and recorded, what is refused, and the small kernels that are computed."""

from __future__ import annotations

import ctypes
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tests.collectors.virtual_npu._device import Device

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

ACL = {"float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "int64": 9, "float64": 11, "bool": 12}
Array = NDArray[np.generic]


def test_every_kind_of_argument_is_read_and_recorded(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream = device.stream()
    matrix = device.tensor(0, (2, 3), 27, (1, 2))
    dense = device.tensor(0, (4,), 1)
    listed = device.handles("aclCreateTensorList", [device.tensor(0, (5, 1), 0), device.tensor(0, (), 9)])
    scalars = device.handles(
        "aclCreateScalarList", [device.scalar(struct.pack("<f", 0.5), 0), device.scalar(struct.pack("<f", -2), 0)]
    )
    floats = (ctypes.c_float * 2)(1.5, 0.1)
    bools = (ctypes.c_bool * 3)(True, False, True)
    code, executor = device.prepare(
        "aclnnMany", matrix, listed, scalars, device.scalar(struct.pack("<e", 0.25), 1), device.ints([-1, 2**40]),
        int(device.lib.aclCreateFloatArray(floats, ctypes.c_uint64(2))),
        int(device.lib.aclCreateBoolArray(bools, ctypes.c_uint64(3))),
        ctypes.cast(text := ctypes.create_string_buffer(b'BS"ND\\'), ctypes.c_void_p).value or 0,
        -(2**62), 2**32 + 7 | 0x80000000, 0xAB01, 0.1, -0.75, dense,
    )  # fmt: skip
    assert code == 0, (device.message(), text)
    assert device.launch("aclnnMany", executor, stream) == 0
    device.close()
    ((kind, name, body),) = device.record().definitions.values()
    assert (kind, name) == ("op", "aclnnMany")
    assert body["args"] == [
        ["t", 27, 2, [2, 3], [1, 2]],
        ["l", [["t", 0, 2, [5, 1], None], ["t", 9, 2, [], None]]],
        ["z", [0.5, -2]],
        ["s", 1, 0.25],
        ["i", [-1, 2**40]],
        ["f", [1.5, pytest.approx(0.1)]],
        ["b", [1, 0, 1]],
        ["c", 'BS"ND\\'],
        ["n", -(2**62)],
        ["n", 7 - 2**31],  # 32 bits of it
        ["n", 1],  # 8 bits of it
        ["d", 0.1],
        ["d", -0.75],
        ["t", 1, 2, [4], None],
    ]


@pytest.mark.parametrize(("word", "value"), [(0, 0), (1, 1), (0xFF, -1), (0x1280, -128), (0x7F, 127)])
def test_eight_bits_have_a_sign(tmp_path: Path, word: int, value: int) -> None:
    """CANN's 8-bit integers are int8_t (cubeMathType, -1: not set); a bool is 0 or 1 either way."""
    device = Device(tmp_path)
    device.run("aclnnReduceSum", device.stream(), device.tensor(0, (4,), 0), device.ints([0]), word, 0,
               device.tensor(0, (), 0))  # fmt: skip
    device.close()
    ((_, _, body),) = device.record().definitions.values()
    assert body["args"][2] == ["n", value]  # type: ignore[index]


def test_operators_that_the_cost_model_does_not_know_are_named(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream = device.stream()
    device.run("aclnnUnary", stream, device.tensor(0, (4,), 0), device.tensor(0, (4,), 0))
    for size in (4, 4, 5):
        device.run("aclnnInplaceOne", stream, device.tensor(0, (size,), 0))
    device.ok("aclrtSynchronizeStream", stream)
    device.close()
    record = device.record()
    assert record.unclassed == ("aclnnInplaceOne",)
    assert record.launches_without_class() == {"aclnnInplaceOne": 3}


def test_null_handles_and_equal_calls(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream = device.stream()
    for _ in range(3):
        device.run("aclnnUnary", stream, 0, device.tensor(0, (7,), 0))
    device.run("aclnnUnary", stream, 0, device.tensor(0, (8,), 0))
    device.close()
    record = device.record()
    assert [body["args"] for _, _, body in record.definitions.values()] == [
        [None, ["t", 0, 2, [7], None]], [None, ["t", 0, 2, [8], None]],
    ]  # fmt: skip
    assert record.tables["K"]["def"].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("kinds", "arguments", "problem"),
    [
        ("t", ("tensor",), "no live handle"),  # too few: the next word, a result's place, is taken for a tensor
        ("ttt", ("tensor", "tensor", "tensor"), "do not follow"),  # too many
        ("ts", ("tensor", "scalar"), "argument 2 is no live handle of kind 't'"),
        ("tt", ("tensor", "dead"), "argument 2 is no live handle"),
        ("tt", ("tensor", 4096), "argument 2 is no live handle"),
    ],
)
def test_calls_that_do_not_fit_the_table_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kinds: str, arguments: tuple[object, ...], problem: str
) -> None:
    device = Device(tmp_path)
    given_ = {"tensor": device.tensor(0, (1,), 0), "scalar": device.scalar(b"1234", 0), "dead": device.tensor(0, (), 0)}
    device.ok("aclDestroyTensor", given_["dead"])
    words = [given_.get(str(one), one) for one in arguments]
    code, executor = device.prepare("aclnnUnary", *words, kinds=kinds)  # type: ignore[arg-type]
    assert (code, executor) == (161002, None)
    assert problem in device.message()
    assert "aclnnUnary" in capfd.readouterr().err
    record = device.record()
    assert [(name, code) for _, name, code, _ in record.errors] == [("aclnnUnary", 161002)]
    assert not record.definitions


def test_an_operator_whose_arguments_nobody_knows_is_refused(tmp_path: Path) -> None:
    device = Device(tmp_path)
    assert device.prepare("aclnnUnknown", kinds="") == (161002, None)
    assert "its arguments are not known" in device.message()


def test_an_executor_is_of_one_operator_and_used_once(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream = device.stream()
    code, executor = device.prepare("aclnnTimed", 5)
    assert code == 0
    assert device.launch("aclnnUnary", executor, stream) == 161001
    assert device.launch("aclnnTimed", executor, stream) == 0
    assert device.launch("aclnnTimed", executor, stream) == 161001
    assert device.launch("aclnnTimed", None, stream) == 161001


# ---- small kernels ----


class Small:
    """Arrays on a device, and back."""

    def __init__(self, folder: Path) -> None:
        for old in folder.glob("*"):
            old.unlink()
        self.device = Device(folder)
        self.stream = self.device.stream()

    def put(self, values: Array, *, transposed: bool = False) -> int:
        """Handle of a tensor with these values; `transposed`: they lie in the other order in memory."""
        laid = np.ascontiguousarray(values.T if transposed else values)
        memory = self.device.memory(max(laid.nbytes, 1))
        ctypes.memmove(memory, laid.ctypes.data, laid.nbytes)
        steps = [step // laid.itemsize for step in (laid.T if transposed else laid).strides]
        return self.device.tensor(memory, values.shape, ACL[str(values.dtype)], steps)

    def empty(self, shape: tuple[int, ...], dtype: str) -> tuple[int, Array]:
        """Handle of a tensor full of garbage, and an array that shows its memory."""
        shown = np.zeros(shape, dtype)
        memory = self.device.memory(max(shown.nbytes, 1))
        ctypes.memset(memory, 0x55, shown.nbytes)
        buffer = (ctypes.c_char * shown.nbytes).from_address(memory)
        return self.device.tensor(memory, shape, ACL[dtype]), np.frombuffer(memoryview(buffer), dtype).reshape(shape)

    def run(self, name: str, *arguments: int) -> None:
        self.device.run(name, self.stream, *arguments)

    def whole(self, value: int) -> int:
        return self.device.scalar(struct.pack("<q", value), 9)


shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)
quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
INTS = ("int64", "int32", "int16", "int8", "uint8")


@quick
@given(st.data())
def test_copies_and_casts(tmp_path: Path, data: st.DataObject) -> None:
    source, target = (data.draw(st.sampled_from((*INTS, "float32", "float64", "float16", "bool"))) for _ in "12")
    bound = None if source == "bool" else {"min_value": 0, "max_value": 100}
    values = data.draw(hnp.arrays(source, shapes, elements=bound))
    small = Small(tmp_path)
    handle, shown = small.empty(values.shape, target)
    small.run("aclnnInplaceCopy", handle, small.put(values, transposed=data.draw(st.booleans())))
    np.testing.assert_array_equal(shown, values.astype(target))
    again, cast = small.empty(values.shape, target)
    small.run("aclnnCast", small.put(values), ACL[target], again)
    np.testing.assert_array_equal(cast, values.astype(target))


@quick
@given(st.data())
def test_padding_and_joining(tmp_path: Path, data: st.DataObject) -> None:
    values = data.draw(hnp.arrays("int32", shapes))
    pair = st.tuples(st.integers(-1, 3), st.integers(0, 3))  # a negative pad cuts; not all of a dimension
    drawn = data.draw(st.lists(pair, min_size=values.ndim, max_size=values.ndim))
    pads = [(max(before, -int(n > 1)), after) for (before, after), n in zip(drawn, values.shape, strict=True)]
    cut = values[tuple(slice(max(-before, 0), None) for before, _ in pads)]
    expected = np.pad(cut, [(max(before, 0), after) for before, after in pads], constant_values=-3)
    small = Small(tmp_path)
    handle, shown = small.empty(expected.shape, "int32")
    small.run(
        "aclnnConstantPadNd", small.put(values), small.device.ints([n for pair in reversed(pads) for n in pair]),
        small.whole(-3), handle,
    )  # fmt: skip
    np.testing.assert_array_equal(shown, expected)

    axis = data.draw(st.integers(-values.ndim, values.ndim - 1))
    joined = np.concatenate([values, np.flip(values), values], axis)
    parts = [small.put(values), small.put(np.flip(values)), small.put(values, transposed=True)]
    handle, shown = small.empty(joined.shape, "int32")
    small.run("aclnnCat", small.device.handles("aclCreateTensorList", parts), axis & (2**64 - 1), handle)
    np.testing.assert_array_equal(shown, joined)


@quick
@given(st.data())
def test_comparing_and_counting(tmp_path: Path, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTS))
    bound = {"min_value": 0, "max_value": 9}
    a = data.draw(hnp.arrays(dtype, shapes, elements=bound))
    b = data.draw(hnp.arrays(dtype, a.shape[data.draw(st.integers(0, a.ndim - 1)) :], elements=bound))  # broadcast
    small = Small(tmp_path)
    for name, function in (("Gt", np.greater), ("Le", np.less_equal), ("Eq", np.equal)):
        handle, shown = small.empty(a.shape, "bool")
        small.run(f"aclnn{name}Tensor", small.put(a), small.put(b), handle)
        np.testing.assert_array_equal(shown, function(a, b))
    handle, shown = small.empty(a.shape, "bool")
    small.run("aclnnGtScalar", small.put(a), small.whole(4), handle)
    np.testing.assert_array_equal(shown, a > 4)
    handle, shown = small.empty(a.shape, "int64")
    small.run("aclnnAdd", small.put(a), small.put(b), small.whole(-3), handle)
    np.testing.assert_array_equal(shown, a.astype("int64") - 3 * b.astype("int64"))
    handle, shown = small.empty(a.shape, "int64")
    small.run("aclnnMul", small.put(a), small.put(b), handle)
    np.testing.assert_array_equal(shown, a.astype("int64") * b)
    dims = data.draw(st.sets(st.integers(0, a.ndim - 1)))
    keeps = data.draw(st.booleans())
    total = a.astype("int64").sum(tuple(dims) or None, keepdims=keeps)
    handle, shown = small.empty(total.shape, "int64")
    small.run("aclnnReduceSum", small.put(a), small.device.ints(sorted(dims)), int(keeps), 9, handle)
    np.testing.assert_array_equal(shown, total)


def test_small_results_of_everything_else_are_zero_and_inputs_stay(tmp_path: Path) -> None:
    small = Small(tmp_path)
    into, shown = small.empty((3, 3), "float32")
    values = np.arange(9, dtype="float32").reshape(3, 3)
    source = small.put(values)
    small.run("aclnnUnary", source, into)
    assert not shown.any()
    back, kept = small.empty((3, 3), "float32")
    small.run("aclnnInplaceCopy", back, source)
    np.testing.assert_array_equal(kept, values)
    loss, weight = small.empty((), "float32"), small.empty((), "float32")
    small.run("aclnnNLLLoss", source, source, 0, 1, 2, loss[0], weight[0])
    assert (float(loss[1]), float(weight[1])) == (0, 0)
    np.testing.assert_array_equal(kept, values)
    large, untouched = small.empty((100, 100), "float32")
    small.run("aclnnUnary", source, large)
    assert untouched.view("uint8").all()
    filled, full = small.empty((2,), "int64")
    small.run("aclnnInplaceFillScalar", filled, small.whole(41))
    assert full.tolist() == [41, 41]
    small.run("aclnnInplaceZero", filled)
    assert full.tolist() == [0, 0]
    small.run("aclnnInplaceOne", filled)
    assert full.tolist() == [1, 1]
