"""What collect and the hooks write into a manifest is said in Chinese as well."""

from __future__ import annotations

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
