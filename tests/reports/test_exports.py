"""Exporters: exact files of a small trace, and what every exporter owes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ascend_perf import pipeline
from ascend_perf.analyzers.flame import VIEWS, views
from ascend_perf.errors import InputError
from ascend_perf.model.run import Run
from ascend_perf.model.trace import Meta, Trace
from ascend_perf.reports.exports._exporter import Request, exporters
from ascend_perf.reports.exports._flames import frame_name
from tests._support import Said
from tests.conftest import build_table

ROOT = Path(__file__).parent.parent.parent
EXPORTERS = exporters()
FLAMES = [name for name, part in EXPORTERS.parts.items() if part.views]
"""Formats that show flame graphs."""
Command = Callable[..., Said]


def small() -> Trace:
    """70 us of a kernel below two modules, 0.4 us of another; 100 us of host time."""
    def call(name: str, start: int, end: int) -> dict[str, object]:
        return {"name": name, "start_ns": start, "dur_ns": end - start, "thread": 7}

    tables: dict[str, list[dict[str, object]]] = {
        "steps": [{"step_id": 1, "start_ns": 0, "dur_ns": 1_000_000}],
        "python_calls": [call("nn.Module: Net_0", 0, 100_000), call("nn.Module: Linear_0", 20_000, 60_000)],
        "host_ops": [call("aten::a;b\n c", 30_000, 50_500), call("tiny", 70_000, 70_400)],
        "kernels": [
            {"name": "gemm", "start_ns": 0, "dur_ns": 70_500, "host_op": 0},
            {"name": "small", "start_ns": 0, "dur_ns": 400, "host_op": 1},
        ],
    }
    return Trace({name: build_table(name, rows) for name, rows in tables.items()}, Meta(label="small", rank=0))


def written(name: str, trace: Trace, view: str | None) -> tuple[bytes, tuple[str, ...]]:
    target = io.BytesIO()
    said = EXPORTERS.parts[name].write(Request(run=Run(traces=(trace,)), view=view), target)
    return target.getvalue(), said


def test_folded_stacks_of_the_device_in_whole_microseconds() -> None:
    text, said = written("folded", small(), "device-module")

    # 70.5 us are 71 (half up); 0.4 us are none.
    assert text == b"Net_0;Linear_0;aten::a:b c;gemm 71\n"
    assert said == ("stacks under 0.5 us are left out: 400 ns together",)


def test_flames_of_a_simulated_profile_say_so() -> None:
    trace = small()
    trace.meta = replace(trace.meta, data_origin="simulated")

    assert written("folded", trace, "device-module")[0] == b"SIMULATED;Net_0;Linear_0;aten::a:b c;gemm 71\n"
    assert json.loads(written("speedscope", trace, None)[0])["name"] == "small (SIMULATED)"


def test_folded_stacks_of_the_host() -> None:
    text, said = written("folded", small(), "host")

    assert text.decode().splitlines() == [
        "thread 7;Net_0 60",  # 100 - 40 - 0.4, rounded
        "thread 7;Net_0;Linear_0 20",  # 40 - 20.5, half up
        "thread 7;Net_0;Linear_0;aten::a:b c 21",  # 20.5, half up
    ]
    assert said == ("stacks under 0.5 us are left out: 400 ns together",)


def test_speedscope_holds_all_views_with_exact_nanoseconds() -> None:
    text, said = written("speedscope", small(), None)

    document = json.loads(text)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert [profile["name"] for profile in document["profiles"]] == list(VIEWS)
    assert said == ()
    for profile in document["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "nanoseconds", 0)
        assert profile["endValue"] == sum(profile["weights"])
        assert len(profile["samples"]) == len(profile["weights"])
    by_module = document["profiles"][1]
    stacks = {tuple(names[i] for i in s): w for s, w in zip(by_module["samples"], by_module["weights"], strict=True)}
    assert stacks == {
        ("Net_0", "Linear_0", "aten::a;b\n c", "gemm"): 70_500, ("Net_0", "tiny", "small"): 400,
    }  # fmt: skip


def test_speedscope_of_one_view() -> None:
    document = json.loads(written("speedscope", small(), "device-op")[0])

    assert [profile["name"] for profile in document["profiles"]] == ["device-op"]


@pytest.mark.parametrize("name", FLAMES)
def test_a_profile_without_what_the_format_shows_is_said(name: str) -> None:
    bare = Trace({"steps": build_table("steps", [{"step_id": 1, "start_ns": 0, "dur_ns": 9}])}, Meta(label="bare"))
    exporter = EXPORTERS.parts[name]

    with pytest.raises(InputError, match="bare: no data for the flame graph"):
        written(name, bare, exporter.views[0] if exporter.views else None)


@pytest.mark.parametrize("name", list(EXPORTERS.parts))
def test_an_exporter_has_its_file_its_test_and_its_line_in_the_docs(name: str) -> None:
    exporter = EXPORTERS.parts[name]
    assert (ROOT / "reports" / "exports" / f"{name.replace('-', '_')}.py").is_file()
    assert f"| `{name}` |" in (ROOT / "docs" / "report.md").read_text("utf-8")
    assert exporter.summary
    assert exporter.suffix
    assert not EXPORTERS.broken


def test_the_list_names_every_format_with_its_views(command: Command) -> None:
    said = command("export", "--list")

    assert said.code == 0
    assert said.out.splitlines() == [
        f"{name}: {part.summary}" + (f" (--view {', '.join(part.views)})" if part.views else "")
        for name, part in sorted(EXPORTERS.parts.items())
    ]
    assert "folded: " in said.out


@settings(max_examples=200, deadline=None)
@given(name=st.text())
def test_a_frame_has_neither_a_separator_nor_a_blank_at_its_ends(name: str) -> None:
    said = frame_name(name)

    assert said
    assert ";" not in said
    assert "\n" not in said
    assert said == said.strip()


def test_folded_stacks_of_a_real_profile_add_up(traces: Path) -> None:
    trace = pipeline.load(traces / "ascend-pytorch/text/level1/rank0_ascend_pt").traces[0]

    for view in views(trace):
        lines = written("folded", trace, view.name)[0].decode().splitlines()
        total_us = sum(int(line.rpartition(" ")[2]) for line in lines)
        stacks = sum(int(ns) > 0 for ns in view.tree.self_ns)
        # Each stack is rounded by half a microsecond at most.
        assert abs(total_us - view.tree.whole_ns / 1000) <= stacks / 2
        assert lines == sorted(lines, key=lambda line: line.rpartition(" ")[0])


# ---- the command ----


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A Kineto file with one operator of 40 us that launched one kernel of 30 us."""
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 7, "ts": 0, "dur": 40,
          "args": {"External id": 3}}  # fmt: skip
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 1, "ts": 5, "dur": 30,
              "args": {"device": 0, "stream": 1, "correlation": 9, "External id": 3}}  # fmt: skip
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [op, kernel]}))
    return path


