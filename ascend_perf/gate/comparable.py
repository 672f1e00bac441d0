"""Whether two sides may be compared at all: the same machine, the same work, both measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ascend_perf.model.result import MUST_AGREE, Benchmark
from ascend_perf.model.run import Fact

SOFTWARE: Final = ("kind", "chip", "chip_count", "cann", "cuda", "torch", "torch_npu")
"""Facts that decide which operators run. The others decide only how long they take."""


def differing_facts(
    base: Mapping[str, Fact], head: Mapping[str, Fact], ignored: Collection[str] = ()
) -> tuple[tuple[str, Fact, Fact], ...]:
    """Facts of MUST_AGREE that both sides know and that differ."""
    return tuple(
        (name, base[name], head[name])
        for name in MUST_AGREE
        if name not in ignored
        and base.get(name) is not None and head.get(name) is not None and base[name] != head[name]
    )  # fmt: skip


def unknown_facts(base: Mapping[str, Fact], head: Mapping[str, Fact]) -> tuple[str, ...]:
    """Facts of MUST_AGREE that one side alone knows: they could not be checked."""
    return tuple(name for name in MUST_AGREE if (base.get(name) is None) != (head.get(name) is None))


def differing_work(
    base: Benchmark, head: Benchmark, ignored: Collection[str] = ()
) -> tuple[tuple[str, Fact, Fact], ...]:
    """What makes the work of two benchmarks another one: workload, preset, device, world size, and every setting.

    A setting that one side alone has counts as different: an unknown default is no agreement.
    """
    pairs: list[tuple[str, Fact, Fact]] = [
        (name, getattr(base, name), getattr(head, name)) for name in ("workload", "preset", "device", "world_size")
    ]
    for name in sorted({*base.config, *head.config} - set(ignored)):
        if (name in base.config) != (name in head.config):
            there, value = ("base", base.config[name]) if name in base.config else ("head", head.config[name])
            pairs.append((name, value, "(absent)") if there == "base" else (name, "(absent)", value))
        else:
            pairs.append((name, base.config[name], head.config[name]))
    return tuple((name, left, right) for name, left, right in pairs if not _same(left, right))


def _same(left: Fact, right: Fact) -> bool:
    # True == 1 in Python, and a setting that turns from a flag into a number is another setting.
    return left == right and isinstance(left, bool) == isinstance(right, bool)
