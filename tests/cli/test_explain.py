"""`ascend-perf explain`."""

from __future__ import annotations

from click.testing import CliRunner

from ascend_perf.analyzers import _rules
from ascend_perf.cli import cli
from ascend_perf.errors import UsageError


def test_explains_a_row_in_both_languages_whatever_the_case() -> None:
    en = CliRunner().invoke(cli, ["explain", "n-05"])
    zh = CliRunner().invoke(cli, ["explain", "N-05", "--lang", "zh"])

    assert (en.exit_code, zh.exit_code) == (0, 0)
    assert en.output == _rules.explain("N-05", "en")
    assert zh.output.startswith("N-05  等待慢卡\n")


def test_without_an_id_lists_every_row() -> None:
    result = CliRunner().invoke(cli, ["explain"])

    assert [line[:4] for line in result.output.splitlines()] == list(_rules.rule_codes())


def test_a_letter_lists_its_group() -> None:
    result = CliRunner().invoke(cli, ["explain", "l"])

    assert [line[:4] for line in result.output.splitlines()] == ["L-01", "L-02"]


def test_an_unknown_row_is_wrong_usage_and_names_its_likes() -> None:
    result = CliRunner().invoke(cli, ["explain", "N-99"])

    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert "N-09" in result.exception.hint
