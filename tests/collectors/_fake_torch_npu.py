"""A stand-in for torch_npu's profiler that behaves as the format reference says: it raises nothing, warns in a line of
its output and takes another value, knows only the fields of its generation, and leaves raw data in one directory per
rank. Written as a package, so that other processes can import it.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = '''
import enum, os, sys, time
from pathlib import Path
from types import SimpleNamespace

GENERATION = "@GENERATION@"
CALLS = []

def _warn(text):
    print(f"[2026-04-07 10:15:32] [WARNING] [{os.getpid()}] profiler.py: {text}")

class ProfilerActivity(enum.Enum):
    CPU = "cpu"
    NPU = "npu"

class ProfilerLevel(enum.Enum):
    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"

class AiCMetrics(enum.Enum):
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    AiCoreNone = "ACL_AICORE_NONE"

class ExportType(enum.Enum):
    Text = "text"
    Db = "db"

class HostSystem(enum.Enum):
    CPU = "cpu"
    MEM = "mem"

def _made(self, given):
    given.pop("self")
    self.__dict__.update(given)
    if self.profiler_level in (ProfilerLevel.Level0, ProfilerLevel.Level_none) and (
        self.aic_metrics is not AiCMetrics.AiCoreNone
    ):
        _warn("Please use Level1 or Level2 if you want to collect aic metrics, reset aic metrics to None!")
        self.aic_metrics = AiCMetrics.AiCoreNone

if GENERATION == "5.0":
    class _ExperimentalConfig:
        def __init__(self, profiler_level=ProfilerLevel.Level0, aic_metrics=AiCMetrics.AiCoreNone, l2_cache=False,
                     data_simplification=None, record_op_args=False):
            _made(self, dict(locals()))
elif GENERATION == "7.0":
    class _ExperimentalConfig:
        def __init__(self, profiler_level=ProfilerLevel.Level0, aic_metrics=AiCMetrics.AiCoreNone, l2_cache=False,
                     data_simplification=True, record_op_args=False, export_type=None, msprof_tx=False, op_attr=False,
                     gc_detect_threshold=None):
            _made(self, dict(locals()))
else:
    class _ExperimentalConfig:
        def __init__(self, profiler_level=ProfilerLevel.Level0, aic_metrics=AiCMetrics.PipeUtilization,
                     l2_cache=False, data_simplification=True, record_op_args=False, export_type=ExportType.Text,
                     mstx=False, op_attr=False, gc_detect_threshold=None, host_sys=[], mstx_domain_include=[],
                     mstx_domain_exclude=[], sys_io=False, sys_interconnection=False):
            _made(self, dict(locals()))

def schedule(wait, active, warmup=0, repeat=0, skip_first=0):
    if warmup == 0:
        _warn("Profiler won't be using warmup, this can skew profiler results")
    return SimpleNamespace(wait=wait, active=active, warmup=warmup, repeat=repeat)

def tensorboard_trace_handler(dir_name=None, worker_name=None, analyse_flag=True, async_mode=False):
    return SimpleNamespace(folder=dir_name, worker=worker_name, analyse=analyse_flag)

class profile:
    def __init__(self, *, activities=None, schedule=None, on_trace_ready=None, record_shapes=False,
                 profile_memory=False, with_stack=False, with_flops=False, with_modules=False,
                 experimental_config=None, use_cuda=None):
        self.given = dict(locals())
        CALLS.append(self)
        self.handler, self.schedule = on_trace_ready, schedule
        self.steps, self.done = 0, False

    def _guarded(self):
        if "PROFILER_SAMPLECONFIG" in os.environ:
            _warn("If performance data is collected using the 'msprof' tool. torch_npu profiler api is not effective.")
            return False
        return True

    def start(self):
        self._guarded()

    def step(self):
        self.steps += 1
        if self.schedule is not None and self.steps == self.schedule.warmup + self.schedule.active:
            self._write()

    def stop(self):
        if not self.done:
            self._write()

    def _write(self):
        self.done = True
        if not self._guarded() or os.environ.get("FAKE_NPU_SILENT"):
            print(f"[2026-04-07 10:15:32] [ERROR] [{os.getpid()}] profiler.py: Failed to start profiler")
            return
        path = Path(self.handler.folder) / f"{self.handler.worker}_20260407101532881_ascend_pt"
        data = path / "PROF_000001_20260407101532881_00412207KQMBRACD" / "device_0" / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "raw.slice_0").write_bytes(b"raw" * 100)
        (path / "profiler_info_0.json").write_text("{}")
'''

PARSER = '''
import shutil, sys
from pathlib import Path

def analyse(profiler_path, max_process_number=1, export_type=None):
    """As the real one: it prints its errors and returns."""
    output = Path(profiler_path) / "ASCEND_PROFILER_OUTPUT"
    if (Path(profiler_path) / "broken").exists():
        print("[2026-04-07 10:15:32] [ERROR] [1] profiler.py: Failed to parse the raw data")
        return
    output.mkdir(exist_ok=True)
    (output / "trace_view.json").write_text("[]")
    if shutil.which("msprof") is None:
        print("Export CANN Profiling data failed! 'msprof' command not found!Please re-source the CANN package to fix "
              "this error.")
        return
    (output / "kernel_details.csv").write_text("Step Id,Name\\n1,MatMul\\n")
'''


def install(folder: Path, generation: str = "26.1", version: str = "2.7.1.post8") -> Path:
    """Write the package below a folder, which then has to stand on the path; returns the folder."""
    package = folder / "torch_npu"
    (package / "profiler").mkdir(parents=True)
    (package / "__init__.py").write_text("from torch_npu import profiler\n")
    (package / "profiler" / "__init__.py").write_text(PACKAGE.replace("@GENERATION@", generation))
    (package / "profiler" / "profiler.py").write_text(PARSER)
    info = folder / f"torch_npu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n")
    return folder
