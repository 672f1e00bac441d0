"""Check the calls of torch_npu in source files against the real wheel: names, arguments, values, gradients.

Files are parsed, never executed. What the wheel offers is asked of it once, in a process of its own that runs on the
stand-in libraries, and kept as JSON beside the wheel: `facts_of`. `check_text` needs nothing but that.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import tempfile
import tokenize
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ascend_perf.collectors.virtual_npu import _contract_facts
from ascend_perf.collectors.virtual_npu._contract_calls import (
    Complaint,
    against_operator,
    against_signature,
    arguments_of,
    shown,
)
from ascend_perf.collectors.virtual_npu._contract_env import Names, Use
from ascend_perf.collectors.virtual_npu._contract_names import Facts, Found, Removed
from ascend_perf.collectors.virtual_npu._contract_scopes import names_of
from ascend_perf.collectors.virtual_npu._contract_training import NO_MATTER, Reason, reason_of
from ascend_perf.collectors.virtual_npu._contract_values import without_annotations_of_choices, wrong_values
from ascend_perf.collectors.virtual_npu.environment import Prepared, prepare, variables
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from ascend_perf.errors import InputError, MachineError
from ascend_perf.model.finding import Words

Level = Literal["error", "warning", "note"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "note")
MAX_BYTES: Final = 4 << 20
"""Larger files are not source that somebody wrote. Status: assumed; the largest file of torch has 0.7 MB."""
CHILD_SECONDS: Final = 600
IGNORE: Final = re.compile(r"#.*?\blint-npu:\s*ignore(-file)?(?![\w-])(?:\[([\w, -]*)\])?")
"""A comment on the line of a problem that is meant, or (ignore-file) anywhere for the whole file; with names of rules
in brackets, those alone."""

RULES: Final = {
    "no-such-name": Words("a name that torch_npu does not have", "torch_npu 中不存在的名称"),
    "not-loaded": Words("a module that `import torch_npu` does not load", "`import torch_npu` 不会加载的模块"),
    "removed-name": Words("torch.npu_*, which only raises", "torch.npu_* 接口，调用即报错"),
    "unknown-argument": Words("an argument that does not exist", "不存在的参数"),
    "argument-count": Words("too many arguments, or one given twice", "参数过多或重复"),
    "missing-argument": Words("an argument that must be given is missing", "缺少必需参数"),
    "wrong-type": Words("a value of another type than the schema has", "取值类型与 schema 不符"),
    "wrong-value": Words("a value that torch_npu replaces without an error", "会被 torch_npu 静默替换的取值"),
    "no-gradient": Words("an operator without gradient", "没有梯度的算子"),
    "deprecated": Words("a deprecated name", "已弃用的名称"),
}
"""Rule -> what it finds."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing to see to in a file."""

    rule: str
    level: Level
    line: int
    column: int
    """From 1, as editors count."""
    said: Words
    cure: Words | None = None


def facts_of(
    settings: VirtualNpu | None = None, say: Callable[[str], None] = lambda line: None
) -> tuple[Facts, Prepared]:
    """What the wheel for the installed torch offers; from the cache where it has been asked before.

    Raises:
        MachineError: the virtual NPU cannot be set up here, or the wheel does not load on it.
    """
    settings = VirtualNpu() if settings is None else settings
    prepared = prepare(settings, say)
    # Beside the wheel, not the libraries: those are built again when our own code changes.
    target = prepared.site.parent / f"contract-{_contract_facts.VERSION}-{prepared.torch_version}.json"
    if (facts := _read(target)) is None:
        say(f"asking torch_npu {prepared.torch_npu_version} for its operators and functions")
        _ask(settings, prepared, target)
        facts = _read(target)
        if facts is None:
            raise MachineError(f"{target.name} was written and cannot be read", hint="is the disk full?")
    return facts, prepared


def _read(path: Path) -> Facts | None:
    import msgspec

    try:
        document: Any = msgspec.json.decode(path.read_bytes())
        return Facts(document) if document["version"] == _contract_facts.VERSION else None
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None


