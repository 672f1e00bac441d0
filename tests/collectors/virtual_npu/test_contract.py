"""The contract check on a small torch_npu that the test wrote: names, arguments, values, gradients, files."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_perf.collectors.virtual_npu import contract
from ascend_perf.collectors.virtual_npu._contract_calls import against_signature
from ascend_perf.collectors.virtual_npu._contract_scopes import names_of
from ascend_perf.errors import InputError
from tests.collectors.virtual_npu._contract_world import small_facts

FACTS = small_facts()


def found(text: str) -> list[tuple[int, str, str]]:
    """(line, level, rule) of each problem."""
    return [(one.line, one.level, one.rule) for one in contract.check_text(text, FACTS)]


def only(text: str) -> contract.Problem:
    """The one error or warning of a text."""
    (problem,) = (one for one in contract.check_text(text, FACTS) if one.level != "note")
    return problem


CORRECT = [
    "import torch_npu\ny = torch_npu.npu_rms_norm(x, w, epsilon=1e-6)[0]",
    "import torch_npu as tn\ny = tn.npu_rms_norm(x, w, 1)",
    "from torch_npu import npu_rms_norm as norm\nnorm(x, w)",
    "import torch\ntorch.npu.synchronize()\ntorch.npu.Stream().wait()",
    "import torch\ntorch.ops.npu.npu_rms_norm(x, w)\ntorch.ops.npu.npu_rms_norm.default(x, w)",
    "import torch\ntorch.ops.npu.npu_format_cast.Tensor(x, y)",
    "import torch_npu\ntorch_npu.npu_rms_norm(*arguments)\ntorch_npu.npu_rms_norm(x, **rest)",
    "import torch_npu\ntorch_npu.npu_format_cast(x, 29)\ntorch_npu.npu_format_cast(x, y)",
    "from torch_npu import profiler as p\nwith p.profile(activities=[p.ProfilerActivity.CPU]) as prof:\n"
    "    prof.step()\n    prof.metadata",
    "import torch_npu.profiler as p\np._ExperimentalConfig(profiler_level=p.ProfilerLevel.Level1, aic_metrics=0)",
    "import torch_npu\nimport torch_npu.contrib.transfer_to_npu\ntorch_npu.contrib.transfer_to_npu.amp",
    "from torch_npu.contrib import transfer_to_npu",
    "import torch_npu\ntorch_npu.torch.anything(1)\ntorch_npu.__version__",
    "import torch\ntorch.npu.own = 1\ntorch.npu.own",
    "torch_npu = object()\ntorch_npu.nothing_of_the_kind()",  # not the package
    "def f(torch_npu):\n    return torch_npu.nothing()",
    "import torch_npu\napi = torch_npu if x else other\napi.nothing()",  # can be two things
    "import torch\nx.to('npu:0')\ntorch.device('npu')",
]


@pytest.mark.parametrize("text", CORRECT)
def test_correct_code_is_accepted(text: str) -> None:
    assert found(text) == []


WRONG = [
    # names
    ("import torch_npu\ntorch_npu.npu_rmsnorm(x, w)", (2, "no-such-name"), "did you mean npu_rms_norm"),
    ("import torch\ntorch.npu.synchronise()", (2, "no-such-name"), "did you mean synchronize?"),
    ("from torch_npu import npu_rms_nrom", (1, "no-such-name"), "npu_rms_norm"),
    ("import torch_npu.profilers", (1, "no-such-name"), "did you mean profiler?"),
    ("import torch\ntorch.ops.npu.rms_norm(x)", (2, "no-such-name"), "npu_rms_norm"),
    ("import torch\ntorch.ops.npu.npu_format_cast.tensor(x, y)", (2, "no-such-name"), "Tensor"),
    ("import torch_npu\ntorch_npu.profiler.ProfilerLevel.Level3", (2, "no-such-name"), "Level1"),
    ("import torch_npu\ntorch_npu.profiler.ProfilerActivity.GPU", (2, "no-such-name"), "NPU"),
    ("import torch_npu\np = torch_npu.profiler.profile()\np.stepp()", (3, "no-such-name"), "did you mean step?"),
    ("import torch\ntorch.npu_rms_norm(x, w)", (2, "removed-name"), "write torch_npu.npu_rms_norm"),
    ("import torch_npu\ntorch_npu.contrib.transfer_to_npu.amp", (2, "not-loaded"), "import torch_npu.contrib"),
    ("import torch_npu\ngetattr(torch_npu, 'npu_rmsnorm')", (2, "no-such-name"), "npu_rms_norm"),
    # aliases
    ("import torch_npu\nP = torch_npu.profiler\nP.profil()", (3, "no-such-name"), "did you mean profile"),
    ("import importlib\napi = importlib.import_module('torch_npu')\napi.nope()", (3, "no-such-name"), ""),
    ("def f():\n    import torch_npu as t\n    return t\nf().nope", (4, "no-such-name"), ""),
    ("class A:\n    def __init__(self):\n        import torch_npu\n        self.m = torch_npu\n"
     "    def g(self):\n        self.m.nope()", (6, "no-such-name"), ""),
    ("class B:\n    def m(self):\n        import torch_npu\n        return torch_npu\n"
     "class A(B):\n    def __init__(self):\n        self.n = self.m()\n"
     "    def g(self):\n        return lambda: self.n.nope", (9, "no-such-name"), ""),
    ("try:\n    import torch_npu\nexcept ImportError:\n    torch_npu = None\ntorch_npu.nope", (5, "no-such-name"), ""),
    ("torch_npu = None\ndef load():\n    global torch_npu\n    import torch_npu\ndef f():\n    torch_npu.nope",
     (6, "no-such-name"), ""),
    ("import torch_npu\na, (b, c) = torch_npu, (1, torch_npu.npu)\nc.nope", (3, "no-such-name"), ""),
    ("import torch_npu\nif (m := torch_npu.npu).nope:\n    pass", (2, "no-such-name"), ""),
    ("import torch_npu\n[torch_npu.nope for x in y]", (2, "no-such-name"), ""),
    ("import functools, torch_npu\nfunctools.partial(torch_npu.npu_rms_norm, eps=1)", (2, "unknown-argument"), "eps"),
    # arguments
    ("import torch_npu\ntorch_npu.npu_rms_norm(x, w, eps=1e-6)", (2, "unknown-argument"), "input, gamma, epsilon="),
    ("import torch_npu\ntorch_npu.npu_rms_norm(x)", (2, "missing-argument"), "gamma"),
    ("import torch_npu\ntorch_npu.npu_rms_norm(x, w, 1, 2)", (2, "argument-count"), ""),
    ("import torch_npu\ntorch_npu.npu_rms_norm(x, w, gamma=w)", (2, "argument-count"), ""),
    ("import torch_npu\ntorch_npu.npu_rms_norm(x, w, '1e-6')", (2, "wrong-type"), ""),
    ("import torch_npu\ntorch_npu.npu_rms_norm(1.5, w)", (2, "wrong-type"), ""),
    ("import torch_npu\ntorch_npu.npu_ffn(x, w, v, 'relu', 1)", (2, "argument-count"), "*, inner_precise=..."),
    ("import torch_npu\ntorch_npu.npu_ffn(x, w, v, 'relu', inner_precise=1.0)", (2, "wrong-type"), ""),
    ("import torch_npu\ntorch_npu.npu_format_cast(x, 'NZ')", (2, "wrong-type"), ""),
    ("import torch_npu\ntorch_npu.optim.NpuFusedAdamW(p, momentum=0.9)", (2, "unknown-argument"), "params, lr=..."),
    ("from torch_npu.profiler import profile\nprofile([])", (2, "argument-count"), ""),
    # values
    ("from torch_npu import profiler as p\np._ExperimentalConfig(profiler_level=7)", (2, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np._ExperimentalConfig(profiler_level='Level1')", (2, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np._ExperimentalConfig(profiler_level=p.AiCMetrics.AiCoreNone)",
     (2, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np._ExperimentalConfig(export_type=['db', 'xls'])", (2, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np._ExperimentalConfig(l2_cache=1)", (2, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np.schedule(wait=-1, active=1)", (2, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np.schedule(0, 0)", (2, "wrong-value"), ""),
    ("import torch\nfrom torch_npu import profiler as p\np.profile(activities=[torch.profiler.ProfilerActivity.CUDA])",
     (3, "wrong-value"), ""),
    ("from torch_npu import profiler as p\np._ExperimentalConfig(aic_metrics=p.AiCMetrics.PipeUtilization)",
     (2, "wrong-value"), ""),  # at the default level, where counters are dropped
    # deprecated
    ("import torch_npu\ntorch_npu.npu.memory_cached()", (2, "deprecated"), "memory_reserved"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "where", "cure"), WRONG)
def test_each_planted_error_is_found(text: str, where: tuple[int, str], cure: str) -> None:
    problem = only(text)
    told = problem.said.en + (problem.cure.en if problem.cure else "")

    assert (problem.line, problem.rule) == where
    is_warning = problem.rule in ("not-loaded", "deprecated") or "dropped" in told
    assert problem.level == ("warning" if is_warning else "error")
    assert cure in told
    assert problem.said.zh and problem.said.zh != problem.said.en


@pytest.mark.parametrize("text", [
    "import torch\nif hasattr(torch.npu, 'NPUGraph'):\n    torch.npu.NPUGraph()",
    "import torch\ng = getattr(torch.npu, 'NPUGraph', None)\ntorch.npu.NPUGraph",
    "import torch\ntry:\n    torch.npu.NPUGraph\nexcept AttributeError:\n    pass",
])  # fmt: skip
def test_a_name_that_the_file_asks_for_is_a_note(text: str) -> None:
    assert {level for _, level, _ in found(text)} == {"note"}


TRAINS = "\nloss.backward()\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("torch_npu.npu_add_rms_norm(x, y, w)", [(2, "note", "no-gradient")]),
    ("torch_npu.npu_add_rms_norm(x, y, w)" + TRAINS, [(2, "warning", "no-gradient")]),
    ("torch_npu.npu_add_rms_norm(x, y, w)\noptimizer.step()", [(2, "warning", "no-gradient")]),
    ("torch_npu.npu_add_rms_norm(x, y, w)\nmodel.train()", [(2, "warning", "no-gradient")]),
    ("torch_npu.npu_add_rms_norm(x, y, w)\nmodel.train(False)", [(2, "note", "no-gradient")]),
    ("torch_npu.npu_add_rms_norm(x, y, w)\nx = f(requires_grad=True)", [(2, "warning", "no-gradient")]),
    ("torch_npu.npu_rms_norm(x, w)" + TRAINS, []),
    ("torch_npu.npu_format_cast(x, 29)" + TRAINS, []),  # its inner operator has one
    ("torch_npu.npu_rms_norm_backward(x)" + TRAINS, []),  # a gradient itself
    ("torch_npu.get_npu_format(x)" + TRAINS, []),  # gives no tensor
    ("import torch\nwith torch.no_grad():\n    torch_npu.npu_add_rms_norm(x, y, w)" + TRAINS, []),
    ("import torch\n@torch.inference_mode()\ndef f():\n    torch_npu.npu_add_rms_norm(x, y, w)" + TRAINS, []),
    ("import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
     "        return torch_npu.npu_ffn(x, x, x, 'relu')" + TRAINS, []),
    ("import torch\ndef g(x):\n    return torch_npu.npu_ffn(x, x, x, 'relu')\n"
     "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        g(x)" + TRAINS, []),
    ("def g(x):\n    return torch_npu.npu_ffn(x, x, x, 'relu')\ng(1)" + TRAINS, [(3, "warning", "no-gradient")]),
    ("torch_npu.npu_transpose(x, (1, 0))", [(2, "warning", "deprecated"), (2, "note", "no-gradient")]),
])  # fmt: skip
def test_operators_without_gradient(text: str, expected: list[tuple[int, str, str]]) -> None:
    assert found(f"import torch_npu\n{text}") == expected


def test_the_sign_of_training_is_named_with_its_line() -> None:
    problem = only("import torch_npu\ntorch_npu.npu_add_rms_norm(x, y, w)\nmodel.train()\nloss.sum().backward()")

    assert "raises an error" in problem.said.en
    assert problem.cure is not None and "(loss.sum().backward(), line 4)" in problem.cure.en


def test_comments_wave_problems_through() -> None:
    line = "torch_npu.npu_rms_norm(x, eps=1)"  # two problems: eps, and gamma is missing

    assert len(found(f"import torch_npu\n{line}")) == 2
    assert found(f"import torch_npu\n{line}  # lint-npu: ignore") == []
    left = found(f"import torch_npu\n{line}  # lint-npu: ignore[unknown-argument]")
    assert left == [(2, "error", "missing-argument")]
    assert found(f"import torch_npu\n{line}\n# why. lint-npu: ignore-file[missing-argument, unknown-argument]") == []


# Names: against what Python itself makes of the same lines


class _Path:
    """Stands for a module: knows by which path it was reached."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> _Path:
        return _Path(f"{self._path}.{name}")


