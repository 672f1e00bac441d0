"""Memory of an NPU that is in use before a program starts: driver and services hold some GB of HBM on an idle card.

Source: collector reference, section 3.3: about 3 GB of 32 GB, about 4 GB of 64 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ascend_perf.collectors import npu_smi
from ascend_perf.collectors._ascend_install import NPU_SMI
from ascend_perf.collectors._machine import Machine
from ascend_perf.collectors.device_telemetry import DeviceSample
from ascend_perf.model.finding import Metric


def in_use(machine: Machine) -> dict[str, int]:
    """Bytes in use by device (npu<logic id>), from the summary of npu-smi, which tells MB where others tell percent.
    Empty without it. Two processes, about 0.1 s each."""
    tool = machine.tool("npu-smi", *NPU_SMI)
    if tool is None:
        return {}
    names = {(chip.npu, chip.chip): chip.logic_id for chip in npu_smi.mapping(machine.run([tool, "info", "-m"]).text)}
    chips = npu_smi.box(machine.run([tool, "info"]).text).chips
    return {
        f"npu{names[chip.npu, chip.chip]}": chip.reading.memory_used_bytes
        for chip in chips
        if (chip.npu, chip.chip) in names and chip.reading.memory_used_bytes is not None
    }


def metrics_of(samples: Iterable[DeviceSample], idle: Mapping[str, int]) -> tuple[Metric, ...]:
    """`idle_device_memory`: in use before the start, of the device that held most; `device_memory_above_idle`: most
    that a device held in the samples, less what it held before the start.

    The samples are whole percents of the memory (npu-smi), so that the difference is as fine as that.
    """
    if not idle:
        return ()
    above = [
        max(0, sample.memory_used_bytes - idle[sample.device])
        for sample in samples
        if sample.memory_used_bytes is not None and sample.device in idle
    ]
    found = [Metric(name="idle_device_memory", value=max(idle.values()), unit="bytes", better="none")]
    if above:
        found.append(Metric(name="device_memory_above_idle", value=max(above), unit="bytes", better="lower"))
    return tuple(found)
