"""Waiting for torch_npu to let go of what collectives held."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_perf.bench import settled
from ascend_perf.workloads import _virtual

HELD = {"weights": 100 << 20, "gradients": 100 << 20, "optimizer": 200 << 20, "activations": 999 << 20}
STAYS = 404 << 20
BUCKETS = 100 << 20


class Device:
    """Lets go of the first buckets in a step that begins `let_go_s` of real time or later."""

    def __init__(self, let_go_s: float) -> None:
        self.let_go_s, self.now, self.steps, self.holds = let_go_s, 0.0, 0, True

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        self.steps += 1
        self.holds = self.holds and self.now < self.let_go_s

    def requested(self) -> int:
        return STAYS + BUCKETS * self.holds


@pytest.mark.parametrize(("let_go_s", "steps"), [(0.95, 1), (1.1, 1), (2.3, 2), (3.5, 3)])
def test_it_waits_and_works_until_only_what_stays_is_there(let_go_s: float, steps: int) -> None:
    device = Device(let_go_s)
    assert settled.settle(HELD, device.requested, device.step, sleep=device.sleep)
    assert device.steps == steps
    assert device.now == pytest.approx(steps * settled.LOOK_S)


def test_it_gives_up_on_what_is_held_for_good() -> None:
    device = Device(1e9)
    assert not settled.settle(HELD, device.requested, device.step, sleep=device.sleep)
    assert device.steps == settled.MOST_LOOKS


def test_it_does_nothing_where_nothing_is_held_or_nothing_is_trained() -> None:
    device = Device(1e9)
    device.holds = False
    assert settled.settle(HELD, device.requested, device.step, sleep=device.sleep)
    assert settled.settle({"weights": 1, "cache": 1}, lambda: 1 << 40, device.step, sleep=device.sleep)
    assert (device.steps, device.now) == (0, 0)


def test_the_clock_is_that_of_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    monkeypatch.delenv(_virtual.VARIABLE, raising=False)
    assert not _virtual.has_modelled_clock()
    monkeypatch.setenv(_virtual.VARIABLE, str(config))
    assert not _virtual.has_modelled_clock()
    for clock in ("wall", "modelled"):
        config.write_text(f"version\t1\nclock\t{clock}\nprocesses\tself\n", "utf-8")
        assert _virtual.has_modelled_clock() == (clock == "modelled")
