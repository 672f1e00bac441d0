"""Calibration of the virtual NPU's cost model on kernels of real profiles: constants from one group of profiles, errors
on the others.

python -m benchmarks.calibrate_virtual_npu                 errors of the constants as they are
python -m benchmarks.calibrate_virtual_npu --fit           constants fitted anew, and their errors
python -m benchmarks.calibrate_virtual_npu --fit --write   the same, written into cost_model.yaml
python -m benchmarks.calibrate_virtual_npu --shapes matmul every distinct call of a class, real and modelled
python -m benchmarks.calibrate_virtual_npu --collectives   the same for collectives

The profiles are those of ASCEND_PERF_TRACES (or ../shared/traces). A call is an op type with its shapes and dtypes; its
real time is the median over its repetitions, and medians of errors weigh every repetition, as a step does.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from ascend_perf.collectors.virtual_npu._cost_native import NativeCost
from ascend_perf.collectors.virtual_npu.cost import FILE, CostModel, Ratio, cost_lines, cost_model, table_lines
from ascend_perf.collectors.virtual_npu.settings import VirtualNpu
from benchmarks.npu_collectives import show_collectives
from benchmarks.npu_kernels import SETS, Call, KernelSet, read_calls, spec_of, traces_folder

MIN_OWN_RATIO: Final = 8
"""Held-out calls from which a class gets its uncertainty from these alone; with fewer, all calls count."""
NARROWEST: Final = (0.9, 1.1)
NARROWEST_OF_FEW: Final = (0.75, 1.35)
"""Uncertainty is never written narrower than this, the second where it comes from fewer than MIN_OWN_RATIO calls: few
shapes agree by chance, and say nothing of others."""


SHARED: Final[Mapping[str, str]] = {
    "batch_matmul": "matmul", "trigonometric": "elementwise", "activation": "elementwise",
    "activation_backward": "elementwise", "rope": "elementwise",
}  # fmt: skip
"""Classes that take the constants marked "as ..." in the file from another class."""
FITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "matmul": ("fixed_ns", "cube_efficiency", "outer_efficiency", "l2_efficiency", "write_efficiency"),
    "conv": ("fixed_ns", "fp32_efficiency"),
    "attention": ("cycles_per_pair", "cycles_per_extra"), "attention_backward": ("cycles_per_pair",),
    "norm": ("fixed_ns", "cycles_per_element"), "norm_backward": ("fixed_ns", "cycles_per_element"),
    "elementwise": ("fixed_ns", "growth_ns", "hbm_efficiency", "l2_efficiency"),
    "trigonometric": ("cycles_per_element",), "foreach": ("hbm_efficiency", "l2_efficiency"),
    "activation": ("l2_efficiency",), "activation_backward": ("hbm_efficiency",),
    "rope": ("l2_efficiency", "cycles_per_element"),
    "reduction": ("fixed_ns", "growth_ns", "hbm_efficiency", "l2_efficiency"),
    "softmax": ("fixed_ns",), "loss": ("fixed_ns",),
    "cast": ("fixed_ns", "growth_ns", "hbm_efficiency", "l2_efficiency"),
    "copy": ("fixed_ns", "growth_ns", "hbm_efficiency", "l2_efficiency"),
    "fill": ("fixed_ns", "hbm_efficiency", "l2_efficiency"), "range": ("fixed_ns",),
    "format": ("fixed_ns", "hbm_efficiency", "l2_efficiency"),
    "slice": ("fixed_ns", "growth_ns", "l2_efficiency"), "join": ("fixed_ns", "growth_ns", "l2_efficiency"),
    "gather": ("cycles_per_element",), "scatter": ("cycles_per_element",),
    "optimizer": ("fixed_ns", "hbm_efficiency", "l2_efficiency"), "random": ("fixed_ns",),
    "pooling": ("fixed_ns", "l2_efficiency"), "sort": ("fixed_ns",), "nonzero": ("fixed_ns",),
    "transpose": ("fixed_ns",),
}  # fmt: skip
"""Constants that --fit chooses, by class; those of classes without kernels in the fit sets stay."""
LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "fixed_ns": (500.0, 60_000.0), "growth_ns": (1.0, 150.0), "cube_efficiency": (0.05, 0.95),
    "outer_efficiency": (0.05, 0.95), "fp32_efficiency": (0.05, 2.0), "hbm_efficiency": (0.02, 1.15),
    "l2_efficiency": (0.02, 2.0), "write_efficiency": (0.02, 4.0), "cycles_per_pair": (1.0, 300.0),
    "cycles_per_extra": (0.1, 300.0), "cycles_per_element": (0.1, 500_000.0),
}  # fmt: skip
FIXED_NS: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(
        ("elementwise", "cast", "copy", "fill", "slice", "join", "norm", "optimizer", "reduction"), (500.0, 4_000.0)
    ),
    "transpose": (500.0, 10_000.0), "pooling": (500.0, 20_000.0), "norm_backward": (500.0, 20_000.0),
    "conv": (3_000.0, 20_000.0),
}  # fmt: skip
"""Narrower limits of fixed costs. The shortest kernels of one pass take 1 to 2 us in all profiles: a larger fixed cost
would only hide what else is wrong, and a fit set without large operands cannot tell."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How far the model is off for some calls."""

    calls: int
    kernels: int
    median_ratio: float
    """Of |modelled - real| / real, over kernels."""
    total_ratio: float
    """Modelled total over real total, minus 1."""
    real_ns: float


