"""Simulated data in a comparison are named at each table and figure, with the side that holds them."""

from __future__ import annotations

import json
from html import unescape

from ascend_perf.cli.compare import text
from ascend_perf.compare.make import compare
from ascend_perf.reports.compare import html_text, markdown_text
from tests.compare.test_make import given, layers


def test_each_title_names_the_side() -> None:
    inputs = [given(layers(6, 100)), given(layers(6, 100, origin="simulated"))]
    mixed = compare(inputs, simulated=True)
    assert mixed.sections
    titles = [line for line in markdown_text(mixed, "en").splitlines() if line.startswith("## ")]
    tables = [line for line in titles if any(section.title.en in line for section in mixed.sections)]
    assert len(tables) == len(mixed.sections) and all(line.endswith("(B simulated)") for line in tables)
    assert "（B 为仿真）" in markdown_text(mixed, "zh")
    assert "**B**: x — trace · simulated" in markdown_text(mixed, "en").replace("\\", "")
    lines = text(mixed, "en").splitlines()
    assert lines[0].count("simulated") == 0 and lines[1].endswith("· simulated")
    assert any(line.endswith("(B simulated)") for line in lines)

    page = html_text(mixed, "en")
    document = json.loads(unescape(page.partition('id="data">')[2].partition("</script>")[0]))
    assert document["origin"] == "simulated"
    assert all(section["title"][0].endswith("(B simulated)") for section in document["sections"])


def test_two_simulated_sides_are_one_word_and_measured_ones_none() -> None:
    both = compare([given(layers(6, 100, origin="simulated"))] * 2, simulated=True)
    assert "(simulated)" in markdown_text(both, "en") and "B simulated" not in markdown_text(both, "en")
    measured = compare([given(layers(6, 100)), given(layers(6, 120))])
    assert "simulated" not in markdown_text(measured, "en")