def test_the_command_writes_a_file_and_says_its_name(command: Command, profile: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "a.folded"

    said = command("export", profile, "--format", "folded", "--view", "device-op", "-o", target)

    assert (said.code, said.out.strip()) == (0, str(target))
    assert target.read_text() == "aten::mm;gemm 30\n"
    assert [p.name for p in target.parent.iterdir()] == ["a.folded"]


def test_the_file_is_named_after_the_input_and_the_view(
    command: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    folded = command("export", profile, "--format", "folded")
    scope = command("export", profile, "--format", "speedscope")

    assert folded.out.strip() == "a.host.folded"
    assert scope.out.strip() == "a.speedscope.json"


def test_a_file_that_is_there_stays_unless_forced(command: Command, profile: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.folded"
    target.write_text("mine")

    refused = command("export", profile, "--format", "folded", "-o", target)
    kept = target.read_text()
    forced = command("export", profile, "--format", "folded", "-o", target, "--force")

    assert (refused.code, kept) == (2, "mine")
    assert "--force" in refused.err
    assert forced.code == 0
    assert target.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--format", "nope"], 2, "there are csv, folded, parquet, perfetto, speedscope, xlsx"),
        (["--format", "folded", "--view", "nope"], 2, "there are host, device-module"),
        (["--format", "folded", "--rank", "5"], 2, "rank 5 is not in the data"),
        (["--format", "folded", "--view", "device-module"], 3, "there is host, device-op"),
    ],
)
def test_what_cannot_be_exported_ends_with_a_hint(
    command: Command, profile: Path, tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    target = tmp_path / "a.out"

    said = command("export", profile, *arguments, "-o", target)

    assert said.code == code
    assert says in said.err
    assert "Traceback" not in said.err
    assert not target.exists()
    assert list(tmp_path.glob(".a.out*")) == []


def test_a_folder_is_no_file_to_write(command: Command, profile: Path, tmp_path: Path) -> None:
    said = command("export", profile, "--format", "folded", "-o", tmp_path)

    assert said.code == 2
    assert "is a folder" in said.err


def test_several_ranks_ask_for_one(command: Command, traces: Path, tmp_path: Path) -> None:
    folder = traces / "ascend-pytorch/text/level1"
    target = tmp_path / "a.folded"

    asked = command("export", folder, "--format", "folded", "-o", target)
    chosen = command("export", folder, "--format", "folded", "-o", target, "--rank", "1")

    assert asked.code == 2
    assert "--rank 0" in asked.err
    assert chosen.code == 0
    assert target.read_text().startswith("thread ")