def modelled_ns(native: NativeCost, calls: Iterable[Call]) -> list[float]:
    """Modelled time of calls, on the device that is loaded."""
    return [native.time(call.class_name, call.work).ns for call in calls]


def errors_of(calls: Sequence[Call], modelled: Sequence[float]) -> Errors:
    """Median and total error; the median weighs every kernel."""
    if not calls:
        return Errors(calls=0, kernels=0, median_ratio=math.nan, total_ratio=math.nan, real_ns=0.0)
    counts = np.array([call.count for call in calls])
    real, model = np.array([call.ns for call in calls]), np.array(modelled)
    off = np.repeat(np.abs(model - real) / real, counts)
    return Errors(
        calls=len(calls), kernels=int(counts.sum()), median_ratio=float(np.median(off)),
        total_ratio=float((model * counts).sum() / (real * counts).sum() - 1), real_ns=float((real * counts).sum()),
    )  # fmt: skip


class Calibration:
    """All calls of all sets, and a compiled model for the chip of each."""

    def __init__(self, folder: Path, model: CostModel) -> None:
        self.model = model
        self.calls: dict[str, list[Call]] = {}
        self.left_out: dict[str, int] = {}
        self.ranges: dict[tuple[str, str], tuple[float, float]] = {}
        for kernel_set in SETS:
            self.calls[kernel_set.name], self.left_out[kernel_set.name] = read_calls(folder, kernel_set, model)
        # A library holds one table: each chip gets a library of its own.
        self._natives = {device: NativeCost() for device in sorted({item.device for item in SETS})}
        self._reload()

    def _reload(self) -> None:
        for device, native in self._natives.items():
            native.load(table_lines(self.model, spec_of(device), link_bytes_per_s=None, node_link_bytes_per_s=None))

    def modelled(self, kernel_set: KernelSet) -> list[float]:
        """Modelled time of each call of a set."""
        return modelled_ns(self._natives[kernel_set.device], self.calls[kernel_set.name])

    def fit(self) -> None:
        """Choose the constants of FITTED so that the calls of the fit sets are met."""
        for name in sorted(FITTED, key=lambda item: item in SHARED):
            heirs = [other for other, base in SHARED.items() if base == name]
            groups = [
                (self._natives[kernel_set.device], self._of_class(kernel_set, name))
                for kernel_set in SETS if kernel_set.fits or name in kernel_set.also
            ]  # fmt: skip
            groups = [(native, calls) for native, calls in groups if calls]
            if not groups:
                continue

            def loss(values: Mapping[str, float], name: str = name, groups: _Groups = groups) -> float:
                return loss_of(values, name, groups)

            start = {key: self.model.classes[name].constants[key].value for key in FITTED[name]}
            limits = {**LIMITS, "fixed_ns": FIXED_NS.get(name, LIMITS["fixed_ns"])}
            chosen = descend(loss, start, limits)
            self.ranges |= {(name, key): bounds for key, bounds in ranges_of(loss, chosen).items()}
            self._set(name, chosen)
            for other in heirs:
                taken = {key for key, old in self.model.classes[other].constants.items() if old.note == f"as {name}"}
                self._set(other, {key: value for key, value in chosen.items() if key in taken})
            self._reload()

    def _of_class(self, kernel_set: KernelSet, name: str) -> list[Call]:
        return [call for call in self.calls[kernel_set.name] if call.class_name == name]

    def _set(self, name: str, values: Mapping[str, float]) -> None:
        old = self.model.classes[name]
        constants = {
            key: replace(constant, value=values.get(key, constant.value)) for key, constant in old.constants.items()
        }  # fmt: skip
        self.model = replace(self.model, classes={**self.model.classes, name: replace(old, constants=constants)})

    def ratios(self) -> dict[str, Ratio]:
        """Uncertainty of each class: 10th to 90th percentile of real over modelled, each distinct call once; of few
        calls the least and the largest.

        From the sets that are no repetition of a fitted one where they hold enough calls of the class, else from all.
        """
        held: dict[str, list[float]] = defaultdict(list)
        every: dict[str, list[float]] = defaultdict(list)
        for kernel_set in SETS:
            for call, ns in zip(self.calls[kernel_set.name], self.modelled(kernel_set), strict=True):
                every[call.class_name].append(call.ns / ns)
                if is_held_out(kernel_set, call.class_name):
                    held[call.class_name].append(call.ns / ns)
        found = {}
        for name, values in every.items():
            chosen = held[name] if len(held[name]) >= MIN_OWN_RATIO else values
            are_few = len(chosen) < MIN_OWN_RATIO
            low, high = (min(chosen), max(chosen)) if are_few else np.percentile(chosen, [10, 90])
            least = NARROWEST_OF_FEW if are_few else NARROWEST
            found[name] = Ratio(low=min(float(low), least[0]), high=max(float(high), least[1]), kernels=len(chosen))
        return found

    def errors(self, names: Iterable[str], class_names: Iterable[str] | None = None) -> Errors:
        """Errors over some sets, of some classes (all when None)."""
        wanted = None if class_names is None else set(class_names)
        calls: list[Call] = []
        modelled: list[float] = []
        for kernel_set in SETS:
            if kernel_set.name not in names:
                continue
            for call, ns in zip(self.calls[kernel_set.name], self.modelled(kernel_set), strict=True):
                if wanted is None or call.class_name in wanted:
                    calls.append(call)
                    modelled.append(ns)
        return errors_of(calls, modelled)


