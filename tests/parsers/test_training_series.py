"""Figures that training runs logged: Megatron's lines, Trainer's state, JSON lines and CSV, written here."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascend_perf import pipeline
from ascend_perf.bench.series import write_series
from ascend_perf.errors import InputError
from ascend_perf.model import tables as t
from ascend_perf.model.table import NULL, Table
from ascend_perf.model.trace import Meta, Source, Trace
from ascend_perf.parsers import mindformers_log, trainer_state, training_log, training_metrics
from ascend_perf.parsers._source import FileEntry, Folder
from ascend_perf.parsers._training_series import ALIASES, Rows, figure_of, number, rank_of_path
from ascend_perf.parsers._with_series import joined
from ascend_perf.parsers.discover import find_units, parsers
from tests.conftest import build_table

LINE = (
    " [2026-04-07 10:15:32] iteration       20/    2000 | consumed samples:          320 | elapsed time per iteration "
    "(ms): 1842.7 | throughput per GPU (TFLOP/s/GPU): 158.3 | learning rate: 1.250000E-06 | global batch size:    16 | "
    "lm loss: 9.871204E+00 | loss scale: 65536.0 | grad norm: 3.214 | number of skipped iterations:   1 | "
    "number of nan iterations:   0 |"
)
OURS = (training_log, mindformers_log, trainer_state, training_metrics)


def read(path: Path) -> Trace:
    units, _ = find_units(path)
    (unit,) = units
    (trace,) = parsers()[unit.parser].parse(unit)
    return trace


def series(path: Path, text: str) -> Table:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return read(path)[t.TRAINING_SERIES]


# ---- Megatron --------------------------------------------------------------------------------------------------------


def test_a_line_of_megatron_gives_its_figures(tmp_path: Path) -> None:
    table = series(tmp_path / "train.log", f"starting\n{LINE}\n")

    assert table.ints("step").tolist() == [20]
    assert table.ints("time_ns").tolist() == [1_775_556_932_000_000_000]  # 2026-04-07 10:15:32 as if UTC
    assert table.ints("iteration_ns").tolist() == [1_842_700_000]
    assert table.floats("flops_per_s").tolist() == [158.3e12]
    assert table.floats("learning_rate").tolist() == [1.25e-6]
    assert table.floats("loss").tolist() == [9.871204]
    assert table.floats("loss_scale").tolist() == [65536.0]
    assert table.floats("grad_norm").tolist() == [3.214]
    assert (table.ints("skipped").tolist(), table.ints("nan_iterations").tolist()) == ([1], [0])
    assert table.ints("rank").tolist() == [NULL]


def test_other_writings_of_the_line(tmp_path: Path) -> None:
    lines = [
        "[default7]:[2025-10-21T16:18:53.123456+08:00] iteration 51/ 20000 | elapsed time per iteration (s): 6.5 | "
        "lm loss: 1.9E+00 | grad norm: nan | number of nan iterations: 1 |",
        "\x1b[32m[rank3]: iteration 52/20000 | tokens/s: 5321.8 | lm loss: inf | TFLOPs: 2.5 |\x1b[0m",
        " iteration 53/ 20000 | elapsed time per iteration (ms): 13372.8/13364.7 | lm loss: 1.5E+00 | loss sc",
        "validation loss at iteration 53 on validation set | lm loss value: 2.100000E+00 | lm loss PPL: 8.1E+00 |",
        "extra validation loss at iteration 53 set b | lm loss value: 9.9E+00 |",
    ]
    table = series(tmp_path / "train.log", "\r\n".join(lines))

    assert table.ints("step").tolist() == [51, 52, 53]  # the validation of a step is part of its row
    assert table.ints("iteration_ns").tolist() == [6_500_000_000, NULL, 13_372_800_000]
    assert table.bools("grad_norm_nonfinite").tolist() == [True, False, False]
    assert table.bools("loss_nonfinite").tolist() == [False, True, False]
    assert np.isnan(table.floats("loss")[1]) and table.floats("loss")[2] == 1.5
    assert table.ints("rank").tolist() == [NULL, 3, NULL]
    assert table.floats("items_per_s")[1] == 5321.8 and table.floats("flops_per_s")[1] == 2.5e12
    assert table.floats("eval_loss").tolist()[2] == 2.1
    assert (table.ints("time_ns") != NULL).tolist() == [True, False, False]


def test_arguments_that_make_runs_equal_are_kept_and_no_folder(tmp_path: Path) -> None:
    text = "  bf16 ............... True\n  save ............... /home/someone/out\n  seed ....... 1234\n" + LINE
    (tmp_path / "train.log").write_text(text)

    assert read(tmp_path).meta.environment == {"--bf16": "True", "--seed": "1234"}


def test_a_log_whose_first_iteration_comes_late_is_known_by_its_end(tmp_path: Path) -> None:
    noise = "some warning of the framework\n" * 8000
    assert len(noise) > 3 * 64 * 1024
    assert len(series(tmp_path / "train.log", noise + LINE + "\n")) == 1


def test_plain_text_with_bars_and_iterations_is_no_log(tmp_path: Path) -> None:
    for name, text in {
        "a.log": "iteration 3/ 10 | nothing: here |\n", "b.log": "the iteration | lm loss: 3 |\n", "c.txt": "hello\n",
        "d.log": "lm loss: 3.0 | grad norm: 1.0 |\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        find_units(tmp_path)


# ---- MindFormers -----------------------------------------------------------------------------------------------------


def test_lines_of_mindformers_count_through_the_epochs(tmp_path: Path) -> None:
    callback = "[mindformers/core/callback/callback.py:529] - INFO - "
    lines = [
        "2025-04-07 15:34:27,308 - " + callback + "{ Epoch:[  1/  2], step:[    2/   19], loss: 10.633, per_step_time: "
        "1752ms, lr: 1e-05, overflow cond: False, loss_scale: 65536.0, global_norm: [1.508834], "
        "train_throughput_per_npu: 170.738T",
        "2025-04-07 15:34:28,000 - " + callback + "   0.0% |   | 0.006 samples/s/p  25 days, 2:07:47 }",
        "[INFO] 2025-04-07 15:34:36,427 [callback.py:269] print_output_info: Epoch:[  2/  2], step:[    4/   19], "
        "loss:[2.244/2.5], time:7480.938 ms, lr:[0.], overflow cond: True, loss_scale: 32768.0",
        "Epoch:[  2/  2], step:[    5/   19], loss: nan, global_norm: [1 310], lr: (0.1)",
    ]  # fmt: skip
    table = series(tmp_path / "worker_3.log", "\n".join(lines))

    assert table.ints("step").tolist() == [2, 23, 24]
    assert table.ints("rank").tolist() == [3, 3, 3]
    assert table.ints("time_ns").tolist() == [1_744_040_067_308_000_000, 1_744_040_076_427_000_000, NULL]
    assert table.floats("loss").tolist()[:2] == [10.633, 2.244]
    assert table.bools("loss_nonfinite").tolist() == [False, False, True]
    assert table.ints("iteration_ns").tolist() == [1_752_000_000, 7_480_938_000, NULL]
    assert table.floats("learning_rate").tolist()[:2] == [1e-5, 0.0]
    assert table.ints("skipped").tolist() == [0, 1, NULL]
    assert table.floats("loss_scale").tolist()[:2] == [65536.0, 32768.0]
    assert table.floats("grad_norm")[0] == 1.508834 and np.isnan(table.floats("grad_norm")[2])
    assert table.floats("flops_per_s")[0] == 170.738e12
    dropped = read(tmp_path).meta.sources[0].dropped
    assert [(d.reason, d.count) for d in dropped] == [("value that is no number", 1)]


# ---- Hugging Face ----------------------------------------------------------------------------------------------------


def test_the_history_of_the_trainer(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.1, "grad_norm": 2.5, "learning_rate": 5e-05, "loss": 3.25, "step": 10},
        {"epoch": 0.1, "eval_loss": 3.0, "eval_runtime": 1.0, "eval_accuracy": 0.5, "step": 10},
        {"epoch": 0.2, "grad_norm": math.nan, "learning_rate": 4e-05, "loss": 2.75, "step": 20},
        "odd",
        {"epoch": 1.0, "train_loss": 2.9, "train_runtime": 99.0, "step": 20},
    ]
    state = {"best_metric": None, "global_step": 20, "log_history": history}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state, indent=2))
    trace = read(tmp_path)
    table = trace[t.TRAINING_SERIES]

    assert table.ints("step").tolist() == [10, 20]  # the evaluation of a step is part of its row
    assert table.floats("loss").tolist() == [3.25, 2.75]
    assert table.floats("eval_loss")[0] == 3.0 and table.floats("accuracy")[0] == 0.5
    assert table.bools("grad_norm_nonfinite").tolist() == [False, True]
    assert [(d.reason, d.count) for d in trace.meta.sources[0].dropped] == [("entry that is no object", 1)]


@pytest.mark.parametrize("text", ['{"log_history": [{"loss": 1, "step": 1}', '{"log_history": 3, "global_step": 1}'])
def test_a_damaged_state_is_refused_with_the_reason(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text + ' "global_step"')
    unit = trainer_state.find(Folder(tmp_path, (FileEntry(path, path.stat().st_size),), ()))[0]
    with pytest.raises(InputError, match="no JSON to its end"):
        trainer_state.parse(unit)


# ---- JSON lines and CSV ----------------------------------------------------------------------------------------------


def test_json_lines_with_one_figure_per_line(tmp_path: Path) -> None:
    lines = [
        {"iteration": 1, "train/loss": 2.0}, {"iteration": 1, "train/grad_norm": "Infinity"},
        {"iteration": 2, "train/loss": 1.5, "lr": 1e-4, "skipped": True}, {"iteration": 2, "train/loss": 1.4},
    ]  # fmt: skip
    table = series(tmp_path / "m.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + "{broken\n")

    assert table.ints("step").tolist() == [1, 2, 2]
    assert table.floats("loss").tolist() == [2.0, 1.5, 1.4]
    assert table.bools("grad_norm_nonfinite").tolist() == [True, False, False]
    assert table.ints("skipped").tolist() == [NULL, 1, NULL]


def test_a_csv_with_other_columns(tmp_path: Path) -> None:
    text = (
        '\ufeffWall time,Global Step,"Train Loss",Phase,GradNorm\n1.5,1,3.5,x,0.25\n1.6,2,,y,\n1.7,3,2.5\n1.8,n,1,z,1\n'
    )
    path = tmp_path / "curve.csv"
    table = series(path, text)

    assert table.ints("step").tolist() == [1]
    assert (table.floats("loss").tolist(), table.floats("grad_norm").tolist()) == ([3.5], [0.25])
    dropped = {d.reason: d.count for d in read(path).meta.sources[0].dropped}
    assert dropped == {
        "row with another number of cells than the header": 1, "value that is no number": 1,
        "row without a readable step": 1,
    }  # fmt: skip


def test_compressed_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(gzip.compress(b'{"step": 1, "loss": 2.5}\n' * 3))
    assert read(path)[t.TRAINING_SERIES].floats("loss").tolist() == [2.5] * 3


def test_names_are_matched_without_regard_to_case_and_signs() -> None:
    for name in ("LM Loss", "lm-loss", "train/loss", "training.Loss", "lm_loss"):
        figure = figure_of(name)
        assert figure is not None and figure.column == "loss", name
    for name in ("loss_mask", "aux loss", "step_id", "", "train_", "_"):
        assert figure_of(name) is None, name
    assert {figure.column for figure in ALIASES.values()} <= {column.name for column in t.TRAINING_SERIES.columns}


def test_numbers_as_they_are_logged() -> None:
    assert number(" 1.5E+00 ") == 1.5 and number("[1.25]") == 1.25 and number(True) == 1.0
    assert math.isnan(number("NaN") or 0.0) and number("-inf") == -math.inf
    assert [number(value) for value in ("1_000", "abc", None, [1], "1" * 65, 10**400)] == [None] * 6


def test_the_rank_comes_from_the_path() -> None:
    for path, rank in {
        "logs/rank_3.log": 3, "rank12/metrics.jsonl": 12, "a/5/stdout.log": 5, "a/5/train.log": None,
        "frank3.log": None, "logs/train.log": None, "Rank-0.txt": 0,
    }.items():  # fmt: skip
        assert rank_of_path(Path(path)) == rank, path


def test_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascend_perf.parsers import _training_series

    monkeypatch.setattr(_training_series, "MAX_ROWS", 3)
    rows = Rows()
    for step in range(5):
        rows.add({"step": step, "loss": 1.0})
    assert (len(rows.rows), rows.dropped) == (3, {"row beyond the first million": 2})
    rows.add({"step": 2.5, "loss": 1.0})
    assert rows.dropped["row without a readable step"] == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=80), max_size=8))
def test_garbage_between_the_lines_changes_nothing(tmp_path: Path, garbage: list[str]) -> None:
    clean = [LINE.replace("      20/", f"{step:8d}/") for step in range(1, 4)]
    mixed = "\n".join(part for pair in zip(clean, [" ".join(garbage)] * 3, strict=True) for part in pair)
    path = tmp_path / "train.log"
    path.write_text(mixed, "utf-8", errors="replace")
    unit = training_log.find(Folder(tmp_path, (FileEntry(path, path.stat().st_size),), ()))[0]
    table = training_log.parse(unit)[0][t.TRAINING_SERIES]
    assert table.ints("step").tolist() == [1, 2, 3]
    assert table.floats("loss").tolist() == [9.871204] * 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**9), st.floats(allow_nan=True), st.one_of(st.none(), st.floats(0, 1e6))
        ),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_rows_become_the_table_that_a_loop_would_make(entries: list[tuple[int, float, float | None]]) -> None:
    rows = Rows()
    for step, loss, scale in entries:
        rows.add({"step": step, "loss": loss, "loss_scale": scale})
    table = rows.table()
    assert table.ints("step").tolist() == [step for step, _, _ in entries]
    assert table.bools("loss_nonfinite").tolist() == [not math.isfinite(loss) for _, loss, _ in entries]
    for row, (_, loss, scale) in enumerate(entries):
        value = table.floats("loss")[row]
        assert value == loss if math.isfinite(loss) else math.isnan(value)
        value = table.floats("loss_scale")[row]
        assert math.isnan(value) if scale is None else value == scale


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(("x.log", "x.jsonl", "x.json", "x.csv", "trainer_state.json")),
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.sampled_from((
                LINE.encode(), b'{"step": 1, "loss": ', b'{"step": 1, "loss": 2}\n', b"step,loss\n", b"1,2\n", b'"',
                b'{"global_step": 1, "log_history": [', b'{"step": {}, "loss": []}', b"]}", b"\0",
                b"Epoch:[1/1], step:[1/1], loss: ",
            )),
        ),
        max_size=8,
    ),
)  # fmt: skip
def test_any_bytes_are_read_or_refused(tmp_path: Path, name: str, parts: list[bytes]) -> None:
    path = tmp_path / name
    path.write_bytes(b"".join(parts))
    folder = Folder(tmp_path, (FileEntry(path, path.stat().st_size),), ())
    for part in OURS:
        for unit in part.find(folder):
            try:
                (trace,) = part.parse(unit)
            except InputError:
                continue
            assert len(trace[t.TRAINING_SERIES])


# ---- other people's files --------------------------------------------------------------------------------------------


def test_no_file_of_a_real_profile_is_taken_for_a_series(traces: Path) -> None:
    count = 0
    for path in traces.rglob("*"):
        if path.is_file():
            count += 1
            folder = Folder(path.parent, (FileEntry(path, path.stat().st_size),), ())
            assert not [unit for part in OURS for unit in part.find(folder)], path
    assert count > 100


# ---- beside a profile ------------------------------------------------------------------------------------------------


def profile(rank: int | None) -> Trace:
    kernels = build_table("kernels", [{"start_ns": 0, "dur_ns": 5, "name": "a"}])
    meta = Meta(rank=rank, environment={"A": "profile"}, sources=(Source(path="p", format="x"),))
    return Trace({"kernels": kernels}, meta)


def lone(rank: int | None) -> Trace:
    rows = [{"step": 1, "loss": 1.0} if rank is None else {"step": 1, "loss": 1.0, "rank": rank}]
    meta = Meta(environment={"A": "series", "B": "1"}, sources=(Source(path="s", format="training log"),))
    return Trace({"training_series": build_table("training_series", rows)}, meta)


def owners(traces: list[Trace]) -> list[tuple[int | None, bool, bool]]:
    return [(x.meta.rank, x.has(t.KERNELS), x.has(t.TRAINING_SERIES)) for x in joined(traces)]


def test_one_series_goes_into_the_only_profile() -> None:
    made = joined([profile(0), lone(None)])
    assert owners([profile(0), lone(None)]) == [(0, True, True)]
    assert made[0].meta.environment == {"A": "profile", "B": "1"}
    assert [source.path for source in made[0].meta.sources] == ["p", "s"]
    assert owners([profile(None), lone(3)]) == [(None, True, True)]


def test_series_of_ranks_go_to_their_profiles_and_of_the_job_to_none() -> None:
    assert owners([profile(0), profile(1), lone(1), lone(None)]) == [
        (0, True, False), (1, True, True), (None, False, True),
    ]  # fmt: skip
    assert owners([profile(0), lone(1)]) == [(0, True, False), (None, False, True)]


def test_two_series_for_one_profile_stay_apart() -> None:
    assert owners([profile(0), lone(None), lone(None)]) == [
        (0, True, False), (None, False, True), (None, False, True),
    ]  # fmt: skip
    assert owners([profile(0), profile(0), lone(0)])[2] == (None, False, True)


def test_a_log_alone_is_no_rank_that_was_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LINE)
    (tmp_path / "b.log").write_text(LINE)
    assert pipeline.notices(pipeline.load(tmp_path)) == []


# ---- our own runs ----------------------------------------------------------------------------------------------------


def test_the_series_of_our_own_run_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    measurement = {"warmup_ns": [5], "measured_ns": [6, 7], "profiled_ns": [8]}
    write_series(
        path, {"loss": [5.0, 4.0, 3.0, math.nan, 1.0], "grad_norm": [1.0, 1.0, math.inf, 1.0, 2.0]}, measurement  # type: ignore[arg-type]
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["warmup", "measured", "measured", "profiler_warmup", "profiled"]
    assert lines[3]["loss"] == "nan"

    table = read(tmp_path)[t.TRAINING_SERIES]
    assert table.ints("step").tolist() == [1, 2, 3, 4, 5]
    assert table.ints("iteration_ns").tolist() == [5, 6, 7, NULL, 8]
    assert table.floats("loss").tolist()[:3] == [5.0, 4.0, 3.0]
    assert table.bools("loss_nonfinite").tolist() == [False, False, False, True, False]
    assert table.bools("grad_norm_nonfinite").tolist() == [False, False, True, False, False]
