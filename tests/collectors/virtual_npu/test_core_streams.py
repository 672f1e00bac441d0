"""Times of streams and events, against a simulation of its own."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors.virtual_npu._device import COPY_NS, HOST_LAUNCH_NS, LATENCY_NS, Device

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")

STREAMS, EVENTS = 3, 3
steps = st.one_of(
    st.tuples(st.just("launch"), st.integers(0, STREAMS - 1), st.integers(0, 9000)),
    st.tuples(st.just("copy"), st.integers(0, STREAMS - 1), st.integers(1, 5000)),
    st.tuples(st.just("record"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync stream"), st.integers(0, STREAMS - 1), st.just(0)),
    st.tuples(st.just("sync event"), st.just(0), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync device"), st.just(0), st.just(0)),
    st.tuples(st.just("memcpy"), st.just(0), st.integers(1, 4000)),
)


@dataclass
class Simulated:
    """What the device should do: a clock of the host, an end for each stream, a time for each event."""

    host: int = 0
    tails: list[int] = field(default_factory=lambda: [0] * STREAMS)
    events: list[int | None] = field(default_factory=lambda: [None] * EVENTS)
    spans: list[tuple[str, int, int, int]] = field(default_factory=list)

    def task(self, stream: int, name: str, duration: int, *, is_launch: bool) -> None:
        start = max(self.host + LATENCY_NS, self.tails[stream])
        self.tails[stream] = start + duration
        self.spans.append((name, stream, start, start + duration))
        if is_launch:
            self.host += HOST_LAUNCH_NS

    def do(self, what: str, stream: int, value: int) -> None:
        if what == "launch":
            self.task(stream, "K", value, is_launch=True)
        elif what == "copy":
            self.task(stream, "P", 2 * COPY_NS + value, is_launch=True)
        elif what == "record":
            self.task(stream, "record", 0, is_launch=False)
            self.events[value] = self.tails[stream]
        elif what == "wait":
            self.tails[stream] = max(self.host + LATENCY_NS, self.tails[stream], self.events[value] or 0)
            self.spans.append(("wait", stream, self.tails[stream], self.tails[stream]))
        elif what == "sync stream":
            self.host = max(self.host, self.tails[stream])
        elif what == "sync event":
            self.host = max(self.host, self.events[value] or 0)
        elif what == "sync device":
            self.host = max(self.host, *self.tails)
        else:
            self.host += 2 * COPY_NS + value


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=40))
def test_streams_and_events_as_simulated(tmp_path: Path, program: list[tuple[str, int, int]]) -> None:
    for old in tmp_path.glob("*"):
        old.unlink()
    device = Device(tmp_path)
    streams = [device.stream() for _ in range(STREAMS)]
    events = [device.event() for _ in range(EVENTS)]
    host = ctypes.create_string_buffer(5000)
    memory = device.memory(5000)
    simulated = Simulated()
    for what, stream, value in program:
        simulated.do(what, stream, value)
        if what == "launch":
            device.run("aclnnTimed", streams[stream], value)
        elif what == "copy":
            device.ok("aclrtMemcpyAsync", memory, 5000, host, value, 1, streams[stream])
        elif what == "record":
            device.ok("aclrtRecordEvent", events[value], streams[stream])
        elif what == "wait":
            device.ok("aclrtStreamWaitEvent", streams[stream], events[value])
        elif what == "sync stream":
            device.ok("aclrtSynchronizeStream", streams[stream])
        elif what == "sync event":
            device.ok("aclrtSynchronizeEvent", events[value])
        elif what == "sync device":
            device.ok("aclrtSynchronizeDevice")
        else:
            device.ok("aclrtMemcpy", memory, 5000, host, value, 1)
    device.close()

    tables = device.record().tables
    spans = [
        (seq, kind, stream, start, end)
        for kind in "KP"
        for seq, stream, start, end in zip(
            *(tables[kind][name].tolist() for name in ("seq", "stream", "start_ns", "end_ns")), strict=True
        )
        if stream >= 0
    ]
    spans += [
        (seq, ("record", "wait", "reset")[kind], stream, time, time)
        for seq, kind, stream, time in zip(
            *(tables["E"][name].tolist() for name in ("seq", "kind", "stream", "device_ns")), strict=True
        )
    ]
    assert [span[1:] for span in sorted(spans)] == simulated.spans
    waits = tables["Y"]
    assert (waits["begin_ns"] <= waits["end_ns"]).all()
    if len(waits["end_ns"]) and program[-1][0].startswith("sync"):
        assert waits["end_ns"][-1] == simulated.host


def test_an_event_that_is_recorded_again_does_not_move_earlier_waits(tmp_path: Path) -> None:
    device = Device(tmp_path)
    first, second = device.stream(), device.stream()
    event = device.event()
    device.run("aclnnTimed", first, 10_000)  # 300 to 10300
    device.ok("aclrtRecordEvent", event, first)
    device.ok("aclrtStreamWaitEvent", second, event)
    device.run("aclnnTimed", first, 50_000)
    device.ok("aclrtRecordEvent", event, first)
    device.run("aclnnTimed", second, 1)
    device.close()
    assert device.record().tables["K"]["start_ns"].tolist() == [300, 10_300, 10_300]


def test_elapsed_time_and_its_errors(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream, begin, end = device.stream(), device.event(), device.event()
    elapsed = ctypes.c_float()
    assert device.call("aclrtEventElapsedTime", ctypes.byref(elapsed), begin, end) == 107006  # never recorded
    device.ok("aclrtRecordEvent", begin, stream)
    device.run("aclnnTimed", stream, 3_000_000)
    device.ok("aclrtRecordEvent", end, stream)
    status = ctypes.c_int()
    device.ok("aclrtQueryEventStatus", end, ctypes.byref(status))
    assert status.value == 0  # not ready
    device.ok("aclrtSynchronizeEvent", begin)
    assert device.call("aclrtEventElapsedTime", ctypes.byref(elapsed), begin, end) == 507006  # not complete
    device.ok("aclrtSynchronizeEvent", end)
    device.ok("aclrtQueryEventStatus", end, ctypes.byref(status))
    assert status.value == 1
    device.ok("aclrtEventElapsedTime", ctypes.byref(elapsed), begin, end)
    assert elapsed.value == pytest.approx(3.0)  # both at 300, the kernel of 3 ms between them
    assert [code for _, _, code, _ in device.record().errors] == [107006, 507006]


def test_polling_ends_and_does_not_move_the_program(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream, event = device.stream(), device.event()
    device.run("aclnnTimed", stream, 100_000)
    device.ok("aclrtRecordEvent", event, stream)
    status, polls = ctypes.c_int(), 0
    while not status.value:
        device.ok("aclrtQueryEventStatus", event, ctypes.byref(status))
        polls += 1
    # The event is at 100300, the thread at 1000 after the launch, and each "not yet" costs it 1000: 101 questions.
    assert polls == 101


def test_a_wait_with_a_limit_that_is_too_short(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream = device.stream()
    device.run("aclnnTimed", stream, 5_000_000)
    assert device.call("aclrtSynchronizeStreamWithTimeout", stream, 2) == 507046
    assert "was not done in 2 ms" in device.message()
    device.ok("aclrtSynchronizeStreamWithTimeout", stream, 4)  # 3.3 ms are left


def test_handles_that_are_none_are_refused(tmp_path: Path) -> None:
    device = Device(tmp_path)
    stream, event = device.stream(), device.event()
    assert device.call("aclrtSynchronizeStream", event) == 107017
    assert device.call("aclrtRecordEvent", stream, stream) == 107017
    device.ok("aclrtDestroyStream", stream)
    assert device.call("aclrtSynchronizeStream", stream) == 107017
    device.ok("aclrtDestroyEvent", event)
    assert device.call("aclrtSynchronizeEvent", event) == 107017


def test_the_wall_clock_sleeps_until_the_device_is_done(tmp_path: Path) -> None:
    device = Device(tmp_path, clock="wall")
    stream = device.stream()
    device.run("aclnnTimed", stream, 30_000_000)
    device.ok("aclrtSynchronizeStream", stream)
    device.close()
    tables = device.record().tables
    assert tables["Y"]["end_ns"][-1] >= tables["K"]["end_ns"][0]
    assert tables["K"]["end_ns"][0] - tables["K"]["start_ns"][0] == 30_000_000
    assert tables["K"]["start_ns"][0] == tables["K"]["host_ns"][0] + LATENCY_NS


@pytest.mark.parametrize(
    ("fault", "duration"),
    [(("slow_rank", 0, 1.5), 1500), (("slow_rank", 1, 1.5), 1000), (("op_factor", "aclnnTimed", 4), 4000),
     (("op_factor", "aclnnUnary", 4), 1000)],
)  # fmt: skip
def test_planted_faults_change_kernels(tmp_path: Path, fault: tuple[object, ...], duration: int) -> None:
    device = Device(tmp_path, faults=[fault, ("launch_latency", 77)])
    stream = device.stream()
    device.run("aclnnTimed", stream, 1000)
    device.close()
    tables = device.record().tables["K"]
    assert (tables["end_ns"] - tables["start_ns"]).tolist() == [duration]
    assert (tables["start_ns"] - tables["host_ns"]).tolist() == [77]
