"""How texts speak of steps: their length, a time per step, a share of all steps."""

from __future__ import annotations

from typing import Protocol

from ascend_perf.model.finding import Words
from ascend_perf.units import format_ns, format_ratio


class Stepped(Protocol):
    """Something that covers whole steps."""

    @property
    def step_ns(self) -> int:
        """Length of all steps together."""

    @property
    def steps(self) -> int:
        """Number of steps."""


def step_words(of: Stepped, share_ratio: float | None = None) -> Words:
    """The step as the subject of a sentence: `the 136.6 ms step`; the average where there are several.

    Args:
        share_ratio: what a time before it is of the step. English says it here, in the one bracket with the number of
            steps: `the 58.86 ms step (39 %, average of 2)`; in Chinese it follows the time, which comes later.
    """
    length = format_ns(of.step_ns / max(1, of.steps))
    if of.steps <= 1:
        return Words(f"the {length} step{bracket(share_ratio)}", f"单步 {length} 中")
    return Words(
        f"the {length} step{bracket(share_ratio, f'average of {of.steps}')}", f"平均单步 {length}（共 {of.steps} 步）中"
    )


def bracket(share_ratio: float | None, *more: str) -> str:
    """` (39 %, average of 2)`: one bracket in English for the share, where there is one, and what else is to say."""
    said = [*(() if share_ratio is None else (format_ratio(share_ratio),)), *more]
    return f" ({', '.join(said)})" if said else ""


def per_step(of: Stepped, value_ns: float) -> str:
    """A time over all steps, written as its average per step."""
    return format_ns(value_ns / max(1, of.steps))


def share_of(of: Stepped, value_ns: float) -> float:
    """Share of all steps, 0..1."""
    return min(1.0, max(0.0, value_ns / of.step_ns)) if of.step_ns > 0 else 0.0
