"""Write docs/gallery.md: reports of real profiles and of jobs of ours, as pictures with what each report says.

    python docs/make_gallery.py [--traces FOLDER] [--only NAME ...]

Real profiles are read where the collection is at hand (ASCEND_PERF_TRACES, else ../shared/traces) and never copied:
only pictures are kept, and a picture is not taken of a report that shows a path, a host or an address. `--only` takes
pictures of some subjects again and leaves the others, and the page, as they are. Needs torch and Chromium; with Pillow
the pictures get smaller. Run it after a change of the page's look.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import ascend_perf as ap  # noqa: E402  (needs the root on the path)
from ascend_perf.manifest import write_manifest  # noqa: E402
from ascend_perf.model.run import Manifest  # noqa: E402
from ascend_perf.units import counted, format_bound  # noqa: E402
from benchmarks import make_job  # noqa: E402
from tests.reports._browser import Browser, chromium  # noqa: E402

PAGE: Final = ROOT / "docs" / "gallery.md"
IMAGES: Final = ROOT / "docs" / "images" / "gallery"
MAX_PICTURE_BYTES: Final = 250_000
MAX_BYTES: Final = 4_000_000
"""Of one picture, and of all of them together."""

COLOURS: Final = 160
"""Of a picture: a page has few, and text stays as sharp as it was."""

Lang = Literal["en", "zh"]

PRIVATE: Final = re.compile(
    r"(?<![\w.])/(?:home|root|Users|mnt|data\d*|opt|workspace|var|tmp|job)/[\w.@+-]+/|\b(?:\d{1,3}\.){3}\d{1,3}\b|[A-Z]:\\\\Users"
)
"""What no report may show: folders of a machine, addresses."""

HEAD: Final = """# Gallery

Written by `docs/make_gallery.py`; do not edit by hand. Pictures of reports that this version writes,
from public profiles of real jobs and from jobs of ours. Above them stands the sentence with which the report opens. The
profiles themselves are not part of this repository; they lie in the public projects that are named. What each section
means: [sections](sections.md).
"""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture: from which heading on, how large, in which colours and language."""

    name: str
    what: str
    fragment: str = ""
    width: int = 1280
    height: int = 900
    dark: bool = False
    lang: Lang = "en"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A profile, where it comes from, what to look at."""

    key: str
    title: str
    source: str
    about: str
    shots: tuple[Shot, ...]
    path: str = ""
    """Below the collection of real profiles; empty: `made` writes it."""
    made: str = ""
    """Of `MAKERS`: writes the profile into a folder (the second is the collection) and returns where it lies."""


def own_run(folder: Path, _: Path) -> Path:
    """The smallest language model of ours, trained and profiled on this machine."""
    command = ["run", "llm-pretrain", "--preset", "tiny", "-o", str(folder / "llm-pretrain"), "--no-report"]
    subprocess.run([sys.executable, "-m", "ascend_perf", *command], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder / "llm-pretrain"


def large_job(folder: Path, _: Path) -> Path:
    """64 ranks, tensor, pipeline and data parallel, one of which computes longer."""
    job = folder / "job-64-ranks"
    job.mkdir()
    make_job.make(job, ranks=64, total_bytes=50_000_000)
    simulated = Manifest(workload="generated job", device="npu", data_origin="simulated", created="")
    write_manifest(job, simulated)
    return job


def broken(folder: Path, traces: Path) -> Path:
    """One rank as it looks after a full disk: the timeline ends in the middle, a table has lines of another kind."""
    copy = folder / "broken-rank0_ascend_pt"
    shutil.copytree(traces / "ascend-pytorch/text/level1/rank0_ascend_pt", copy)
    output = copy / "ASCEND_PROFILER_OUTPUT"
    timeline = (output / "trace_view.json").read_bytes()
    (output / "trace_view.json").write_bytes(timeline[: len(timeline) // 2])
    lines = (output / "kernel_details.csv").read_text("utf-8").splitlines(keepends=True)
    lines[20:24] = ["not a row\n", lines[20].replace(",", ";"), "\x00\x00\x00\n", lines[21][:40] + "\n"]
    (output / "kernel_details.csv").write_text("".join(lines), "utf-8")
    (output / "communication.json").write_bytes(b"")
    return copy


MAKERS: Final[dict[str, Callable[[Path, Path], Path]]] = {
    "own_run": own_run, "large_job": large_job, "broken": broken,
}  # fmt: skip


def subjects() -> tuple[Subject, ...]:
    """What docs/gallery.yaml lists."""
    listed = yaml.safe_load((ROOT / "docs" / "gallery.yaml").read_text("utf-8"))
    made = []
    for item in listed["subjects"]:
        item["source"] = item["source"].format_map(listed["sources"])
        item["shots"] = tuple(Shot(**shot) for shot in item["shots"])
        made.append(Subject(**item))
    return tuple(made)


def analyzed(path: Path, out: Path, lang: Lang) -> dict[str, Any]:
    """Write the report of a path in one language and return its document."""
    command = ["analyze", str(path), "-o", str(out), "--format", "html,json", "--lang", lang, "--force"]
    subprocess.run([sys.executable, "-m", "ascend_perf", *command], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    document: dict[str, Any] = json.loads((out / "report.json").read_text("utf-8"))
    return document


def check_private(page: Browser, subject: Subject) -> None:
    """Stop when the page, or the data behind its drawings, shows what a picture must not."""
    data = "JSON.parse(document.getElementById('data').textContent, (k, v) => k === 'packed' ? null : v)"
    said = page.run(f"document.body.innerText + '\\n' + JSON.stringify({data})")
    found = PRIVATE.search(said)
    if found is not None:
        around = said[max(0, found.start() - 40) : found.end() + 40]
        raise SystemExit(f"{subject.key}: the report shows something private: ...{around!r}...")


def take(shot: Shot, subject: Subject, report: Path, program: str) -> Path:
    """Photograph one page."""
    path = IMAGES / f"{shot.name}.png"
    with tempfile.TemporaryDirectory() as profile, Browser(program, Path(profile)) as browser:
        browser.size(shot.width, shot.height, phone=shot.width < 600)
        browser.prefer("dark" if shot.dark else "light")
        browser.open(report, shot.fragment)
        browser.settle()
        check_private(browser, subject)
        browser.picture(path)
        if browser.messages:
            raise SystemExit(f"{shot.name}: the page complains: {browser.messages[:3]}")
    path.write_bytes(smaller(path.read_bytes()))
    return path


def notebook_cell(profile: Path, program: str) -> Path:
    """The picture for docs/notebook.md: the view of an analysis, as a notebook's cell shows it."""
    path = IMAGES / "notebook.png"
    with tempfile.TemporaryDirectory() as temporary, Browser(program, Path(temporary) / "profile") as browser:
        cell = Path(temporary) / "cell.html"
        said = ap.analyze(profile)._repr_html_()
        cell.write_text(f"<!doctype html><meta charset=utf-8><title>cell</title>{said}", "utf-8")
        browser.size(1040, 600)
        browser.prefer("light")
        browser.open(cell)
        browser.picture(path, whole=True)
    path.write_bytes(smaller(path.read_bytes()))
    return path


