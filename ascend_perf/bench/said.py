"""From the messages of a job to what it said: of a job that did not come to its end, what there is of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ascend_perf.bench.figures import MeasuredJson, RankJson, Said, slowest
from ascend_perf.bench.job import Heard
from ascend_perf.collectors import devices
from ascend_perf.model.finding import Metric
from ascend_perf.workloads import _spec


def said_of(heard: Heard) -> Said:
    """What the ranks told, in order; of a job that did not come to its end, what there is."""
    device, program, result = heard.last("device"), heard.last("program"), heard.last("result")
    said = Said(
        device=None if device is None else devices.SeenDevice(**device["device"]),
        problems=() if device is None else tuple(device["problems"]),
        program=None if program is None else program["program"],
    )
    if result is not None:
        return replace(
            said, ranks=tuple(result["ranks"]),
            measurement=slowest([rank["measurement"] for rank in result["ranks"]]),
            threads=result["threads"], versions=result["versions"], environment=result["environment"],
            series=result["series"], metrics=tuple(_finite(Metric(**metric)) for metric in result["metrics"]),
            tables=result["tables"],
        )  # fmt: skip
    ended = sorted((*heard.of("error"), *heard.of("stopped")), key=lambda message: int(message["rank"]))
    if not ended:
        return said
    return replace(said, measurement=slowest([_partial(message["times"]) for message in ended]))


def _finite(metric: Metric) -> Metric:
    """A figure that is not a number is unknown: JSON has no such numbers."""
    return metric if metric.value is None or math.isfinite(metric.value) else replace(metric, value=None)


def _partial(times: Mapping[str, list[int]]) -> MeasuredJson:
    return MeasuredJson(
        warmup_ns=times["warmup"], measured_ns=times["measured"], profiled_ns=times["profiled"], peak_rss_bytes=None,
        peak_device_bytes=None, trace_name="", last_value=None, measured_from_ns=0, measured_to_ns=0,
    )  # fmt: skip


def rank_row(rank: RankJson) -> dict[str, _spec.Value]:
    """A rank as a row of results/ranks.csv."""
    measured = sorted(rank["measurement"]["measured_ns"])
    traffic = rank["traffic"]
    moved = None if traffic is None else sum(part["bytes_per_step"] for part in traffic["collectives"])
    return {
        "rank": rank["rank"],
        "step_time_max_ns": measured[-1],
        "step_time_min_ns": measured[0],
        "peak_rss_bytes": rank["measurement"]["peak_rss_bytes"],
        "peak_device_bytes": rank["measurement"]["peak_device_bytes"],
        "communication_bytes_per_step": moved,
        **{f"memory_{part}_bytes": count for part, count in rank["memory"].items()},
    }