_NAMES = st.sampled_from(["a", "b", "c", "torch_npu"])
_ATTRIBUTES = st.sampled_from(["npu", "profiler", "x"])


@st.composite
def _programs(draw: st.DrawFn) -> str:
    lines = ["import torch_npu", "a = b = c = torch_npu"]
    for _ in range(draw(st.integers(0, 8))):
        target, source = draw(_NAMES), draw(_NAMES)
        kind = draw(st.sampled_from(["copy", "attribute", "swap", "walrus", "function", "lambda"]))
        attribute = draw(_ATTRIBUTES)
        lines.append({
            "copy": f"{target} = {source}",
            "attribute": f"{target} = {source}.{attribute}",
            "swap": f"{target}, {draw(_NAMES)} = {source}, {draw(_NAMES)}.{attribute}",
            "walrus": f"({target} := {source}.{attribute})",
            "function": f"def f(a, c=None):\n    b = {attribute!r}",
            "lambda": f"(lambda {target}: {target})",
        }[kind])  # fmt: skip
    lines.append(f"{draw(_NAMES)}.last")
    return "\n".join(lines)


@settings(max_examples=200, deadline=None)
@given(_programs())
def test_names_stand_for_what_python_makes_of_them(program: str) -> None:
    *body, last = program.split("\n")
    scope: dict[str, Any] = {"torch_npu": _Path("torch_npu")}
    exec("\n".join(line for line in body if line != "import torch_npu"), scope)
    expected = eval(last, scope)._path

    uses = [use for use in names_of(contract.parsed(program, "t")).uses if use.path.endswith(".last")]

    assert [use.path for use in uses] == [expected]