_Groups = Sequence[tuple[NativeCost, list[Call]]]


def is_held_out(kernel_set: KernelSet, class_name: str) -> bool:
    """Whether a set is an independent proof for a class."""
    return not kernel_set.fits and not kernel_set.repeats and class_name not in kernel_set.also


def loss_of(values: Mapping[str, float], name: str, groups: _Groups) -> float:
    """Mean of |ln(modelled / real)|: half weighed by the number of kernels, half by their time."""
    logs: list[float] = []
    weights: list[float] = []
    times: list[float] = []
    for native, calls in groups:
        native.set_class(name, values)
        logs += [abs(math.log(ns / call.ns)) for ns, call in zip(modelled_ns(native, calls), calls, strict=True)]
        # The root: a call that comes a hundred times is not a hundred times better known.
        weights += [math.sqrt(call.count) for call in calls]
        times += [call.count * call.ns for call in calls]
    return float(np.average(logs, weights=weights) + np.average(logs, weights=times)) / 2


def descend(
    loss: Callable[[Mapping[str, float]], float],
    start: Mapping[str, float],
    limits: Mapping[str, tuple[float, float]] = LIMITS,
) -> dict[str, float]:
    """A minimum by changing one value after the other by ever smaller factors, within limits; deterministic."""
    best = {key: min(max(value, limits[key][0]), limits[key][1]) for key, value in start.items()}
    least = loss(best)
    for factor in (4.0, 2.0, 1.5, 1.25, 1.1, 1.05, 1.02, 1.01):
        improved = True
        while improved:
            improved = False
            for key in best:
                for step in (factor, 1 / factor):
                    tried = {**best, key: min(max(best[key] * step, limits[key][0]), limits[key][1])}
                    value = loss(tried)
                    if value < least * (1 - 1e-6):
                        best, least, improved = tried, value, True
    return best


