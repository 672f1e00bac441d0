"""A stand-in for msprof that behaves as the format reference says: how it splits words, what it refuses, the exit codes
that lie, one PROF directory per process, an export that stops at the first failure.

A program "uses the NPU" by leaving a file `<name>.process` in $FAKE_NPU: empty, or with words: `bad` (its data cannot
be exported), `host` (it used no device). The calls of the stand-in are kept in $FAKE_NPU/calls.jsonl. Other files there
describe the machine: `no-driver` (the driver fails its query), `busy` (another profiler holds the device), `slice` (a
container with a slice of an NPU).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SOURCE = '''
import csv, json, os, re, signal, subprocess, sys
from pathlib import Path

place = Path(os.environ["FAKE_NPU"])
words = sys.argv[1:]
mask = os.umask(0)
os.umask(mask)
with open(place / "calls.jsonl", "a") as file:
    file.write(json.dumps({"words": words, "variables": dict(os.environ), "mask": mask}) + "\\n")

SWITCHES = """ascendcl runtime-api ai-core aicpu l2 hccl model-execution task-memory msproftx sys-hardware-mem
sys-cpu-profiling sys-profiling sys-pid-profiling sys-io-profiling sys-interconnection-profiling dvpp-profiling
instr-profiling""".split()
OTHERS = """output type task-time aic-mode aic-freq aic-metrics ge-api host-sys host-sys-usage storage-limit delay
duration export parse query analyze rule clear reports python-path application sys-devices
sys-period llc-profiling help""".split()
METRICS = "ArithmeticUtilization PipeUtilization Memory MemoryL0 MemoryUB L2Cache ResourceConflictRatio MemoryAccess"
METRICS = METRICS.split()
USAGE = "usage: msprof [options] [app]\\n" + "\\n".join(f"      --{name}" for name in SWITCHES + OTHERS)

def say(text):
    print(text, flush=True)

def end(text, code=255):
    say(text)
    sys.exit(code)

if (place / "no-driver").exists() and words != ["--help"]:
    end("[ERROR] Init platform by driver failed!")

if words and words[0].startswith("op"):
    say("msopprof started")  # the whole call is another tool's, which always ends with 0
    sys.exit(0)
if "ASCEND_TOOLKIT_HOME" not in os.environ:
    say("[ERROR] Cannot find msopprof, Maybe you shoule source set_env.sh in advance.")

options, app = {}, []
while words:
    word = words.pop(0)
    if not word.startswith("--"):
        app = [word, *words]
        break
    name, equals, value = word[2:].partition("=")
    if name == "help":
        end(USAGE)
    if name not in SWITCHES + OTHERS:
        say(f"{sys.argv[0]}: unrecognized option '--{name}'")
        say("PlatformType:5")
        end(USAGE)
    if not equals:
        if words:
            words.pop(0)
        end(f"[ERROR] Argument --{name}: expected one argument")
    if name in SWITCHES and value not in ("on", "off"):
        end(f"[ERROR] Argument --{name}: invalid value: {value}. Please input 'on' or 'off'.")
    if name == "aic-metrics" and value not in METRICS:
        end(f"[ERROR] Argument --aic-metrics: invalid value:{value}. Please input in the range of "
            f"[{'|'.join(METRICS)}]")
    if name == "storage-limit" and not (re.fullmatch(r"\\d+MB", value) and 200 <= int(value[:-2]) <= 4294967295):
        end(f"[ERROR] Argument --storage-limit: invalid value: {value}.")
    options[name] = value
app = [word for word in app if word]  # empty words are lost

sys.path.insert(0, ROOT_OF_TESTS)
def export(prof):
    """Whether it went well."""
    if (prof / "bad").exists():
        say(f"[WARNING] Analysis script permission denied in {prof.name}")
        return False
    say(f"[INFO] Start export data in {prof.name}.")
    if any(prof.glob("device_*/data/*")):
        from tests.parsers import _msprof_profile as made
        writer = made.Prof.__new__(made.Prof)
        writer.path = prof
        device = int(next(prof.glob("device_*")).name.partition("_")[2])
        writer.summary([made.summary_row(n, device=device) for n in range(4)])
    say(f"[INFO] Export all data in {prof.name} done.")
    if options.get("clear") == "on":  # what --analyze would need is gone
        for raw in prof.glob("*/data/*"):
            raw.unlink()
    return True

output = Path(options.get("output", "."))
if options.get("export") == "on":
    sys.exit(0 if export(output) else 255)
if options.get("analyze") == "on":
    if not any(output.glob("mindstudio_profiler_output/*.csv")) or not any(output.glob("device_*/data/*")):
        end("[ERROR] please export first")  # an export with --clear=on is none
    (output / "analyze").mkdir(exist_ok=True)
    (output / "analyze" / "communication.json").write_text("{}")
    sys.exit(0)
if options.get("sys-devices") and not app and (place / "slice").exists():
    end("[WARNING] System profiling isn't supported in container of ascend virtual instance.", 254)
if not app:
    end("[ERROR] No valid argument found in --application --sys-devices --host-sys --host-sys-usage --parse --query "
        "--export --analyze")

try:
    output.mkdir(parents=True, exist_ok=True)
except OSError as error:
    end(f"[ERROR] Create dir {output} failed: {error.strerror}")
if "aic-freq" in options and options.get("aic-mode") != "sample-based":
    say("[WARNING] The argument --aic-freq is useless when --aic-mode is not sample-based")
if (place / "busy").exists():
    end("[ERROR] Start profiling failed")
say("[INFO] Start profiling....")
stopped = []
signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
code = subprocess.Popen(app, env={**os.environ, "PROFILER_SAMPLECONFIG": json.dumps(options)}).wait()
if stopped:
    say("[WARNING] Receive stop singal.")
used = sorted(place.glob("*.process"))
if int(options.get("delay", 0)) > 100:
    sys.exit(0)  # the program had ended: nothing at all, and no word
if not used:
    end("[ERROR] Failed to find profiling data, please check that the application executes AI-related business, or "
        "ensure that aclInit/GEInitialize is invoked in the application")
if code:
    say(f"[WARNING] An exception has occurred in process App, return code: {os.strerror(abs(code))}.")
profs = []
for number, process in enumerate(used, 1):
    prof = output / f"PROF_{number:06d}_20260407101532881_{4812 + number:08d}KQMBRACD"
    parts = ["host"] if "host" in process.read_text() else ["host", f"device_{number - 1}"]
    for part in parts:
        (prof / part / "data").mkdir(parents=True)
        (prof / part / "data" / "unaging.api_event.data.slice_0").write_bytes(b"\\0\\1\\2")
    if "bad" in process.read_text():
        (prof / "bad").touch()
    profs.append(prof)
for prof in profs:
    if not export(prof):
        break  # later ranks stay without export, and it ends with 0
say("[INFO] Profiling finished.")
say(f"[INFO] Process profiling data complete. Data is saved in {profs[-1]}")
'''


def install(folder: Path) -> Path:
    """Write the stand-in into `folder`/bin; returns it."""
    path = folder / "bin" / "msprof"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"#!{sys.executable}\nROOT_OF_TESTS = {str(ROOT)!r}\n" + SOURCE
    path.write_text(text, "utf-8")
    path.chmod(0o755)
    return path