# Arguments: against calls of such functions


_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL,
          inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)  # fmt: skip


@st.composite
def _signatures(draw: st.DrawFn) -> inspect.Signature:
    names = iter("pqrstuvw")
    chosen: list[inspect.Parameter] = []
    has_default = False
    for kind in _KINDS:
        is_variable = kind.name.startswith("VAR")
        for _ in range(draw(st.integers(0, 1 if is_variable else 2))):
            wants = draw(st.booleans())
            has_default = has_default or wants
            gives = not is_variable and (wants if kind is inspect.Parameter.KEYWORD_ONLY else has_default)
            default = 0 if gives else inspect.Parameter.empty
            chosen.append(inspect.Parameter(next(names), kind, default=default))
    return inspect.Signature(chosen)


@settings(max_examples=300, deadline=None)
@given(_signatures(), st.integers(0, 5), st.lists(st.sampled_from("pqrstuvwxyz"), unique=True, max_size=4))
def test_calls_bind_as_python_binds_them(signature: inspect.Signature, positional: int, keywords: list[str]) -> None:
    from ascend_perf.collectors.virtual_npu._contract_facts import _signature

    scope: dict[str, Any] = {}
    exec(f"def function{signature}: pass", scope)
    try:
        scope["function"](*[None] * positional, **dict.fromkeys(keywords))
        fits = True
    except TypeError:
        fits = False
    text = f"f({', '.join(['x'] * positional + [f'{name}=x' for name in keywords])})"
    call: Any = contract.parsed(text, "t").body[0]

    parameters = _signature(scope["function"])

    assert parameters is not None
    assert (against_signature(call.value, parameters) == []) is fits


