"""What collect and the hooks write into a manifest is said in Chinese as well."""

from __future__ import annotations

import re

import pytest

from ascend_perf.reports.phrases import phrase
from tests.conftest import ROOT
from tests.reports.test_phrases import Fields, texts_of, untranslated

COLLECTORS = ("collect_plan", "_msprof_options", "_torch_options", "_own_manifest", "in_process")
MODULES = [
    *(ROOT / "ascend_perf" / "bench" / f"{name}.py" for name in ("collect", "collected", "overhead")),
    *(ROOT / "collectors" / f"{name}.py" for name in COLLECTORS),
]
FIELDS: Fields = {
    "append": (("", 0),), "notes.append": (("", 0),), "_notes.append": (("", 0),), "_problem": (("", 0),),
    "masked": (("", 0),),
}  # fmt: skip


def test_every_note_has_its_chinese() -> None:
    texts = {text for text in texts_of(MODULES, FIELDS) if " " in text and not text.startswith("--")}

    assert len(texts) > 25
    assert untranslated(texts) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the command ended with code 5", "命令以退出码 5 结束"),
        ("rank 3: the disk is full: the trace could not be written (hint: free space, or choose another -o)",
         "Rank 3：磁盘已满：trace 未能写入（提示：释放空间，或用 -o 换一个目录）"),
        ("nothing was recorded: 6 steps were seen, recording begins after 5 and needs 2 more",
         "没有采集到数据：共 6 步，采集在第 5 步之后开始，还需 2 步"),
        ("no Ascend NPU visible (no /dev/davinci*)", "看不到昇腾 NPU（没有 /dev/davinci*）"),
        ("PROF_1 could not be exported: x y (hint: source set_env.sh of CANN before this command)",
         "PROF_1 无法导出：x y（提示：请先 source CANN 的 set_env.sh）"),
    ],
)  # fmt: skip
def test_problems_and_their_hints(text: str, words: str) -> None:
    assert phrase(text).zh == words


USAGE = [
    *(ROOT / "collectors" / f"{name}.py"
      for name in ("collect_plan", "_msprof_options", "msprof", "_hccl_sweep", "_hccl_surroundings", "hccl_test")),
    *(ROOT / "ascend_perf" / place for place in ("bench/folder.py", "cli/collect.py", "cli/hccl_test.py")),
]  # fmt: skip


def test_wrong_usage_of_collect_and_hccl_test_has_its_chinese() -> None:
    texts = texts_of(USAGE, {"UsageError": (("", 0), ("hint", None)), "refuse": (("", 0), ("", 1))})
    # Short ones (`1 to 8`, `give -o FOLDER`) stay as they are: they could not be told from names in reports.
    whole = {text for text in texts if len(re.findall(r"[A-Za-z]{2,}", text)) >= 5}
    whole -= {text for text in whole if text.startswith("ascend-perf ")}  # commands
    assert len(whole) > 60
    assert {text for text in whole if not re.search(r"[\u4e00-\u9fff]", phrase(text).zh)} == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--aic-metrics=true: msprof would end before the program starts\n  hint: it takes PipeUtilization | Memory",
         "--aic-metrics=true：msprof 会在程序启动前退出（提示：可取 PipeUtilization | Memory）"),
        ("--ranks: msprof knows neither steps nor ranks, it would be ignored\n  hint: use --delay and --duration; or "
         "--with torch-npu",
         "--ranks：msprof 不识别 step 与 Rank，该选项会被忽略（提示：请用 --delay 与 --duration；"
         "或用 --with torch-npu）"),
        ("8 NPUs per node\n  hint: 1 to 8 on A2", "每节点 8 个 NPU（提示：A2 上为 1 至 8）"),
        ("HCCL_TEST_USE_DEVS names 4 devices, the run has 8 NPUs per node",
         "HCCL_TEST_USE_DEVS 指定 4 个设备，而每节点有 8 个 NPU"),
    ],
)  # fmt: skip
def test_wrong_usage_and_its_hint(text: str, words: str) -> None:
    assert phrase(text).zh == words
