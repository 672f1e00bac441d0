"""Nothing sticks out, is cut off or lies on something else: phone, laptop and wide screen, both languages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from ascend_perf import pipeline
from ascend_perf.reports.html import write_html
from tests.reports import _job_samples, _samples
from tests.reports._browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

WIDTHS: Final = (390, 1280, 1920)
REAL: Final = {
    "alexnet": "ascend-pytorch/text/level1",
    "level0": "ascend-pytorch/text/level0",
    "qwen3": "ascend-pytorch/qwen3-0.6b-pp2-dp2-level2",
    "serving": "kineto/inference-mi300/sglang_Qwen3-8B_prefilldecode.json.gz",
}

FAULTS: Final = r"""(() => {
  const found = [], wide = WIDTH;  // a phone widens its window to what sticks out
  const box = n => n.getBoundingClientRect();
  const seen = n => { const b = box(n); return b.width > 1 && b.height > 1; };
  const page = document.documentElement;
  if (page.scrollWidth > wide) found.push('the page is ' + page.scrollWidth + ' px wide');
  const hides = n => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(n).overflowX);
  const inside = n => { for (let p = n; p; p = p.parentElement) if (hides(p)) return true; return false; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let t; (t = walk.nextNode());) {
    const n = t.parentElement;
    if (!t.textContent.trim() || n.closest('script, style, noscript, option, .off, [hidden]') || !seen(n)) continue;
    if (parseFloat(getComputedStyle(n).fontSize) < 10.5) found.push('small: ' + t.textContent);
    const range = document.createRange();
    range.selectNodeContents(t);
    if (range.getBoundingClientRect().right > wide + 1 && !inside(n)) found.push('outside: ' + t.textContent);
  }
  for (const svg of document.querySelectorAll('svg')) {
    const frame = box(svg), texts = Array.from(svg.querySelectorAll('text')).filter(seen).slice(0, 400);
    texts.forEach((n, i) => {
      const a = box(n);
      if (a.left < frame.left - 2 || a.right > frame.right + 2 || a.top < frame.top - 2 || a.bottom > frame.bottom + 2)
        found.push('out of its drawing: ' + n.textContent);
      if (n.getAttribute('transform')) return;  // boxes of tilted texts say little
      for (const other of texts.slice(i + 1)) {
        if (other.getAttribute('transform')) continue;
        const b = box(other);
        const w = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (w > 2 && h > 4) found.push('on one another: ' + n.textContent + ' | ' + other.textContent);
      }
    });
  }
  return found;
})()"""


def faults(browser: Browser, report: Path) -> dict[tuple[int, str], list[str]]:
    """What is wrong with a page, by width and language."""
    browser.prefer("light")
    found = {}
    for width in WIDTHS:
        browser.size(width, 844 if width < 600 else 900, phone=width < 600)
        browser.open(report)
        for lang in ("en", "zh"):
            browser.run(f"document.querySelector(\"[data-value='{lang}']\").click()")
            browser.settle()
            if wrong := browser.run(FAULTS.replace("WIDTH", str(width))):
                found[width, lang] = wrong
    assert browser.messages == []
    return found


@pytest.mark.parametrize("count", [1, 8, 64, 1024])
def test_jobs_of_any_size_fit(browser: Browser, tmp_path: Path, count: int) -> None:
    report = tmp_path / "report.html"
    write_html(_samples.one_rank() if count == 1 else _job_samples.job(count), report)

    assert faults(browser, report) == {}


@pytest.mark.parametrize("name", list(REAL))
def test_real_profiles_fit(browser: Browser, traces: Path, tmp_path: Path, name: str) -> None:
    pipeline.report([traces / REAL[name]], out=tmp_path / "out", formats=["html"])

    assert faults(browser, tmp_path / "out" / "report.html") == {}


def test_the_check_finds_what_it_looks_for(browser: Browser, tmp_path: Path) -> None:
    """A check that finds nothing anywhere would pass above as well."""
    report = tmp_path / "report.html"
    write_html(_samples.one_rank(), report)
    browser.size(1280, 900)
    browser.open(report)
    browser.run(
        "const wide = document.createElement('p'); wide.textContent = 'wide';"
        "wide.style.cssText = 'width: 3000px; max-width: none; text-align: right; font-size: 8px';"
        "document.querySelector('main').append(wide);"
        "document.querySelectorAll('figure svg text').forEach((n, i) => { if (i < 2) n.setAttribute('x', 99); });"
        "const other = document.querySelector('figure svg text').cloneNode(true);"
        "document.querySelector('figure svg').append(other)"
    )

    kinds = {line.split(":")[0].split(" is ")[0] for line in browser.run(FAULTS.replace("WIDTH", "1280"))}

    assert {"the page", "small", "outside", "on one another"} <= kinds