def _ask(settings: VirtualNpu, prepared: Prepared, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ascend-perf-") as name:
        # The wheel is imported by the script itself, not by torch, so that its errors are seen.
        given = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        environment = {**given, **variables(settings, prepared, Path(name), base=given)}
        # The libraries only answer here; nothing is recorded.
        command = [str(prepared.python), "-m", "ascend_perf.collectors.virtual_npu._contract_facts", str(target)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, errors="replace", check=False,
                stdin=subprocess.DEVNULL, timeout=CHILD_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"torch_npu could not be asked: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        told = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise MachineError(
            f"torch_npu {prepared.torch_npu_version} does not load on the virtual NPU: {told}",
            hint="try another torch (torch_npu of the same version is taken), or give a wheel with --wheel",
        )


def source_of(path: Path) -> str:
    """The text of a Python file, in the encoding that it declares.

    Raises:
        InputError: it is missing, no file, too large, binary, or not in its encoding.
    """
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory, expected a file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint="check the path") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB: no source that is checked")
    if path.suffix == ".ipynb":  # JSON is valid Python without a call
        hint = "jupyter nbconvert --to script"
        raise InputError(f"{path} is a notebook, expected Python source", hint=hint)
    if b"\0" in data:
        raise InputError(f"{path} is binary, expected Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        reason = f"byte {error.start} is not {error.encoding}" if isinstance(error, UnicodeDecodeError) else str(error)
        hint = "save it as UTF-8, or declare its coding"
        raise InputError(f"{path} cannot be decoded: {reason}", hint=hint) from None


def parsed(text: str, name: str) -> ast.Module:
    """The tree of a file.

    Raises:
        InputError: it is no Python of the version that runs here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful escapes in texts are not ours to tell
            return ast.parse(text)
    except SyntaxError as error:
        where = f"{name}:{error.lineno}" if error.lineno else name
        raise InputError(f"{where}: no valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{name}: cannot be parsed: {type(error).__name__}: {error}") from None


def check_file(path: Path, facts: Facts) -> list[Problem]:
    """Problems of one file, in the order of its lines.

    Raises:
        InputError: it cannot be read or is no Python.
    """
    return check_text(source_of(path), facts, str(path))


def check_text(text: str, facts: Facts, name: str = "text") -> list[Problem]:
    """Problems of one source text, in the order of its lines.

    Raises:
        InputError: it is no Python.
    """
    tree = parsed(text, name)
    if not _names_torch(tree):
        return []
    try:
        names = names_of(tree)
    except RecursionError:
        raise InputError(f"{name}: cannot be checked, its expressions are nested too deeply") from None
    found = _Check(facts, names, reason_of(tree, names.paths)).problems()
    return _without_ignored(found, text)


def _names_torch(tree: ast.Module) -> bool:
    """Whether a file imports torch or torch_npu, in any way that is followed."""
    for node in ast.walk(tree):
        names: Iterable[object] = ()
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        elif isinstance(node, ast.Constant):
            names = [node.value]
        if any(isinstance(one, str) and one.split(".")[0] in ("torch", "torch_npu") for one in names):
            return True
    return False


def _without_ignored(problems: Sequence[Problem], text: str) -> list[Problem]:
    """Those that no comment waves through."""
    lines: dict[int, set[str]] = {}
    whole: set[str] = set()
    for number, line in enumerate(io.StringIO(text), start=1):
        for match in IGNORE.finditer(line):
            rules = set(RULES) if match[2] is None else set(re.split(r"[\s,]+", match[2]))
            if match[1]:
                whole |= rules
            else:
                lines.setdefault(number, set()).update(rules)
    return [one for one in problems if one.rule not in whole | lines.get(one.line, set())]


class _Check:
    def __init__(self, facts: Facts, names: Names, training: Reason | None) -> None:
        self._facts, self._names, self._training = facts, names, training
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._imported: set[str] = set()

    def problems(self) -> list[Problem]:
        """All of them, each once."""
        for use in self._names.uses:
            if use.kind == "import":
                self._imports(use)
        for use in self._names.uses:
            if use.kind != "import":
                self._use(use)
        return sorted(self._problems.values(), key=lambda one: (one.line, one.column, LEVELS.index(one.level)))

    def _add(
        self, use: Use, rule: str, level: Level, said: Words, cure: Words | None = None, node: ast.expr | None = None
    ) -> None:
        at = use.node if node is None else node
        line, column = getattr(at, "lineno", 1), getattr(at, "col_offset", 0) + 1
        problem = Problem(rule=rule, level=level, line=line, column=column, said=said, cure=cure)
        self._problems.setdefault((line, rule, said.en), problem)

    # Names

    def _imports(self, use: Use) -> None:
        parts = use.path.split(".")
        self._imported |= {".".join(parts[: index + 1]) for index in range(len(parts))}
        self._exists(use)

    def _use(self, use: Use) -> None:
        found = self._exists(use)
        if found is None:
            return
        self._loaded(use, found)
        if found.kind == "open":
            return
        self._deprecated(use, found)
        if found.kind == "operator" and use.kind == "call" and not use.is_partial:
            self._gradient(use, found)
        if use.kind == "call" and use.call is not None:
            self._called(use, found, use.call)

    def _exists(self, use: Use) -> Found | None:
        found = self._facts.resolve(use.path)
        version = f"torch_npu {self._facts.torch_npu}"
        if isinstance(found, Removed):
            name = found.operator
            self._add(
                use, "removed-name", "error",
                Words(f"torch.{name} only raises an error in {version}", f"{version} 中 torch.{name} 调用即报错"),
                Words(f"write torch_npu.{name}", f"请改为 torch_npu.{name}"),
            )  # fmt: skip
            return None
        if isinstance(found, Found):
            return found
        is_asked = found.name in self._names.asked or use.is_forgiven
        parent, name = found.parent, found.name
        said = {
            "module": Words(f"{parent} has no {name} in {version}", f"{version} 的 {parent} 中没有 {name}"),
            "class": Words(f"{parent} has no member {name} in {version}", f"{version} 的 {parent} 没有成员 {name}"),
            "instance": Words(
                f"an object of {parent} has no {name} in {version}", f"{version} 中 {parent} 的对象没有 {name}"
            ),
            "namespace": Words(f"{version} has no operator {name}", f"{version} 没有算子 {name}"),
            "operator": Words(
                f"{parent} has no overload {name} in {version}", f"{version} 的 {parent} 没有重载 {name}"
            ),
        }[found.kind]
        cure = None
        if found.close:
            cure = Words(f"did you mean {' or '.join(found.close)}?", f"是否应为 {' 或 '.join(found.close)}？")
            if found.kind in ("class", "operator") and len(found.close) > 3:
                cure = Words(f"there are {', '.join(found.close)}", f"可选：{'、'.join(found.close)}")
        if is_asked:
            cure = Words(
                "the file asks whether it is there, so it may be meant for another version",
                "文件中已判断其是否存在，可能用于其他版本",
            )
        # What lies in the C part can come with the device.
        level: Level = "note" if is_asked else "warning" if parent.startswith("torch_npu._C") else "error"
        self._add(use, "no-such-name", level, said, cure)
        return None

    def _loaded(self, use: Use, found: Found) -> None:
        """A module that has to be imported by itself, and what lies in it."""
        module = found.path
        while module and not self._facts.is_module(module):
            module = module.rpartition(".")[0]
        if not module or self._facts.is_loaded(module) or module in self._imported or use.is_forgiven:
            return
        self._add(
            use, "not-loaded", "warning",
            Words(f"`import torch_npu` does not load {module}", f"`import torch_npu` 不会加载 {module}"),
            Words(f"write `import {module}` as well", f"请另写 `import {module}`"),
        )  # fmt: skip

    def _deprecated(self, use: Use, found: Found) -> None:
        text = found.body.get("deprecated")
        if found.kind == "operator":
            overloads = self._facts.operators[found.operator].values()
            text = next((one["deprecated"] for one in overloads if "deprecated" in one), None)
        if text:
            self._add(
                use, "deprecated", "warning",
                Words(f"{found.path} is deprecated", f"{found.path} 已弃用"),
                Words(f"torch_npu says: {text}", f"torch_npu 的说明：{text}"),
            )  # fmt: skip

    # Calls

    def _called(self, use: Use, found: Found, call: ast.Call) -> None:
        if found.kind == "operator":
            overloads = self._facts.operators[found.operator]
            chosen = list(overloads.values()) if found.overload is None else [overloads[found.overload]]
            complaints = against_operator(call, chosen, use.first_argument, use.is_partial)
            parameters = [
                {**one, "kind": "KEYWORD_ONLY" if one.get("keyword_only") else "POSITIONAL_OR_KEYWORD"}
                for one in chosen[0]["arguments"]
            ]  # fmt: skip
        elif found.kind in ("function", "class", "method"):
            signature = found.body.get("signature")
            if signature is None:
                return
            parameters = list(signature)
            complaints = against_signature(call, parameters, use.first_argument, use.is_partial)
            if found.kind == "class":
                given = arguments_of(call, parameters, use.first_argument)
                complaints = without_annotations_of_choices(found, given, complaints)
                complaints += wrong_values(self._facts, found, given, self._names.paths)
        else:
            return
        for one in complaints:
            self._complain(use, found, one, parameters)

    def _complain(self, use: Use, found: Found, one: Complaint, parameters: Sequence[Any]) -> None:
        cure = None
        if one.rule in ("unknown-argument", "argument-count", "missing-argument"):
            text = f"{found.path.rpartition('.')[2]}({shown(parameters)})"
            cure = Words(f"it is {text}", f"正确形式为 {text}")
        said = Words(f"{found.path}: {one.said.en}", f"{found.path}：{one.said.zh}")
        self._add(use, one.rule, "error" if one.is_certain else "warning", said, cure, one.node)

    def _gradient(self, use: Use, found: Found) -> None:
        kind = self._facts.gradient(found.operator)
        name = found.operator
        if kind in ("own", "composite") or use.without_gradient or NO_MATTER.fullmatch(name):
            return
        if use.function and use.function in self._names.called_only_in_functions_with_gradient:
            return
        if not any("Tensor" in text for one in self._facts.operators[name].values() for text in one["returns"]):
            return
        what = {
            "refuses": Words(f"{found.path} has no gradient: backward() through it raises an error",
                             f"{found.path} 没有梯度：反向传播经过它时会报错"),
            "none": Words(
                f"{found.path} has no gradient: backward() through it warns, and what lies before it is not trained",
                f"{found.path} 没有梯度：反向传播经过它时仅告警，其之前的参数得不到训练",
            ),
        }[kind]  # fmt: skip
        if self._training is None:
            cure = Words("nothing in this file trains; fine for inference", "本文件中没有训练代码；用于推理则没有问题")
            self._add(use, "no-gradient", "note", what, cure)
            return
        sign = self._training
        cure = Words(
            f"this file trains ({sign.text}, line {sign.line}); call it under torch.no_grad(), wrap it in a "
            "torch.autograd.Function with a derivative, or use an operator that has one",
            f"本文件包含训练代码（第 {sign.line} 行 {sign.text}）；请在 torch.no_grad() 下调用、"
            "用带导数的 torch.autograd.Function 包装，或改用有梯度的算子",
        )
        self._add(use, "no-gradient", "warning", what, cure)


def python_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and the *.py of folders below each folder; hidden folders and environments are left out.

    Raises:
        InputError: a path is not there, or a folder has no Python file.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist", hint="check the path")
        if not path.is_dir():
            found[path] = None
            continue
        inside = sorted(
            one for one in path.rglob("*.py") if one.is_file() and not _is_left_out(one.relative_to(path))
        )
        if not inside:
            raise InputError(f"{path} holds no *.py file")
        found |= dict.fromkeys(inside)
    return list(found)


def _is_left_out(path: Path) -> bool:
    return any(part.startswith(".") or part in ("__pycache__", "site-packages", "node_modules") for part in path.parts)
