"""Tables of the page in headless Chromium: which columns stand, in which unit their figures are, how names are cut."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ascend_perf.model.finding import Cell, Evidence, Finding, Outcome, ResultColumn, ResultTable, Severity, Words
from ascend_perf.model.run import Run
from ascend_perf.reports.html import write_html
from ascend_perf.reports.payload import build
from ascend_perf.units import Unit
from tests.reports import _samples
from tests.reports._browser import Browser, chromium
from tests.reports._sample_tables import START_NS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

KERNELS: dict[str, Unit] = {
    "name": "none", "op_type": "none", "core": "none", "count": "count", "total_ns": "ns", "share_ratio": "ratio",
    "cumulative_ratio": "ratio", "mean_ns": "ns", "min_ns": "ns", "max_ns": "ns", "start_ns": "none", "stream": "none",
}  # fmt: skip
LONG = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, " + "Epilogue<float>, " * 9


def kernels(rows: int = 20) -> ResultTable:
    made: list[list[Cell]] = [
        [LONG + str(row) + ">", f"MaxPoolGradWithArgmax{row}", "MIX_AIV", 12 + row, 2_000_000 - row, 0.05, 0.5, 40_000,
         39_000, 41_000, START_NS + row * 1_000_000, 7]
        for row in range(rows)
    ]  # fmt: skip
    return table("top-kernels", KERNELS, made)


def table(name: str, units: dict[str, Unit], rows: Sequence[Sequence[Cell]]) -> ResultTable:
    return ResultTable(
        name=name, title=Words(f"{name} title", f"{name} 标题"),
        columns=tuple(
            ResultColumn(name=key, title=Words(f"{key.replace('_', ' ')} of all", f"{key} 合计"), unit=unit)
            for key, unit in units.items()
        ),
        data=tuple(tuple(row[at] for row in rows) for at in range(len(units))),
    )  # fmt: skip


def shown(
    browser: Browser, path: Path, *tables: ResultTable, width: int = 1280, findings: Sequence[Finding] = ()
) -> None:
    """The page of tables; open folds, forgotten choices."""
    outcome = Outcome(analyzer="operators", status="done", rank=0, tables=tables, findings=tuple(findings))
    write_html(build(Run(traces=(_samples.trace(0),), label="x"), [outcome], findings, lang="en"), path)
    browser.messages.clear()
    browser.size(width, 900, phone=width < 600)
    browser.prefer("light")
    browser.open(path)
    browser.run("sessionStorage.clear()")
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.settle()
    assert browser.messages == []


STATE = """(function (name) {
  const f = document.querySelector('figure[data-table="' + name + '"]'), s = f.querySelector('.scroll');
  return {
    heads: [...f.querySelectorAll('th')].map(n => n.textContent.split(' of all')[0].replace(/ /g, '_')),
    wide: s.scrollWidth - s.clientWidth, named: f.querySelector('.table-foot .count:last-child').textContent,
    button: f.querySelector('button.columns').hidden ? null : f.querySelector('button.columns').textContent,
    rows: f.querySelectorAll('tbody tr').length, cells: f.querySelector('tbody tr').cells.length,
  };
})"""


def state(browser: Browser, name: str) -> dict[str, Any]:
    found: dict[str, Any] = browser.run(f"{STATE}({json.dumps(name)})")
    return found


def press(browser: Browser, name: str, selector: str) -> None:
    browser.run(f"""document.querySelector('figure[data-table="{name}"] {selector}').click()""")
    browser.settle()


def test_columns_that_do_not_fit_fold_behind_a_button(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", kernels(), width=1100)
    every = list(KERNELS)

    folded = state(browser, "top-kernels")
    assert folded["wide"] <= 1
    assert folded["button"] == "More columns"
    assert len(every) > len(folded["heads"]) == folded["cells"] >= 4
    # What stands keeps its order, what folds is named, the least important first of all.
    out = [name for name in every if name not in folded["heads"]]
    assert folded["heads"] == [name for name in every if name not in out]
    assert {"stream", "start_ns"} <= set(out)
    assert [name.split(" of all")[0].replace(" ", "_") for name in folded["named"].split(" · ")] == out
    assert {"name", "count", "total_ns"} <= set(folded["heads"])

    browser.run("AP.copy = text => { window.copied = text; }")
    press(browser, "top-kernels", ".tools button")
    assert browser.run("window.copied.split('\\n')[0].split(',')") == every  # a copy holds all of them

    press(browser, "top-kernels", "button.columns")
    whole = state(browser, "top-kernels")
    assert (whole["heads"], whole["cells"], whole["button"], whole["named"]) == (every, 12, "Fewer columns", "")
    assert whole["wide"] > 1  # it scrolls sideways, as the reader asked

    browser.open(tmp_path / "report.html")
    assert state(browser, "top-kernels")["heads"] == every  # a choice survives a reload
    press(browser, "top-kernels", "button.columns")
    assert state(browser, "top-kernels") == folded


def test_a_wider_window_has_room_for_more(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", kernels(), width=1000)
    narrow = state(browser, "top-kernels")
    browser.size(1920, 900)
    browser.settle()
    wide = state(browser, "top-kernels")

    assert wide["wide"] <= 1
    assert len(narrow["heads"]) + 3 <= len(wide["heads"])
    assert set(narrow["heads"]) < set(wide["heads"])


def test_the_column_by_which_rows_are_sorted_stands(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", kernels(), width=1100)
    press(browser, "top-kernels", "button.columns")
    press(browser, "top-kernels", "th:last-child button")  # the stream, which folds first
    press(browser, "top-kernels", "button.columns")

    found = state(browser, "top-kernels")
    assert found["heads"][-1] == "stream"
    assert found["wide"] <= 1


def test_paper_has_all_rows_and_no_column_beyond_its_edge(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", kernels(), width=1100)
    press(browser, "top-kernels", "button.columns")
    # Browsers ask for the page of paper while it still lies on the screen.
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    found = state(browser, "top-kernels")
    browser.run("""(f => { const copy = f.cloneNode(true); copy.id = 'copy'; f.parentNode.append(copy); })(
      document.querySelector('figure[data-table="top-kernels"]'))""")
    browser.prefer("light", "print")
    browser.size(1032, 700)  # 273 mm: a landscape page between its margins
    browser.settle()

    assert found["rows"] == 20
    assert 8 <= len(found["heads"]) < 12
    assert found["named"]
    right = "(f => f.querySelector('table').getBoundingClientRect().right - f.getBoundingClientRect().right)"
    assert browser.run(f"{right}(document.getElementById('copy'))") <= 1
    look = "getComputedStyle(document.querySelector('#copy .table-foot {}')).display"
    assert browser.run(look.format("button.columns")) == "none"
    assert browser.run(look.format(".count:last-child")) != "none"
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    browser.prefer("light")
    assert state(browser, "top-kernels")["rows"] == 12


def test_a_column_that_repeats_another_one_folds(browser: Browser, tmp_path: Path) -> None:
    units: dict[str, Unit] = {
        "component": "none", "time_ns": "ns", "share_ratio": "ratio", "mean_ns": "ns", "mean_share_ratio": "ratio",
    }  # fmt: skip
    one: list[list[Cell]] = [["host", 5_000_000, 0.5, 5_000_000.2, 0.5], ["Computing", 4_000_000, 0.5, 4_000_000, 0.5]]
    several: list[list[Cell]] = [["host", 5_000_000, 0.5, 6_000_000, 0.5], *one[1:]]
    first = ["component", "time_ns", "share_ratio"]
    for rows, heads in ((one, first), (several, [*first, "mean_ns"])):
        shown(browser, tmp_path / "report.html", table("critical-path", units, rows))
        assert state(browser, "critical-path")["heads"] == heads


def styles(
    browser: Browser, columns: dict[str, tuple[str, list[Any]]], name: str = "x"
) -> dict[str, tuple[str, list[str]]]:
    """Unit and cells of each column, as a table writes them."""
    readers = [{"name": key, "unit": unit, "data": cells} for key, (unit, cells) in columns.items()]
    rows = len(readers[0]["data"])
    script = f"""AP.format.columnStyles({json.dumps(readers)}.map(c => Object.assign(
      {{ get: row => c.data[row], isText: typeof c.data[0] === 'string' }}, c)), {rows}, {json.dumps(name)})
      .map((s, i) => [s.unit, {json.dumps(readers)}[i].data.map(v => s.text(v)), s.figures])"""
    found = browser.run(script)
    return {key: (unit, cells) for key, (unit, cells, _) in zip(columns, found, strict=True)}


def test_columns_of_one_table_share_a_unit_where_their_figures_are_near(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", kernels())

    # Totals of some ms beside means of some hundred us: all in us; with 262 ms in all, in ms.
    near = styles(browser, {"total": ("ns", [1_959_000, 574_100, 12_340]), "mean": ("ns", [653_000, 52_190, 1_260])})
    assert near == {"total": ("us", ["1\u2009959", "574", "12.3"]), "mean": ("us", ["653.0", "52.2", "1.26"])}
    far = styles(browser, {"total": ("ns", [262_400_000, 4_700_000]), "least": ("ns", [436_300, 4_700])})
    assert far == {"total": ("ms", ["262.4", "4.70"]), "least": ("ms", ["0.436", "0.0047"])}
    apart = styles(browser, {"total": ("ns", [2_624_000_000, 900_000_000]), "least": ("ns", [5_900, 2_100])})
    assert (apart["total"][0], apart["least"]) == ("ms", ("us", ["5.900", "2.100"]))
    seconds = styles(browser, {"sum": ("ns", [120_700_000_000, 496_000_000]), "median": ("ns", [222_000_000, 132_300])})
    assert (seconds["sum"][0], seconds["median"]) == ("s", ("ms", ["222.0", "0.132"]))
    # The parts of a step are all in the unit of the step.
    parts = styles(browser, {"span": ("us", [136_581.0]), "copies": ("us", [10.76])}, "steps")
    assert parts == {"span": ("ms", ["136.6"]), "copies": ("ms", ["0.011"])}
    # Files of some KiB beside one of 2 MiB.
    sizes = styles(browser, {"size": ("bytes", [66_458, 269, 1_987, 2_219_000])})
    assert sizes == {"size": ("KiB", ["64.9", "0.263", "1.94", "2\u2009167"])}


@pytest.mark.parametrize(
    ("unit", "cells", "said"),
    [
        ("ratio", [0.726, 0.0997, 0.00998, 0.00012, 0.00004, 0, None, -0.24],
         ["73", "10", "1.0", "0.012", "< 0.01", "0", "—", "\u221224"]),
        ("ns", [136_581_009, 9_970_000, 997_000, 44_300, 0, -2_500_000],
         ["136.6", "9.97", "0.997", "0.044", "0", "\u22122.50"]),
        ("flops", [112_400_000_000, 0, 25_000_000, 288_000], ["112.4", "0", "0.025", "288\u202f000\u00a0FLOP"]),
        ("none", [15.7712, 0.096551, 1434.2, 17], ["15.77", "0.0966", "1\u2009434", "17"]),
    ],
)  # fmt: skip
def test_cells_have_as_many_digits_as_say_something(
    browser: Browser, tmp_path: Path, unit: str, cells: list[float | None], said: list[str]
) -> None:
    shown(browser, tmp_path / "report.html", kernels())

    assert styles(browser, {"x": (unit, cells)})["x"][1] == said


def test_cells_of_small_figures_keep_two_digits(browser: Browser, tmp_path: Path) -> None:
    """Against arithmetic in Python: what a cell says is the value to at least two digits and at most four."""
    shown(browser, tmp_path / "report.html", kernels())
    cells = [round(136_581_009 / 1.37**power) for power in range(58)]

    unit, said = styles(browser, {"x": ("ns", cells)})["x"]

    assert unit == "ms"
    for value, text in zip(cells, said, strict=True):
        if text.endswith("s"):
            continue  # under 1 us: with a unit of its own
        read = float(text.replace("\u2009", ""))
        assert read == pytest.approx(value / 1e6, rel=0.05)
        assert len(text.replace(".", "").lstrip("0")) <= 4 or math.isclose(read, value / 1e6, rel_tol=1e-4)


def test_long_names_begin_with_what_tells_them_apart(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", kernels())
    cell = "document.querySelector('figure[data-table=\"top-kernels\"] td .cut')"

    assert browser.run(f"{cell}.innerText").startswith("cunn_SoftMaxForward<8, c10::BFloat16")
    assert browser.run(f"{cell}.textContent") == LONG + "0>"
    browser.run(f"{cell}.click()")
    assert browser.run(f"{cell}.innerText").replace("\n", "") == LONG + "0>"


def test_sizes_that_come_as_text_are_sorted_by_what_they_mean(browser: Browser, tmp_path: Path) -> None:
    sizes = ["5 GB", "700 MB", "3 TiB", "64 GiB", "10 KB", "9 KiB", "20 B", "5 B"]
    shown(browser, tmp_path / "report.html", table("sizes", {"size": "none", "n": "count"}, [[s, 1] for s in sizes]))
    body = "document.querySelector('figure[data-table=\"sizes\"] tbody')"
    cells = f"[...{body}.rows].map(r => r.cells[0].textContent.replace('\\u00a0', ' '))"

    press(browser, "sizes", "th button")
    assert browser.run(cells) == ["3 TiB", "64 GiB", "5 GB", "700 MB", "10 KB", "9 KiB", "20 B", "5 B"]
    press(browser, "sizes", "th button")
    assert browser.run(cells) == ["5 B", "20 B", "9 KiB", "10 KB", "700 MB", "5 GB", "64 GiB", "3 TiB"]


def test_tables_of_one_column_and_of_sixty_with_hostile_names(browser: Browser, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    many: dict[str, Unit] = {f"{hostile}{at}": "ns" for at in range(60)}
    figures = [(-1) ** at * 10.0**at for at in range(60)]
    rows: list[list[Cell]] = [[*figures], [*[None] * 59, -2.5e22]]
    shown(
        browser, tmp_path / "report.html", table("single", {"=one": "none"}, [["=1+1"], ["-2"]]),
        table("sixty", many, rows), width=400,
    )

    assert state(browser, "single")["heads"] == ["=one"]
    assert browser.run("document.querySelectorAll('figure img').length") == 0
    assert state(browser, "sixty")["cells"] == 60  # a table of no known name scrolls
    cells = browser.run("[...document.querySelectorAll('figure[data-table=\"sixty\"] td')].map(n => n.textContent)")
    assert len(cells) == 120
    assert not any(word in cell for cell in cells for word in ("NaN", "undefined", "Infinity"))

    browser.run("AP.copy = text => { window.copied = text; }")
    press(browser, "single", ".tools button")
    assert browser.run("window.copied") == "'=one\n'=1+1\n-2\n"
    press(browser, "sixty", ".tools button")
    copied = [line.split(",") for line in browser.run("window.copied").splitlines()]
    # Figures stay figures, however large; a spreadsheet adds them up.
    assert [float(cell) for cell in copied[1]] == pytest.approx(figures, rel=1e-12)
    assert copied[2] == [""] * 59 + ["-2.5e+22"]


NAMES = [
    "aclnnMaxPool2dWithMaskBackward_MaxPoolGradWithArgmaxV1AiCore", "ASCEND_PROFILER_OUTPUT/communication_matrix.json",
    "torch_npu.profiler._ExperimentalConfig(profiler_level=torch_npu.profiler.ProfilerLevel.Level1)",
    "void at::native::elementwise_kernel<128, 4>(int, float*)", "<<<<<<<<<<<<<<<<<<<<<<<", "a-b=c|d;e:f,g/h.i_j.K<l",
    "..................", "MaxMaxMaxMaxMaxMaxMaxMax", "  spaces  around a long name of many words  ",
    "\u6c49\u5b57" * 12, "_" * 40, "x" * 1200,
]  # fmt: skip


def test_a_name_that_may_break_is_the_same_name(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path / "report.html", table("names", {"name": "none", "n": "count"}, [[n, 1] for n in NAMES]))
    cells = "[...document.querySelectorAll('figure[data-table=\"names\"] tbody tr')].map(r => r.cells[0])"

    assert browser.run(f"{cells}.map(c => c.textContent)") == NAMES
    pieces = browser.run(f"{cells}.slice(0, 3).map(c => c.innerHTML.replace(/<wbr>/g, '|').replace(/<[^>]*>/g, ''))")
    assert pieces[0] == "aclnn|Max|Pool2d|With|Mask|Backward_|Max|Pool|Grad|With|ArgmaxV1|Ai|Core"
    assert pieces[1] == "ASCEND_|PROFILER_|OUTPUT/|communication_|matrix.json"
    assert pieces[2] == (
        "torch_|npu.profiler._|Experimental|Config(profiler_|level=|torch_|npu.profiler.|ProfilerLevel.|Level1)"
    )


def test_shapes_end_with_their_last_tensor_and_groups_are_no_figures(browser: Browser, tmp_path: Path) -> None:
    units: dict[str, Unit] = {"name": "none", "example_shapes": "none", "group": "none", "size": "none"}
    rows = [
        ["aten::mm", "64,3,11,11;;;;", "17522688603477080586", "12.5 MiB"],
        ["aten::add", ";;;", "13852668603477080586", "3 MiB"],
    ]
    shown(browser, tmp_path / "report.html", table("host-ops", units, rows))
    body = "document.querySelector('figure[data-table=\"host-ops\"] tbody')"

    assert browser.run(f"[...{body}.rows].map(r => r.cells[1].textContent)") == ["64,3,11,11", "–"]
    assert browser.run(f"[...{body}.rows[0].cells].map(c => c.classList.contains('figure'))") == [
        False, False, False, True
    ]  # fmt: skip


def test_the_number_of_a_row_does_not_break_a_title_apart(browser: Browser, tmp_path: Path) -> None:
    """Titles stand beside their number in a flexible row, where loose parts of a text would be columns."""
    title = Words("The device idles 23 ms, not counting what H-06 explains; the host dispatches", "空闲（H-06 除外）")
    finding = Finding(
        code="H-01", severity=Severity.HIGH, analyzer="operators", title=title, cause=title, share_ratio=0.17,
        remedies=(),
        evidence=(Evidence(name=Words("idle", "空闲"), value=23_000_000, unit="ns", where="x"),),
    )
    shown(browser, tmp_path / "report.html", kernels(), findings=[finding])

    loose = """[...document.querySelectorAll('.whole')].map(n => n.parentElement).filter(
      n => ['flex', 'grid', 'inline-flex'].includes(getComputedStyle(n).display)).map(n => n.className)"""
    assert browser.run("document.querySelectorAll('.refs .whole').length") == 1
    assert browser.run(loose) == []
