"""The report of an issue: private data is masked wherever it stands, what is needed for help stays."""

from __future__ import annotations

from pathlib import Path

from ascend_perf.collectors._doctor_line import error, ok
from ascend_perf.collectors.doctor import Diagnosis, first_lines
from ascend_perf.collectors.issue_report import report
from ascend_perf.model.finding import Words
from tests.collectors.test_private_data import masks


def test_the_template_holds_environment_steps_log_and_expectation(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"\x1b[31mline {n} of mzhang\x1b[0m\n" for n in range(80)) , "utf-8")
    diagnosis = Diagnosis(
        lines=(ok("python", "Python 3.11", "Python 3.11"), error("disk", "broken", Words("full", "已满"))),
        facts={"CANN": "8.5.0"}, environment={"HCCL_BUFFSIZE": "200"},
    )  # fmt: skip

    text = report(
        diagnosis, masks(), steps="run in /home/mzhang/exp", expected="no hang", log=first_lines(log)
    )  # fmt: skip

    assert "* CANN 8.5.0" in text
    assert "* `HCCL_BUFFSIZE=200`" in text
    assert "* error: disk: full" in text
    assert "run in exp" in text
    assert "## First 50 lines of the log" in text
    assert "line 49 of <user>" in text
    assert "line 50" not in text
    assert "\x1b" not in text
    assert "mzhang" not in text
    assert text.rstrip().endswith("no hang")


def test_an_empty_template_says_what_to_fill_in_and_a_fence_in_the_log_stays_inside() -> None:
    empty = report(Diagnosis(lines=()), masks(), lang="zh")
    assert "日志前 50 行" in empty
    assert "期望的结果" in empty

    text = report(Diagnosis(lines=()), masks(), log="a\n```\n# not a title\n")
    assert "````text\na\n```\n# not a title\n" in text
