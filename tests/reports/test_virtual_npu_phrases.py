"""What the virtual NPU says is said in Chinese: its set-up, its settings, its records, the profiles made of them."""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path

import pytest

from ascend_perf.collectors.virtual_npu import VirtualNpu
from ascend_perf.collectors.virtual_npu.cost import cost_lines
from ascend_perf.device.specs import device_specs
from ascend_perf.errors import UsageError
from ascend_perf.reports.phrases import phrase, spoken
from tests.conftest import ROOT
from tests.reports import _errors, _literals
from tests.reports.test_phrases import CHINESE, texts_of

MODULES = sorted((ROOT / "collectors" / "virtual_npu").glob("*.py"))
RUNS = ROOT / "ascend_perf" / "bench" / "virtual.py"

_LEFT = re.compile(
    r"(?<![\w/.-])(?:a|an|the|is|are|be|of|to|has|have|holds|not|no|it|its|that|at|in|with|and|or|cannot|expected|"
    r"give|take|set|see|run|choose|name|number|damaged|known)(?![\w/-])"
)
_SHOWN = re.compile(r"`[^`]*`|\([^()]*\bor dnf\b[^()]*\)")
"""Commands and names to copy: they are the same in both languages."""


def in_english(text: str) -> bool:
    """Whether a reader of Chinese would meet English in a text."""
    said = phrase(text).zh
    return not CHINESE.search(said) or bool(_LEFT.search(_SHOWN.sub("", said)))


@pytest.fixture(scope="module")
def errors() -> set[_errors.Text]:
    return set(chain.from_iterable(_errors.of(module) for module in (*MODULES, RUNS)))


def test_every_error_of_the_virtual_npu_has_its_chinese(errors: set[_errors.Text]) -> None:
    texts = {text for error in errors for text in (error.what, error.hint) if text not in ("", _literals.COMPUTED)}

    assert len(texts) > 130
    assert {text: phrase(text).zh for text in texts if in_english(text)} == {}


def test_every_line_about_the_set_up_has_its_chinese() -> None:
    texts = texts_of(MODULES, {"say": (("", 0),)})

    assert len(texts) > 6
    assert {text: phrase(text).zh for text in texts if in_english(text)} == {}


def test_every_note_of_a_run_on_virtual_npus_has_its_chinese() -> None:
    tree = ast.parse(RUNS.read_text("utf-8"))
    known = _literals.assigned(tree)
    # Notes are constants of the module and the tuples that its functions return.
    nodes = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.value is not None]
    nodes += [
        item for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        for item in node.value.elts if isinstance(item, ast.Constant | ast.JoinedStr)
    ]  # fmt: skip
    texts = {text for node in nodes for text in _literals.expanded(node, known) if " " in text}

    assert len(texts) > 5
    assert {text: phrase(text).zh for text in texts if in_english(text)} == {}


def test_what_stands_around_an_error_leaves_it_whole(errors: set[_errors.Text]) -> None:
    """As notes of the manifest and reports of failed runs have it."""
    for error in errors:
        what, hint = phrase(error.what).zh, phrase(error.hint).zh
        assert phrase(f"the run failed: {error.what}").zh == f"运行失败：{what}"
        assert phrase(f"no profile: {error.what}").zh == f"没有 profile：{what}"
        note = f"no profile: {error.what} (hint: {error.hint})"
        assert not error.hint or phrase(note).zh == f"没有 profile：{what}（提示：{hint}）"


def test_what_a_chip_lacks_for_a_model_is_said_in_chinese() -> None:
    refused = {}
    for spec in device_specs().values():
        try:
            cost_lines(VirtualNpu(soc=spec.name, hbm_bytes=1 << 35))
        except UsageError as error:
            refused[spec.name] = error

    assert refused
    for reason in refused.values():
        assert not in_english(reason.what) and not in_english(reason.hint)


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("the record rank0.7.vnpu is damaged: line 3 has 2 fields of 4",
         "记录 rank0.7.vnpu 已损坏：第 3 行有 2 个字段，应有 4 个"),
        ("no profile: the record rank0.7.vnpu is damaged: line 3 has 2 fields of 4 (hint: run the workload again)",
         "没有 profile：记录 rank0.7.vnpu 已损坏：第 3 行有 2 个字段，应有 4 个（提示：请重新运行该负载）"),
        ("no profile: a_ascend_pt: nothing was launched on the device while it was recorded (hint: did the program "
         "end, or fail, when recording began? record earlier steps)",
         "没有 profile：a_ascend_pt：采集期间没有向设备下发任何任务（提示：程序是否在采集开始时已结束或失败？"
         "请采集更早的 step）"),
        ("libtorch_npu.so is damaged or of no use here: it has no section .text",
         "libtorch_npu.so 已损坏或不适用：没有节 .text"),
        ("times cannot be modelled for X: the device table does not know the rate of the memory; the frequency",
         "无法为 X 的耗时建模：设备表中缺少内存带宽；主频"),
        ("the cache folder of the virtual NPU cannot be made: Permission denied",
         "虚拟 NPU 的缓存文件夹无法创建：没有权限"),
        ("src holds no *.py file", "src 中没有 *.py 文件"),
        ("hbm_bytes is 2.5, expected a whole number of at least 1", "hbm_bytes 为 2.5，应为不小于 1 的整数"),
        ("the analysis of torch_npu failed: exit code 3", "torch_npu 的解析失败：退出码 3"),
    ],
)  # fmt: skip
def test_parts_stand_at_their_place(text: str, chinese: str) -> None:
    assert spoken(text, "zh") == chinese
    assert spoken(text, "en") == text


def test_texts_are_found_wherever_a_module_makes_them(tmp_path: Path) -> None:
    """That a new text cannot slip by: the kinds of places where one can be."""
    module = tmp_path / "module.py"
    module.write_text("""
HINT = "try again"

def bad(self, why, part):
    return InputError(f"{part} is bad: {why}")

def read(path):
    if not path:
        raise UsageError(what="no path" if path is None else "an empty path", hint=HINT)
    if path == "odd":
        raise bad("it is " + path, "x")
    if path == "far":
        raise Node(path).is_no("a list", hint=f"see {HELP}")
    try:
        raise ValueError(f"line {path} is short")
    except (ValueError, KeyError) as error:
        raise MachineError(f"{path} failed: {error}") from error
""", "utf-8")

    helper = tmp_path / "helper.py"
    helper.write_text("""
class Node:
    def wrong(self, problem, hint=""):
        return UsageError(f"{self.place} {problem}", hint=hint)

    def is_no(self, expected, hint=""):
        return self.wrong(f"must be {expected}, got {self.value!r}", hint)
""", "utf-8")

    assert _errors.of(module, helper) == {
        _errors.Text("7 must be a list, got 7", "see 7"),
        _errors.Text("no path", "try again"), _errors.Text("an empty path", "try again"),
        _errors.Text("x is bad: it is 7"), _errors.Text("line 7 is short"), _errors.Text("7 failed: 7"),
    }  # fmt: skip
