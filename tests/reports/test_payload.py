"""Verdict, tiles, bars, judged rows, figures: what is said is what the figures give."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from ascend_perf.model.finding import Judged, Metric, Outcome, Words
from ascend_perf.model.run import Manifest, Run
from ascend_perf.model.trace import Check, Device, Meta, Source, Trace
from ascend_perf.reports import figures
from ascend_perf.reports.bars import bars, kind_of
from ascend_perf.reports.judged import judged_rows
from ascend_perf.reports.payload import Payload, StepRow, build
from ascend_perf.reports.verdict import doubts, facts, gain, ranges, spread, tiles, verdict
from tests.reports import _sample_tables, _samples


def empty(*outcomes: Outcome) -> Payload:
    return build(Run(traces=(Trace(meta=Meta(rank=0)),)), outcomes, [], lang="en")


def with_steps(*spans_us: float) -> Payload:
    """One rank with steps of these lengths, half of each computing."""
    payload = empty()
    steps = tuple(
        StepRow(step_id=i, span_us=s, computing_us=s / 2, free_us=s / 4, communication_not_overlapped_us=s / 4)
        for i, s in enumerate(spans_us)
    )
    return replace(payload, ranks=(replace(payload.ranks[0], steps=steps),))


def test_the_lead_is_the_median_with_its_range() -> None:
    assert verdict(with_steps(1000, 3000, 2000)).lead.en == "The step takes 2 ms (median of 3; 1 ms to 3 ms)."
    assert verdict(with_steps(2000)).lead.en == "The step takes 2 ms."


def test_a_run_that_did_not_come_to_its_end_says_so_before_its_steps() -> None:
    def run(status: Literal["complete", "interrupted", "failed"], problem: str) -> Manifest:
        return Manifest(workload="w", device="cpu", data_origin="measured", created="", status=status, problem=problem)

    stopped = replace(with_steps(2000), manifest=run("interrupted", "stopped by Ctrl-C"))
    assert verdict(stopped).lead == Words(
        "The run was interrupted: stopped by Ctrl-C. The step takes 2 ms.",
        "运行被中断：被 Ctrl-C 停止。单步耗时 2 ms。",
    )
    failed = replace(empty(), manifest=run("failed", ""))
    assert verdict(failed).lead == Words("The run failed: the reason was not recorded.", "运行失败：未记录原因。")
    assert verdict(replace(with_steps(2000), manifest=run("complete", ""))).lead.en == "The step takes 2 ms."


ONE_STEP = spread([1000.0])


def test_over_several_steps_a_bound_is_a_share() -> None:
    finding = replace(_samples.findings()[0], share_ratio=0.25)
    one, several = gain(finding, ONE_STEP), gain(finding, spread([1000.0, 3000.0]))
    assert one is not None and one.en == "At most 1.33x (250 us of 1 ms)"
    assert several is not None and several.en == "At most 1.33x (25 % of the step)"


def test_a_bound_without_a_share_is_not_invented() -> None:
    finding = replace(_samples.findings()[0], share_ratio=None)
    assert gain(finding, ONE_STEP) is None


def test_a_share_of_the_whole_step_has_no_finite_bound() -> None:
    said = gain(replace(_samples.findings()[0], share_ratio=1.0), ONE_STEP)
    assert said is not None
    assert said.en == "No finite bound (1 ms of 1 ms)"


def test_no_finding_is_a_clean_bill_only_for_what_was_judged() -> None:
    clean = Judged(code="C-02", verdict="clean")
    unjudged = Judged(code="C-03", verdict="not_judged")

    said = verdict(empty(Outcome(analyzer="operators", status="done", rank=0, judged=(clean, unjudged)))).main
    nothing = verdict(empty(Outcome(analyzer="operators", status="no_data", rank=0))).main

    assert said.en.endswith("what could be judged (rows checked and clean: 1; not judged: 1).")
    assert nothing.en.startswith("Nothing could be judged")


def test_tiles_show_shares_of_the_step_and_whether_they_are_healthy() -> None:
    made = {tile.key: tile for tile in tiles(with_steps(1000, 1000))}

    assert made["step"].value.en == "1 ms"
    assert made["idle"].share_ratio == 0.25
    assert made["idle"].state == "bad"  # 25 % idle, over 10 %
    assert made["exposed"].state == "bad"  # 25 %, over 20 %
    assert made["computing"].state == "none"
    assert made["memory"].value.en == "not in this data"
    assert made["memory"].note.en == "Needs profile_memory=True in the profiler."
    assert "profile_memory" in made["memory"].hint.en


def test_the_utilisation_tile_names_the_metric_it_shows() -> None:
    metric = Metric(name="kernel_mfu", value=0.41, unit="ratio", better="higher", rank=0)
    worse = Metric(name="mac_ratio", value=0.9, unit="ratio", better="higher", rank=0)

    payload = empty(Outcome(analyzer="mac-utilisation", status="done", rank=0, metrics=(worse, metric)))

    tile = tiles(payload)[4]
    assert (tile.label.en, tile.value.en, tile.state) == ("Kernel MFU", "41 %", "good")


def test_peak_memory_leaves_out_the_whole_process() -> None:
    tile = tiles(_samples.payload())[5]
    assert tile.value.en == "1.418 GiB"  # 1452 MiB, not the 9 GiB of APP


def test_facts_say_which_ranks_were_seen_of_how_many() -> None:
    said = {fact.label.en: fact.value.en for fact in facts(_samples.payload())}

    assert said["Ranks"] == "0-1 (2 seen of 8 in the job)"
    assert said["Data"].startswith("files: 4; rows read: 20\u2009606, not used: 8; unusable files: 1")
    assert said["Workload"] == "alexnet"


def test_a_log_of_the_whole_job_is_no_further_rank() -> None:
    payload = _samples.payload()
    log = replace(payload.ranks[0], meta=replace(payload.ranks[0].meta, rank=None))

    said = {fact.label.en: fact.value.en for fact in facts(replace(payload, ranks=(*payload.ranks, log)))}

    assert said["Ranks"] == "0-1 (2 seen of 8 in the job)"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([7, 6, 6, 0], "0, 6-7")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_the_bar_adds_up_to_the_step() -> None:
    first, second = bars(_samples.payload())

    assert first.total_ns == _sample_tables.STEP_NS
    assert second.total_ns == _sample_tables.STEP_NS - 4669
    assert first.kind_ns("wait") == 98_283_203
    assert first.kind_ns("computing") == 2_805_855 + 5_823_400 + 105_300 + 139_201


def test_without_its_table_the_bar_comes_from_the_steps() -> None:
    (bar,) = bars(with_steps(1000, 3000))

    assert [(part.key, part.time_ns) for part in bar.parts] == [
        ("computing", 1_000_000.0),
        ("exposed", 500_000.0),
        ("free", 500_000.0),
    ]


@pytest.mark.parametrize(
    ("component", "kind"),
    [
        ("cube", "computing"), ("comm-wait", "wait"), ("comm-transfer", "transfer"), ("communication", "transfer"),
        ("bubble", "wait"), ("copy", "copy"), ("free", "idle"), ("data loader", "idle"), ("aicpu", "computing"),
    ],
)  # fmt: skip
def test_components_have_the_colour_of_their_kind(component: str, kind: str) -> None:
    assert kind_of(component) == kind


def test_a_rank_that_computes_longer_is_marked_from_four_ranks_on() -> None:
    def ranks(*computing_us: float) -> list[bool]:
        one = with_steps(1000).ranks[0]
        made = tuple(
            replace(one, meta=Meta(rank=i), steps=(replace(one.steps[0], computing_us=c),))
            for i, c in enumerate(computing_us)
        )
        return [bar.is_outlier for bar in bars(replace(empty(), ranks=made))]

    assert ranks(500, 501, 500, 700) == [False, False, False, True]
    assert ranks(500, 500, 500, 520) == [False] * 4  # 4 % from the median
    assert ranks(500, 501, 700) == [False] * 3


def test_found_on_one_rank_is_found_and_clean_on_one_is_clean_there() -> None:
    why = Words("no counters", "无计数器")
    payload = empty(
        Outcome(analyzer="a", status="done", rank=0, judged=(Judged(code="C-02", verdict="clean"),)),
        Outcome(analyzer="a", status="done", rank=1, judged=(Judged(code="C-02", verdict="not_judged", reason=why),)),
        Outcome(analyzer="a", status="done", rank=0, judged=(Judged(code="H-01", verdict="clean"),)),
        Outcome(analyzer="a", status="done", rank=1, judged=(Judged(code="H-01", verdict="found"),)),
        Outcome(analyzer="a", status="done", rank=1, judged=(Judged(code="K-01", verdict="not_judged", reason=why),)),
    )

    rows = {row.code: row for row in judged_rows(payload)}

    assert (rows["C-02"].verdict, rows["C-02"].ranks) == ("clean", [0])
    assert (rows["H-01"].verdict, rows["H-01"].ranks) == ("found", [1])
    assert (rows["K-01"].verdict, rows["K-01"].reason) == ("not_judged", why)


def test_figures_hold_the_same_numbers_as_the_page() -> None:
    payload = _samples.payload()

    bar = figures.step_bar(payload)
    roofline = figures.roofline(payload, rank=0)
    memory = figures.memory(payload, rank=0, lang="zh")

    assert sum(trace.x[0] for trace in bar.data) == pytest.approx(_sample_tables.STEP_NS / 1e6)
    assert len(roofline.data) == 4  # the kernels and three roofs
    assert list(roofline.data[3].y) == pytest.approx([1.6e12 * x for x in roofline.data[3].x])
    assert memory.data[0].name == "PTA, 已分配"
    assert memory.data[0].x[0] == 0
    with pytest.raises(KeyError, match="rank 7"):
        figures.memory(payload, rank=7)


@pytest.mark.parametrize(
    ("overhead", "value", "note"),
    [
        (-0.046, "< 8 %", "小于 step 自身的波动"),
        (-0.47, "not measured", "未采集的 step 反而更慢"),
        (0.47, "47 %", "采集时的 step 与其余 step 之比"),
    ],
)
def test_an_overhead_below_the_spread_of_the_steps_is_no_figure(overhead: float, value: str, note: str) -> None:
    metrics = tuple(
        Metric(name=name, value=value, unit="none", better="none")
        for name, value in (("profiler_overhead", overhead), ("step_time_median", 200.0), ("step_time_iqr", 16.0))
    )
    manifest = Manifest(workload="w", device="cpu", data_origin="measured", created="", metrics=metrics)
    trace = Trace(meta=Meta(device=Device(kind="cpu")))

    payload = build(Run(traces=(trace,), manifest=manifest), [], [], lang="en")

    (tile,) = [tile for tile in tiles(payload) if tile.key == "overhead"]
    assert tile.value.en == value
    assert tile.note.zh == note


def test_the_verdict_says_two_clauses_and_the_card_all() -> None:
    title = Words("a waits for b; the data needs 1 us; c is hidden", "甲等待乙；数据只需 1 us；丙被掩盖")
    found = _samples.findings()[0]
    payload = build(Run(traces=(Trace(),)), [], [replace(found, title=title)], lang="en")

    said = verdict(payload)

    assert (said.main.en, said.main.zh) == ("a waits for b; the data needs 1 us", "甲等待乙；数据只需 1 us")
    assert payload.findings[0].title == title


def test_doubts_count_unusable_files_differing_checks_and_failures() -> None:
    check = Check(name="kernel count", ours=7, theirs=187, unit="count", tolerance=0, where="x")
    lost = Source(path="a.json", format="json", problem="truncated")
    elsewhere = Source(path="a.csv", format="csv", problem="the database holds it", is_held_elsewhere=True)
    meta = Meta(rank=0, sources=(lost, elsewhere), checks=(check, replace(check, theirs=7, name="other")))
    broken = Outcome(analyzer="x", status="failed", rank=0, reason=Words("no", "否"))

    said = doubts(build(Run(traces=(Trace(meta=meta),)), [broken], [], lang="en"))

    assert said is not None
    assert said.en == "Data doubtful: unusable files: 1; cross-checks that differ: 1; failed analyzers: 1"
    assert said.zh == "数据存疑：无法使用的文件：1；不一致的交叉校验：1；失败的分析器：1"
    assert doubts(build(Run(traces=(Trace(),)), [], [], lang="en")) is None


def test_without_communication_its_tile_says_so_instead_of_zero() -> None:
    made = {tile.key: tile for tile in tiles(with_steps(1000))}
    assert made["exposed"].value.en == "250 us"

    silent = with_steps(1000)
    ranks = tuple(
        replace(
            rank,
            steps=tuple(
                replace(step, communication_us=0, communication_not_overlapped_us=0) for step in rank.steps
            ),
        )
        for rank in silent.ranks
    )
    tile = {tile.key: tile for tile in tiles(replace(silent, ranks=ranks))}["exposed"]

    assert (tile.value.en, tile.value.zh, tile.share_ratio) == ("none", "无", None)
    assert tile.note.en == "no communication in this data"
