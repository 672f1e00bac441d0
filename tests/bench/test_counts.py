"""Counts of a step from a trace, against counts by hand; the fingerprint of machines that are described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ascend_perf.bench.counts import _outermost, counts_of, counts_of_trace
from ascend_perf.bench.fingerprint import fingerprint
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.devices import Inventory, SeenDevice
from ascend_perf.model.finding import Metric
from ascend_perf.model.result import MUST_AGREE
from ascend_perf.model.run import Manifest
from ascend_perf.model.table import Kind, Table, TableSpec, Text, Values
from ascend_perf.model.tables import (
    COMM_OPS,
    COPIES,
    HOST_OPS,
    KERNELS,
    MEMORY_BLOCKS,
    RUNTIME_CALLS,
    STEPS,
)
from ascend_perf.model.trace import Trace


def table(spec: TableSpec, **columns: Sequence[object]) -> Table:
    made: dict[str, Values] = {}
    for name, values in columns.items():
        if spec.column(name).kind is Kind.TEXT:
            made[name] = Text.of([None if value is None else str(value) for value in values])
        else:
            made[name] = np.array(values, np.int64)
    return Table(spec, made)


def trace(**sizes: Sequence[int]) -> Trace:
    """Two steps [0, 100) and [100, 200); all that counts lies in the second."""
    tables = [
        table(STEPS, step_id=[1, 2], start_ns=[0, 100], dur_ns=[100, 100]),
        table(HOST_OPS, start_ns=[10, 110, 112, 130, 110], dur_ns=[5, 10, 3, 5, 2], name=["a", "b", "c", "d", "e"],
              thread=[1, 1, 1, 1, 2]),
        table(KERNELS, start_ns=[20, 120, 125, 130], dur_ns=[2, 2, 2, 2], name=["k", "k", "k", "m"],
              step_id=[1, 2, 2, 2], launch_start_ns=[11, 111, 111, 131], op_type=["MatMul"] * 4,
              input_shapes=["2,3;3,4"] * 4, input_dtypes=["FLOAT16;FLOAT16"] * 4, output_shapes=["2,4"] * 4,
              output_dtypes=["FLOAT16"] * 4, input_formats=["ND;ND"] * 4, output_formats=["ND"] * 4),
        table(COMM_OPS, start_ns=[30, 140, 150], dur_ns=[1, 1, 1], name=["x", "y", "z"], op=["allReduce"] * 3,
              step_id=[1, 2, 2], size_bytes=sizes.get("comm", [8, 16, 32])),
        table(COPIES, start_ns=[160], dur_ns=[1], kind=["H2D"], size_bytes=[64], step_id=[2]),
        table(RUNTIME_CALLS, start_ns=[40, 170, 180], dur_ns=[1, 1, 1],
              api=["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaLaunchKernel"], layer=["cuda"] * 3,
              thread=[1, 1, 1]),
        table(MEMORY_BLOCKS, name=["a", "b"], size_bytes=[512, 1024], alloc_ns=[50, 150], free_ns=[60, 160]),
    ]  # fmt: skip
    return Trace(tables={one.spec.name: one for one in tables})


def test_the_last_step_is_counted() -> None:
    assert counts_of_trace(trace()) == {
        "host_ops_all": 4,  # b, c, d, e
        "host_ops": 3,  # b holds c; e is of another thread
        "kernels": 3,
        "launches": 2,  # two kernels of one launch
        "kernel_flops": 3 * 2 * 2 * 3 * 4,
        "kernel_bytes": 3 * 2 * (2 * 3 + 3 * 4 + 2 * 4),
        "collectives": 2,
        "collective_bytes": 16 + 32,
        "copies": 1,
        "copy_bytes": 64,
        "host_syncs": 1,
        "allocations": 1,
        "allocated_bytes": 1024,
    }


def test_a_sum_of_which_a_part_is_unknown_is_left_out() -> None:
    counts = counts_of_trace(trace(comm=[8, 16, np.iinfo(np.int64).min]))

    assert counts["collectives"] == 2
    assert "collective_bytes" not in counts
    assert counts_of_trace(Trace()) == {}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(0, 1)), max_size=12))
def test_outermost_operators_are_those_that_no_earlier_one_holds(ops: list[tuple[int, int, int]]) -> None:
    # Nested as a thread's calls are: each ends before the one around it.
    kept: list[tuple[int, int, int]] = []
    for start, length, thread in sorted(ops, key=lambda one: (one[0], -one[1])):
        around = [(s, n) for s, n, t in kept if t == thread and s <= start < s + n]
        if all(start + length <= s + n for s, n in around):
            kept.append((start, length, thread))
    made = table(HOST_OPS, start_ns=[s for s, _, _ in kept], dur_ns=[n for _, n, _ in kept], name=["x"] * len(kept),
                 thread=[t for _, _, t in kept])  # fmt: skip

    outer = _outermost(made, np.arange(len(kept)))

    for index, (start, length, thread) in enumerate(kept):
        held = any(
            t == thread and s <= start and start + length <= s + n
            for at, (s, n, t) in enumerate(kept) if at < index
        )  # fmt: skip
        assert outer[index] == (not held)


def test_a_run_without_a_trace_has_the_counts_of_its_metrics(tmp_path: Path) -> None:
    metrics = tuple(
        Metric(name=name, value=value, unit="none", better="none")
        for name, value in {
            "model_flops_per_step": 7.0, "memory_weights": 5.0, "communication_per_step": 3.0,
            "peak_device_memory": 2.0, "step_time_median": 9.0, "memory_cache": None,
        }.items()
    )  # fmt: skip

    counts, notes = counts_of(tmp_path, Manifest(workload="w", device="cpu", data_origin="measured", created="",
                                                 metrics=metrics))  # fmt: skip

    assert counts == {"model_flops": 7, "memory_weights": 5, "sent_bytes": 3, "memory_peak": 2}
    assert notes == ("no trace: kernels, launches and collectives were not counted",)


def machine(root: Path, *devices: SeenDevice, files: Mapping[str, str] | None = None, torch: str = "2.5.1") -> Machine:
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    tools = root / "tools"
    tools.mkdir(exist_ok=True)
    cpu = SeenDevice(type="cpu", index=0, name="Kunpeng-920", cores=96, memory_bytes=1 << 39)
    inventory = Inventory(devices=(*devices, cpu), torch_version=torch, torch_npu_version=None)
    return Machine(
        root=root, environment={"PATH": f"{tools}:/usr/bin:/bin"}, package=lambda name: None, torch=lambda: inventory,
        python="3.11.9", architecture="aarch64", is_here=False,
    )  # fmt: skip


def tool(root: Path, name: str, script: str) -> None:
    (root / "tools").mkdir(exist_ok=True)
    path = root / "tools" / name
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)


def test_a_cpu_tells_clock_limit_and_temperature(tmp_path: Path) -> None:
    files = {
        "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "2600000\n",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw": "125000000\n",
        "/sys/class/thermal/thermal_zone0/temp": "41000\n", "/sys/class/thermal/thermal_zone1/temp": "55500\n",
        "/proc/1/cgroup": "12:cpu:/kubepods/besteffort/pod1\n",
    }  # fmt: skip

    facts = fingerprint("auto", machine=machine(tmp_path, files=files))

    assert set(MUST_AGREE) <= set(facts)
    assert {name: facts[name] for name in ("kind", "chip", "chip_count", "cpu", "cpu_cores", "clock_hz",
                                           "power_cap_watt", "temperature_celsius", "container", "torch")} == {
        "kind": "cpu", "chip": "Kunpeng-920", "chip_count": 1, "cpu": "Kunpeng-920", "cpu_cores": 96,
        "clock_hz": 2_600_000_000, "power_cap_watt": 125.0, "temperature_celsius": 55.5, "container": "kubernetes",
        "torch": "2.5.1",
    }  # fmt: skip


def test_a_gpu_tells_driver_clock_and_power_cap_and_unknown_is_none(tmp_path: Path) -> None:
    gpus = [SeenDevice(type="cuda", index=n, name="NVIDIA A100", memory_bytes=80 << 30) for n in range(2)]
    here = machine(tmp_path, *gpus, torch="2.5.1+cu124")
    bare = fingerprint("cuda", machine=here)
    tool(tmp_path, "nvidia-smi", "echo '550.54.15, 92.00, 1410, 400.00, 35'; echo '550.54.15, 92.00, 1410, [N/A], 61'")

    facts = fingerprint("cuda", machine=here)

    assert (facts["chip"], facts["chip_count"], facts["cuda"]) == ("NVIDIA A100", 2, "12.4")
    assert facts["driver"] == "550.54.15"
    assert (facts["clock_hz"], facts["power_cap_watt"], facts["temperature_celsius"]) == (1_410_000_000, 400.0, 61.0)
    assert (bare["driver"], bare["clock_hz"], bare["container"]) == (None, None, "none")
    tool(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9")
    assert fingerprint("cuda", machine=here)["driver"] is None


def test_a_device_that_is_not_there_leaves_its_facts_unknown(tmp_path: Path) -> None:
    facts = fingerprint("npu", machine=machine(tmp_path))

    assert (facts["kind"], facts["chip"], facts["chip_count"]) == (None, None, None)
    assert facts["cpu"] == "Kunpeng-920"


def test_an_npu_tells_driver_and_temperature(tmp_path: Path) -> None:
    from tests.collectors._npu_smi_texts import A2, box, common_of_one

    (tmp_path / "box.txt").write_text(box(A2, "24.1.rc3"), "utf-8")
    (tmp_path / "common.txt").write_text(common_of_one(A2[0]), "utf-8")
    npus = [SeenDevice(type="npu", index=n, name="Ascend910B2") for n in range(2)]
    here = machine(tmp_path, *npus, files={"/usr/local/Ascend/driver/version.info": "Version=24.1.rc3\n"})
    tool(tmp_path, "npu-smi", f"[ $# = 1 ] && cat {tmp_path}/box.txt || cat {tmp_path}/common.txt")

    facts = fingerprint("npu", machine=here)

    assert (facts["kind"], facts["chip"], facts["chip_count"]) == ("npu", "Ascend910B2", 2)
    assert facts["driver"] == "24.1.rc3"
    assert (facts["temperature_celsius"], facts["clock_hz"]) == (57, 1_800_000_000)