# Files


@pytest.mark.parametrize(("content", "said"), [
    (b"def f(:\n", r"t\.py:1: no valid Python"),
    (b"x = 1\0", "is binary"),
    ("x = 'ä'".encode("latin-1"), "cannot be decoded: invalid or missing encoding"),
    ("#\n#\nx = 'ä'".encode("latin-1"), "cannot be decoded: byte 9 is not utf-8"),
    (b"# coding: no-such-thing\n", "cannot be decoded: unknown encoding"),
    (b"(" * 3000 + b")" * 3000, r"t\.py"),
    (b"x = 1\n" * (contract.MAX_BYTES // 6 + 1), "larger than 4 MiB"),
])  # fmt: skip
def test_files_that_cannot_be_checked_say_why(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "t.py"
    path.write_bytes(content)

    with pytest.raises(InputError, match=said):
        contract.check_file(path, FACTS)


def test_a_file_in_another_encoding_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_bytes("# -*- coding: gbk -*-\nimport torch_npu\ntorch_npu.nope('中文')".encode("gbk"))

    assert [one.line for one in contract.check_file(path, FACTS)] == [3]


def test_folders_give_their_python_files_once(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "sub/c.py", ".venv/d.py", "x/site-packages/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    files = contract.python_files([tmp_path, tmp_path / "a.py", tmp_path / "b.txt"])

    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["a.py", "sub/c.py", "b.txt"]
    with pytest.raises(InputError, match="does not exist"):
        contract.python_files([tmp_path / "none"])
