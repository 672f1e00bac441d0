"""Repeats the one step of a real text export: what the same job would have written, had it recorded more steps.

Time stamps move by the length of the host's step, step numbers, ids of launches and ordinals of collectives count on.
Rows before the step stand before the first copy, rows behind it behind the last.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

PAUSE_US = Decimal("5")
"""Between the end of a step of the host and the start of the next."""
IDS = 100_000
"""More ids than one step has."""
_COLLECTIVE = re.compile(r"^(hcom_\w+?__\d+)_(\d+)_(\d+)$")

Event = dict[str, Any]


@dataclass(frozen=True)
class Repeater:
    """Copies a rank's export with its step `times` times."""

    source: Path
    times: int

    def write(self, folder: Path) -> Path:
        """Writes below a folder; returns the rank's folder."""
        target = folder / self.source.name
        output = target / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        for path in self.source.glob("*.json"):
            (target / path.name).write_bytes(path.read_bytes())
        files = self.source / "ASCEND_PROFILER_OUTPUT"
        events = json.loads((files / "trace_view.json").read_text("utf-8"))
        (step,) = [e for e in events if e.get("name", "").startswith("ProfilerStep#")]
        start, period = Decimal(step["ts"]), Decimal(str(step["dur"])) + PAUSE_US
        calls = len(json.loads((files / "communication.json").read_text("utf-8"))[self._step(step)]["collective"])
        moved = _Moved(times=self.times, start=start, period=period, calls=calls, step=int(step["name"][13:]))
        (output / "trace_view.json").write_text(json.dumps(list(moved.events(events))))
        for name, column in (
            ("kernel_details.csv", "Start Time(us)"), ("memory_record.csv", "Timestamp(us)"),
            ("operator_memory.csv", "Allocation Time(us)"), ("npu_module_mem.csv", "Timestamp(us)"),
        ):  # fmt: skip
            self._table(files / name, output / name, partial(moved.rows, column=column))
        self._table(files / "step_trace_time.csv", output / "step_trace_time.csv", moved.steps)
        self._table(files / "op_statistic.csv", output / "op_statistic.csv", lambda r: self._sums(r, "Total Time(us)"))
        self._table(files / "api_statistic.csv", output / "api_statistic.csv", lambda r: self._sums(r, "Time(us)"))
        for name in ("communication.json", "communication_matrix.json"):
            whole = json.loads((files / name).read_text("utf-8"))
            (output / name).write_text(json.dumps(moved.communication(whole)))
        return target

    @staticmethod
    def _step(event: Event) -> str:
        return "step" + str(event["name"]).partition("#")[2]

    @staticmethod
    def _table(
        source: Path, target: Path, change: Callable[[list[dict[str, str]]], Iterator[dict[str, str]]]
    ) -> None:
        with source.open(newline="", encoding="utf-8") as text:
            reader = csv.DictReader(text)
            rows, names = list(reader), list(reader.fieldnames or ())
        with target.open("w", newline="", encoding="utf-8") as text:
            writer = csv.DictWriter(text, names)
            writer.writeheader()
            writer.writerows(change(rows))

    def _sums(self, rows: list[dict[str, str]], column: str) -> Iterator[dict[str, str]]:
        for row in rows:
            yield row | {
                "Count": str(int(row["Count"]) * self.times), column: str(Decimal(row[column]) * self.times)
            }


@dataclass(frozen=True)
class _Moved:
    times: int
    start: Decimal
    period: Decimal
    calls: int
    step: int

    def copies(self, at: Decimal) -> range:
        """Copies in which something at a time appears."""
        if at < self.start:
            return range(1)
        return range(self.times) if at < self.start + self.period else range(self.times - 1, self.times)

    def events(self, events: list[Event]) -> Iterator[Event]:
        for event in events:
            if "ts" not in event:
                yield event
                continue
            at = Decimal(event["ts"])
            if at < self.start and at + Decimal(str(event.get("dur", 0))) > self.start + self.period:
                # A frame of the host around the whole step is around all of them.
                yield event | {"dur": float(Decimal(str(event["dur"])) + (self.times - 1) * self.period)}
                continue
            for number in self.copies(at):
                yield self._event(event, number)

    def _event(self, event: Event, number: int) -> Event:
        shift = number * self.period
        made = event | {"ts": str(Decimal(event["ts"]) + shift), "name": self._name(str(event["name"]), number)}
        if event["ph"] in "sf":
            made["id"] = self._id(event, number)
            if event["name"].startswith("HostToDevice"):
                made["name"] = f"HostToDevice{made['id']}"
        args = event.get("args")
        if isinstance(args, dict):
            args = dict(args)
            for key, step in (
                ("connection_id", IDS), ("correlation_id", IDS), ("Sequence number", IDS), ("Python id", 10 * IDS),
                ("Python parent id", 10 * IDS),
            ):  # fmt: skip
                value = args.get(key)
                if isinstance(value, int) and value >= 0:
                    wide = key == "connection_id" and value >= 1 << 32
                    args[key] = value + (number * IDS << 32 if wide else number * step)
            made["args"] = args
        return made

    def _id(self, event: Event, number: int) -> str | int:
        value = int(event["id"])
        if event.get("cat") == "async_npu":
            value += int(number * self.period * 1000)  # the start of the device's task in ns
        elif value >= 1 << 32:
            value += number * IDS << 32
        else:
            value += number * IDS
        return value if isinstance(event["id"], int) else str(value)

    def _name(self, name: str, number: int) -> str:
        if name.startswith("ProfilerStep#"):
            return f"ProfilerStep#{self.step + number}"
        if found := _COLLECTIVE.match(name):
            return f"{found[1]}_{int(found[2]) + number * self.calls}_{found[3]}"
        return name

    def rows(self, rows: list[dict[str, str]], column: str) -> Iterator[dict[str, str]]:
        made: list[tuple[Decimal, dict[str, str]]] = []
        for row in rows:
            at = Decimal(row[column].strip())
            for number in self.copies(at):
                copy = dict(row)
                for name, cell in row.items():
                    is_time = "Time(us)" in name or name == "Timestamp(us)"
                    if is_time and re.fullmatch(r"\d{16}\.\d+", cell.strip()):
                        copy[name] = f"{Decimal(cell.strip()) + number * self.period}\t"
                if row.get("Step Id"):
                    copy["Step Id"] = str(int(row["Step Id"]) + number)
                if "Name" in row:
                    copy["Name"] = self._name(row["Name"], number)
                made.append((at + number * self.period, copy))
        made.sort(key=lambda item: item[0])
        for _, copy in made:
            yield copy

    def steps(self, rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
        for number in range(self.times):
            for row in rows:
                yield row | {"Step": str(int(row["Step"]) + number)}

    def communication(self, whole: dict[str, Any]) -> dict[str, Any]:
        (step,) = whole.values()
        return {f"step{self.step + number}": self._renamed(step, number) for number in range(self.times)}

    def _renamed(self, part: Any, number: int) -> Any:
        if not isinstance(part, dict):
            return part
        made = {}
        for key, value in part.items():
            name, at, group = key.partition("@")
            key = f"{self._name(name, number)}{at}{group}"
            if key == "Start Timestamp(us)":
                made[key] = value + float(number * self.period)
            elif key == "Op Name":
                made[key] = self._name(value, number)
            else:
                made[key] = self._renamed(value, number)
        return made
