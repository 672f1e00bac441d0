"""Take the pictures of the documentation: write reports and photograph them in headless Chromium.

    python docs/make_screenshots.py [--traces FOLDER]

The first pictures show a real Ascend profile, a public sample of one rank of an eight-card job, where the collection of
profiles is at hand (ASCEND_PERF_TRACES, else ../shared/traces); the others show a workload of our own on this machine.
Pictures show what a report shows: no user names, host names or paths. Needs torch and Chromium.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.reports._browser import Browser, chromium  # noqa: E402  (needs the root on the path)

IMAGES: Final = ROOT / "docs" / "images"
ASCEND_SAMPLE: Final = "ascend-pytorch/text/level1/rank0_ascend_pt"
OWN_WORKLOAD: Final = ("resnet50-infer", "--set", "image_width_px=3840", "--set", "image_height_px=2160")
"""Frames of a 4K camera, where preprocessing shows."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture: which report, from which heading on, how wide, in which colours."""

    name: str
    subject: Literal["ascend", "own"] = "ascend"
    lang: Literal["en", "zh"] = "en"
    fragment: str = ""
    width: int = 1280
    height: int = 1000
    dark: bool = False


SHOTS: Final = (
    Shot(name="report-en.png"),
    Shot(name="report-zh.png", lang="zh"),
    Shot(name="report-dark.png", dark=True),
    Shot(name="report-timeline.png", fragment="#section-timeline", height=520),
    Shot(name="report-phone.png", width=390, height=844),
    Shot(name="report-cpu.png", subject="own"),
)


def analyzed(path: Path, folder: Path) -> dict[str, Path]:
    """The report of what lies at a path, in both languages."""
    pages = {}
    for lang in ("en", "zh"):
        out = folder / lang
        command = ["analyze", str(path), "-o", str(out), "--format", "html", "--lang", lang]
        subprocess.run([sys.executable, "-m", "ascend_perf", *command], check=True, cwd=folder)
        pages[lang] = out / "report.html"
    return pages


def own_run(folder: Path) -> Path:
    """The run directory of a workload of ours."""
    run = folder / "run"
    command = ["run", *OWN_WORKLOAD, "-o", str(run), "--no-report"]
    subprocess.run([sys.executable, "-m", "ascend_perf", *command], check=True, cwd=folder)
    return run


def take(shot: Shot, page: Path, program: str) -> None:
    """Photograph one page."""
    with tempfile.TemporaryDirectory() as profile, Browser(program, Path(profile)) as browser:
        browser.size(shot.width, shot.height, phone=shot.width < 600)
        browser.prefer("dark" if shot.dark else "light")
        browser.open(page, shot.fragment)
        browser.settle()
        browser.picture(IMAGES / shot.name)
    print(f"docs/images/{shot.name}")


def main() -> None:
    """Take all pictures that the machine allows."""
    default = Path(os.environ.get("ASCEND_PERF_TRACES") or ROOT.parent / "shared" / "traces")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=default, help="folder of real profiles")
    sample = parser.parse_args().traces / ASCEND_SAMPLE
    program = chromium()
    if program is None:
        raise SystemExit("no Chromium here (Debian: apt-get install chromium)")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in ("ascend", "own"):
            (folder / part).mkdir()
        pages = {"own": analyzed(own_run(folder / "own"), folder / "own")}
        if sample.is_dir():
            pages["ascend"] = analyzed(sample, folder / "ascend")
        for shot in SHOTS:
            if shot.subject in pages:
                take(shot, pages[shot.subject][shot.lang], program)
            else:
                print(f"left as it is (no real profiles at hand): docs/images/{shot.name}")


if __name__ == "__main__":
    main()
