"""How titles speak of the step and of a share of it: one bracket, whatever is in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ascend_perf.analyzers._host_causes import span_words
from ascend_perf.analyzers._idle import Span
from ascend_perf.analyzers._step_words import step_words
from ascend_perf.model.finding import Words


@dataclass(frozen=True)
class Steps:
    step_ns: int
    steps: int


def test_the_step_with_the_share_that_stands_before_it() -> None:
    assert step_words(Steps(2_000_000, 1)) == Words("the 2 ms step", "单步 2 ms 中")
    assert step_words(Steps(2_000_000, 1), 0.391) == Words("the 2 ms step (39 %)", "单步 2 ms 中")
    # 6 ms over three steps.
    average = "平均单步 2 ms（共 3 步）中"
    assert step_words(Steps(6_000_000, 3)) == Words("the 2 ms step (average of 3)", average)
    assert step_words(Steps(6_000_000, 3), 0.0012) == Words("the 2 ms step (0.12 %, average of 3)", average)


def span(*step_ids: int | None) -> Span:
    starts = np.arange(len(step_ids), dtype=np.int64) * 2_000_000
    return Span(starts=starts, ends=starts + 2_000_000, step_ids=step_ids)


def test_the_step_with_its_preparation() -> None:
    assert span_words(span(7)).en == "the 2 ms step"
    assert span_words(span(7), 0.5).en == "the 2 ms step (50 %)"
    assert span_words(span(7, 8), 0.5).en == "the 2 ms step (50 %, average of 2)"
    assert span_words(span(None)).en == "the 2 ms capture (no steps marked)"
    assert span_words(span(None), 0.5).en == "the 2 ms capture (50 %, no steps marked)"