def smaller(picture: bytes) -> bytes:
    """The picture with few colours; as it is where Pillow is not installed, or does not make it smaller."""
    try:
        from PIL import Image
    except ImportError:
        return picture
    image = Image.open(BytesIO(picture)).convert("RGB")
    few = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    out = BytesIO()
    few.save(out, "png", optimize=True)
    return min(out.getvalue(), picture, key=len)


def entry(subject: Subject, document: dict[str, Any], shots: Sequence[Shot]) -> str:
    """The part of the page about one subject."""
    findings = document["findings"]
    first = findings[0] if findings else None
    if first is None:
        said = "nothing was found in what could be judged."
    else:
        bound = first["bound_speedup"]
        said = f"{plain(first['title'])}{'' if bound is None else f' (at most {format_bound(bound)}x)'}."
    files = sum(source["problem"] is None for source in document["sources"])
    rows = sum(source["rows"] for source in document["sources"])
    dropped = sum(drop["count"] for source in document["sources"] for drop in source["dropped"])
    found, ranks = counted(len(findings), "finding"), counted(len(document["ranks"]), "rank")
    data = f"{found} from {ranks}; {counted(files, 'file')}, {rows:,} rows read, {dropped:,} not used."
    lines = [f"## {subject.title}", "", f"{subject.source}. {subject.about}", "", f"> {said}", "", data, ""]
    for shot in shots:
        lines += [f"![{shot.what}](images/gallery/{shot.name}.png)", "", f"*{shot.what}.*", ""]
    return "\n".join(lines)


def plain(text: str) -> str:
    """A sentence of a report as Markdown: nothing in it is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


def check_sizes() -> None:
    """Stop when a picture, or all of them, got too large for a repository."""
    sizes = {path.name: path.stat().st_size for path in sorted(IMAGES.glob("*.png"))}
    large = {name: size for name, size in sizes.items() if size > MAX_PICTURE_BYTES}
    if large or sum(sizes.values()) > MAX_BYTES:
        raise SystemExit(f"too large: {large or sizes} (together {sum(sizes.values())} bytes)")


def main() -> None:
    """Take all pictures and write the page."""
    every = subjects()
    default = Path(os.environ.get("ASCEND_PERF_TRACES") or ROOT.parent / "shared" / "traces")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=default, help="folder of real profiles")
    parser.add_argument("--only", action="append", choices=[subject.key for subject in every], help="a subject")
    options = parser.parse_args()
    program = chromium()
    if program is None:
        raise SystemExit("no Chromium here (Debian: apt-get install chromium)")
    if not options.traces.is_dir():
        raise SystemExit(f"no real profiles at {options.traces.name}: set ASCEND_PERF_TRACES or use --traces")
    IMAGES.mkdir(parents=True, exist_ok=True)
    parts = [HEAD]
    for subject in every:
        if options.only and subject.key not in options.only:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            makes = MAKERS.get(subject.made)
            path = options.traces / subject.path if makes is None else makes(folder, options.traces)
            documents = {
                lang: analyzed(path, folder / lang, lang)
                for lang in dict.fromkeys(("en", *(shot.lang for shot in subject.shots)))
            }  # fmt: skip
            for shot in subject.shots:
                print(take(shot, subject, folder / shot.lang / "report.html", program).relative_to(ROOT))
        parts.append(entry(subject, documents["en"], subject.shots))
    if not options.only:
        print(notebook_cell(options.traces / every[0].path, program).relative_to(ROOT))
    check_sizes()
    if not options.only:
        named = {"notebook.png", *(f"{shot.name}.png" for subject in every for shot in subject.shots)}
        for old in IMAGES.glob("*.png"):
            if old.name not in named:
                old.unlink()
        PAGE.write_text("\n".join(parts), "utf-8", newline="\n")
        print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