def ranges_of(
    loss: Callable[[Mapping[str, float]], float], chosen: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """How far each value can move before the loss grows by a tenth and 0.02; within a factor of ten."""
    limit = loss(chosen) * 1.1 + 0.02
    found = {}
    for key, value in chosen.items():
        ends = []
        for step in (1 / 1.01, 1.01):
            end = value
            while 0.1 < end * step / value < 10 and loss({**chosen, key: end * step}) <= limit:
                end *= step
            ends.append(end)
        found[key] = (ends[0], ends[1])
    loss(chosen)
    return found


def write_constants(text: str, calibration: Calibration) -> str:
    """The text of cost_model.yaml with the fitted values and the ratios of a calibration; the rest stays as it is."""
    lines, ratios, name = [], calibration.ratios(), ""
    in_classes = False
    for line in text.split("\n"):
        if re.match(r"\S", line) and not line.startswith("#"):
            in_classes = line.startswith("classes:")
        if in_classes and (head := re.fullmatch(r"  (\w+):", line)):
            name = head[1]
        elif in_classes and (entry := re.fullmatch(r"    (\w+):( +)\{value: [^,}]+, status: fitted(.*)\}", line)):
            line = _fitted_line(calibration, name, entry)
        elif in_classes and line.startswith("    ratio:") and name in ratios:
            ratio = ratios[name]
            line = f"    ratio: {{low: {ratio.low:.3g}, high: {ratio.high:.3g}, kernels: {ratio.kernels}}}"
        lines.append(line)
    return "\n".join(lines)


def _fitted_line(calibration: Calibration, name: str, entry: re.Match[str]) -> str:
    key, blanks, rest = entry.groups()
    value = calibration.model.classes[name].constants[key].value
    base = name if key in FITTED.get(name, ()) else SHARED.get(name, name)
    sources = sorted({
        kernel_set.source for kernel_set in SETS
        if (kernel_set.fits or name in kernel_set.also)
        and any(call.class_name == base for call in calibration.calls[kernel_set.name])
    })  # fmt: skip
    if not sources:
        return entry.string
    bounds = calibration.ranges.get((base, key))
    uncertainty = f', uncertainty: "{_short(bounds[0])} to {_short(bounds[1])}"' if bounds else ""
    note = re.search(r', note: ".*"', rest)
    return (
        f"    {key}:{blanks}{{value: {_short(value)}, status: fitted, source: [{', '.join(sources)}]{uncertainty}"
        f"{note[0] if note else ''}}}"
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    """Print errors; fit and write when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="choose the constants anew")
    parser.add_argument("--write", action="store_true", help="write them into cost_model.yaml")
    parser.add_argument("--shapes", metavar="CLASS", help="every distinct call of a class")
    parser.add_argument("--collectives", action="store_true", help="every collective")
    given = parser.parse_args()
    folder = traces_folder()
    if folder is None:
        parser.error("the real profiles are not at hand: set ASCEND_PERF_TRACES")
    calibration = Calibration(folder, cost_model())
    if given.fit:
        calibration.fit()
        show_constants(calibration.model)
    show_errors(calibration)
    if given.shapes:
        show_shapes(calibration, given.shapes)
    if given.collectives:
        native = NativeCost()
        native.load(cost_lines(VirtualNpu()))
        show_collectives(folder, native)
    if given.write:
        FILE.write_text(write_constants(FILE.read_text("utf-8"), calibration), "utf-8")
        print(f"written: {FILE.name}")


def show_constants(model: CostModel) -> None:
    """Print what was fitted."""
    for name, keys in FITTED.items():
        constants = model.classes[name].constants
        print(f"{name:20}", "  ".join(f"{key} {constants[key].value:.4g}" for key in keys))


def show_errors(calibration: Calibration) -> None:
    """Print errors by set, and by class and set."""
    print("set            role      calls kernels left out  median   total   real ms")
    for kernel_set in SETS:
        found = calibration.errors([kernel_set.name])
        role = "fit" if kernel_set.fits else "repeats" if kernel_set.repeats else "held out"
        print(
            f"{kernel_set.name:14} {role:9} {found.calls:5} {found.kernels:7} {calibration.left_out[kernel_set.name]:8}"
            f" {found.median_ratio:7.1%} {found.total_ratio:+7.1%} {found.real_ns / 1e6:9.3f}"
        )
    print()
    for name in calibration.model.classes:
        for kernel_set in SETS:
            found = calibration.errors([kernel_set.name], [name])
            if found.calls:
                mark = "held out" if is_held_out(kernel_set, name) else "repeats" if kernel_set.repeats else "fit"
                print(
                    f"{name:20} {kernel_set.name:14} {mark:9} {found.calls:5} {found.kernels:7}"
                    f" {found.median_ratio:7.1%} {found.total_ratio:+7.1%} {found.real_ns / 1e6:9.3f}"
                )


def show_shapes(calibration: Calibration, name: str) -> None:
    """Print every distinct call of a class, longest first."""
    for kernel_set in SETS:
        pairs = zip(calibration.calls[kernel_set.name], calibration.modelled(kernel_set), strict=True)
        rows = [(call, ns) for call, ns in pairs if call.class_name == name]
        for call, ns in sorted(rows, key=lambda row: -row[0].ns * row[0].count):
            print(
                f"{kernel_set.name:14} x{call.count:<4} real {call.ns / 1e3:10.2f} us  model {ns / 1e3:10.2f} us"
                f"  {ns / call.ns:6.2f}  {call.op_type} {call.text[:110]}"
            )


if __name__ == "__main__":
    main()
