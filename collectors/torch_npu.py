"""The profiler of torch_npu behind the steps of `torch_profiler.collect`: Level1, PipeUtilization, text export.

Written from the public source of torch_npu 5.0 to 26.1, tested with the real torch_npu on a virtual NPU; not yet run on
a device.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ascend_perf.collectors.environment import VIRTUAL_NPU
from ascend_perf.errors import MachineError

if TYPE_CHECKING:
    from ascend_perf.collectors.torch_profiler import Options, Steps

GC_THRESHOLD_MS: Final = 1.0
"""Collections of Python's garbage shorter than this are not recorded. Status: vendor (documented as sensible)."""


class NpuRecorder:
    """Records with `torch_npu.profiler`; leaves one `rank<N>_*_ascend_pt` directory in the folder."""

    def __init__(self, folder: Path, profiled_steps: int, options: Options, rank: int = 0) -> None:
        from torch_npu import profiler

        self._folder = folder
        self._is_virtual = bool(os.environ.get(VIRTUAL_NPU))
        self._worker = f"rank{rank}"  # named by us: the default name begins with the host's
        self.profiler: Steps = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
            schedule=profiler.schedule(wait=0, warmup=1, active=profiled_steps, repeat=1),
            on_trace_ready=profiler.tensorboard_trace_handler(
                str(folder), worker_name=self._worker, analyse_flag=not self._is_virtual
            ),
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=options.with_stack,
            experimental_config=experimental_config(),
        )

    def written(self) -> str:
        """Name of the directory, relative to the folder. Of a virtual NPU it is raw data, which is exported later.

        Raises:
            MachineError: there is none or it was not parsed; torch_npu itself raises nothing when profiling fails.
        """
        found = sorted(self._folder.glob(f"{self._worker}_*_ascend_pt"))
        if not found:
            raise MachineError("torch_npu's profiler wrote no *_ascend_pt directory", hint="see its lines above")
        if not self._is_virtual and not (found[-1] / "ASCEND_PROFILER_OUTPUT").is_dir():
            raise MachineError(
                "torch_npu's profiler wrote raw data but could not parse it",
                hint="source set_env.sh of the CANN toolkit: the parser needs `msprof` on the PATH",
            )
        return found[-1].name


def experimental_config() -> object:
    """Level1 with PipeUtilization counters; options that this release does not know are left out.

    Source:
        format reference for collectors, section 2.3: fields of _ExperimentalConfig by release.
    """
    from torch_npu import profiler

    wanted = {
        "profiler_level": profiler.ProfilerLevel.Level1,
        "aic_metrics": profiler.AiCMetrics.PipeUtilization,
        "l2_cache": False,
        "data_simplification": False,
        "record_op_args": False,
        "gc_detect_threshold": GC_THRESHOLD_MS,
    }
    if hasattr(profiler, "ExportType"):
        wanted["export_type"] = profiler.ExportType.Text
    known = inspect.signature(profiler._ExperimentalConfig.__init__).parameters
    return profiler._ExperimentalConfig(**{name: value for name, value in wanted.items() if name in known})
