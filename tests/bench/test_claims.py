"""Claims: their arithmetic is right, their rows and suites exist, and every shipped suite is ready to run."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ascend_perf.analyzers._rules import rule_codes
from ascend_perf.bench.claims import VERDICTS, Claim, claims, evaluated, find_claim
from ascend_perf.bench.suite_file import SHIPPED, External, find_suite, read_suite
from ascend_perf.cli import cli
from ascend_perf.errors import InputError, UsageError

SUITES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def test_ids_are_in_order_and_every_suite_but_the_tiny_one_tests_a_claim() -> None:
    assert [claim.id for claim in claims()] == [f"CL-{number:02}" for number in range(1, 22)]
    assert {claim.suite for claim in claims()} - {None} == set(SUITES) - {"tiny"}


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_the_arithmetic_of_a_claim_is_right(claim: Claim) -> None:
    for part in claim.arithmetic:
        # As many digits as are written.
        assert part.value == pytest.approx(evaluated(part.formula), rel=0.006), part.formula
    assert claim.verdict in VERDICTS
    assert set(claim.rows) <= set(rule_codes())
    assert claim.arithmetic or claim.note is not None
    for words in (claim.claim, *(part.words for part in claim.arithmetic), *filter(None, [claim.note])):
        assert words.en.isascii() and not words.zh.isascii()


@pytest.mark.parametrize("name", SUITES)
def test_a_shipped_suite_is_ready_to_run(name: str) -> None:
    suite = read_suite(find_suite(name))

    assert suite.name == name
    assert {"en", "zh"} == set(suite.about)
    assert all(cell.runs >= 5 and not isinstance(cell.body, External) for cell in suite.cells)


def test_suites_are_found_by_path_and_by_name() -> None:
    path = SHIPPED / "clue-910b-vs-a100.yaml"
    assert find_suite("clue-910b-vs-a100") == path
    assert find_suite("suites/clue-910b-vs-a100.yaml").resolve() == path.resolve()
    with pytest.raises(InputError, match="no suite of that name: did you mean 'clue-910b-vs-a100'"):
        find_suite("clue-910b-vs-a10")


@pytest.mark.parametrize("formula", ["__import__('os')", "1 if 1 else 2", "a", "'x' * 9", "True + 1", "f(1)"])
def test_a_formula_holds_numbers_alone(formula: str) -> None:
    with pytest.raises(ValueError, match="holds more than numbers"):
        evaluated(formula)


def test_the_command_lists_claims_and_explains_one() -> None:
    listed = CliRunner().invoke(cli, ["claims"])
    one = CliRunner().invoke(cli, ["claims", "10", "--lang", "zh"])
    document = json.loads(CliRunner().invoke(cli, ["claims", "cl-7", "--format", "json"]).output)

    assert listed.output.count("CL-") >= 21 and "None of these has been measured by us" in listed.output
    assert "算术上不可能" in one.output and "1 / (1 - 0.30) = 1.43" in one.output
    assert "ascend-perf bench aipp-preprocessing" in one.output
    assert (document[0]["id"], document[0]["measured"]) == ("CL-07", False)


def test_an_unknown_claim_is_refused() -> None:
    with pytest.raises(UsageError, match="no claim 'CL-99'"):
        find_claim("CL-99")
