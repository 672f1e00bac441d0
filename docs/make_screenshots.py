"""Take the pictures of the documentation: run a workload of ours, write its reports and photograph them.

    python docs/make_screenshots.py [WORKLOAD [OPTIONS of `ascend-perf run`]]

The pictures show our own synthetic job only: by default image classification on frames of a 4K camera, where
preprocessing shows. Needs torch and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

IMAGES: Final = Path(__file__).parent / "images"
DEFAULT: Final = ("resnet50-infer", "--set", "image_width_px=3840", "--set", "image_height_px=2160")
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
DRAWING_MS: Final = 4000
"""Time of the page's own clock after which the picture is taken."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture: which report, how wide, in which colours."""

    name: str
    lang: Literal["en", "zh"] = "en"
    width: int = 1280
    height: int = 1000
    dark: bool = False


SHOTS: Final = (
    Shot(name="report-en.png"),
    Shot(name="report-zh.png", lang="zh"),
    Shot(name="report-dark.png", dark=True),
    Shot(name="report-phone.png", width=500, height=1000),
)
"""Chromium's window is never narrower than 500 pixels; the page has its phone layout there already."""


def browser() -> str:
    """Path of a Chromium.

    Raises:
        SystemExit: there is none.
    """
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise SystemExit("no Chromium here (Debian: apt-get install chromium)")


def reports(folder: Path, workload: Sequence[str]) -> dict[str, Path]:
    """Run the workload once and write its report in both languages."""
    run = folder / "run"
    command = [sys.executable, "-m", "ascend_perf"]
    subprocess.run([*command, "run", *workload, "-o", str(run), "--no-report"], check=True, cwd=folder)
    pages = {}
    for lang in ("en", "zh"):
        out = folder / lang
        subprocess.run(
            [*command, "analyze", str(run), "-o", str(out), "--format", "html", "--lang", lang], check=True, cwd=folder
        )
        pages[lang] = out / "report.html"
    return pages


def take(shot: Shot, page: Path, folder: Path) -> None:
    """Photograph one page."""
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={folder / ('profile-' + shot.name)}",
        f"--window-size={shot.width},{shot.height}",
        f"--virtual-time-budget={DRAWING_MS}",
        f"--blink-settings=preferredColorScheme={0 if shot.dark else 1}",
        f"--screenshot={IMAGES / shot.name}",
        page.as_uri(),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"docs/images/{shot.name}")


def main() -> None:
    """Take all pictures."""
    workload = sys.argv[1:] or DEFAULT
    browser()
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pages = reports(folder, workload)
        for shot in SHOTS:
            take(shot, pages[shot.lang], folder)


if __name__ == "__main__":
    main()
