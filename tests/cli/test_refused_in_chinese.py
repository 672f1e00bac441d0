"""What commands with `--lang` refuse, and what they say of runs that failed, is said in Chinese."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from ascend_perf.reports.phrases import phrase
from tests._support import Said
from tests.conftest import ROOT
from tests.reports import _errors
from tests.reports.test_virtual_npu_phrases import in_english

Command = Callable[..., Said]

PACKAGE = ROOT / "ascend_perf"
NODES = PACKAGE / "bench" / "suite_node.py"
"""Its functions make the errors of the reader of suites."""
SILENT = {PACKAGE / name for name in ("analysis.py", "cli/serve.py", "cli/devices.py", "gate/decide.py")} | {
    ROOT / "collectors" / f"{name}.py" for name in ("own_loop", "in_process")
}  # fmt: skip
"""Modules of Python's interface and of commands without `--lang`; what `gate` decides has words of its own."""
MODULES = sorted({
    *PACKAGE.glob("*.py"), *PACKAGE.glob("parsers/*.py"), *(ROOT / "collectors").glob("*.py"),
    *(path for name in ("bench", "cli", "compare", "gate", "history", "atc") for path in PACKAGE.glob(f"{name}/*.py")),
    *(ROOT / "workloads").glob("*.py"), *(ROOT / "reports").glob("**/*.py"),
} - SILENT)  # fmt: skip

TO_COPY = re.compile(
    r"(?:ascend-perf|nsys export|git) |--[a-z-]+ (?:\d|\"|[A-Z]+$|7$)|like \"|- 'step|fused_ops: |llm-serve: 7"
)
"""Hints that are a command, an option or a setting to write: they are the same in both languages."""
TOGETHER = {
    "7 is not in 7", "7 needs a 7", "7: 7 needs a 7", "7 names 7", "7: 7 names 7", "7 has no name",
    *(f"{file} needs one of workload, command and server, has 7{more}" for file in ("7", "7: 7")
      for more in ("", " (7)", " (7: did you mean 7?)")),
    "7 holds no 7, no manifest of a run, and no snapshots of operators",
    "7: 7 needs about: {en, zh} and set: {key: value}", "7: expected a mapping from preset to about and set",
    "prompt must be text", "prompt_tokens is missing", "output_tokens is missing",
}  # fmt: skip
"""Texts that are put together from computed parts, or stand within another: they are tried below."""


def texts_of(module: Path) -> set[str]:
    """What a module can refuse something with, and the hints: without what computed parts stand alone for."""
    errors = _errors.of(module, *([NODES] if module.name == "suite_file.py" else []))
    # A computed end is mostly nothing, or a sentence of its own; "rank 3 of 8: " may stand in front.
    texts = {re.sub(r"^7(?=[a-z])|(?<=[a-z)?])7$", "", text) for error in errors for text in (error.what, error.hint)}
    return {text for text in texts if len(re.findall("[A-Za-z]{2,}", text)) > 1} - TOGETHER


def test_every_text_with_which_a_command_refuses_has_its_chinese() -> None:
    texts = set(chain.from_iterable(texts_of(module) for module in MODULES))

    assert len(texts) > 900
    assert {text: phrase(text).zh for text in texts if not TO_COPY.match(text) and in_english(text)} == {}


def test_why_a_file_was_not_read_is_said_in_chinese_without_its_name() -> None:
    """Readers name the file in front; where files are listed the name stands apart."""
    errors = set(chain.from_iterable(_errors.of(module) for module in PACKAGE.glob("parsers/*.py")))
    texts = {error.what.removeprefix("7: ") for error in errors if error.what.startswith("7: ")} - {"7"}

    assert len(texts) > 10
    assert {text: phrase(text).zh for text in texts if in_english(text)} == {}


def test_the_silent_modules_are_there() -> None:
    assert {path for path in {*SILENT, NODES} if not path.exists()} == set()


# ---- as they come ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "line"),
    [
        ("name: x\nname: y\n", "s.yaml 不是可读取的 YAML：第 2 行：键 'name' 重复"),
        ("benchmarks: 3\n", "s.yaml: benchmarks 应为列表，实际为 3"),
        ("benchmarks: {}\n", "s.yaml: benchmarks 应为列表，实际为映射"),
        ("benchmarks: []\n", "s.yaml 没有基准测试"),
        ("benchmarks: [{wrkload: micro}]\n",
         "s.yaml: benchmarks[0] 须有 workload、command、server 之一，实际都没有（'wrkload'：是否指 'workload'？）"),
        ("benchmarks: [{workload: micro, server: y}]\n",
         "s.yaml: benchmarks[0] 只能有 workload、command、server 之一，实际有 workload 与 server"),
        ("benchmarks: [{workload: micro, command: x, server: y}]\n",
         "s.yaml: benchmarks[0] 只能有 workload、command、server 之一，实际有 workload、command 与 server"),
        ("benchmarks: [{workload: mcro}]\n",
         "s.yaml: benchmarks[0].workload 给出的工作负载 'mcro' 不存在：是否指 'micro'？"),
        ("benchmarks: [{workload: micro, device: cud}]\n",
         "s.yaml: benchmarks[0].device 应为 auto, npu, cuda, cpu 之一，实际为 'cud'：是否指 'cuda'？"),
        ("benchmarks: [{workload: micro, runs: [1]}]\n",
         "s.yaml：benchmarks[0].runs 应为 1 至 1000 的整数，实际为列表"),
        ("benchmarks: [{workload: llm-pretrain, set: {width: 65}}]\n",
         "s.yaml: benchmarks[0].set 无法测量：llm-pretrain 的设置：width 65 不能平均分为 8 个 head"),
        ("benchmarks: [{name: c, command: x, metrics: [{regex: a}]}]\n", "s.yaml: benchmarks[0].metrics[0] 缺少 name"),
        ("benchmarks: [{name: c, command: x, metrics: [{name: a, regex: b}]}]\n",
         "s.yaml: benchmarks[0].metrics[0].regex 应只有一个组，即数值；现有：0"),
        ("benchmarks: [{name: c, command: \"x 'y\", metrics: [{name: a, regex: (b)}]}]\n",
         "s.yaml: benchmarks[0].command 无法拆分为命令：引号未闭合"),
        ("benchmarks: [{name: c, server: 'http://x', model: m, load: {requests: 0}}]\n",
         "s.yaml: benchmarks[0].load 有误：load 的设置：requests 应不小于 1，实际为 0"),
    ],
)  # fmt: skip
def test_suites_are_refused_in_chinese(command: Command, tmp_path: Path, suite: str, line: str) -> None:
    (tmp_path / "s.yaml").write_text(suite, "utf-8")

    said = command("bench", tmp_path / "s.yaml", "--dry-run", "--lang", "zh")

    assert said.code in (2, 3)
    assert said.err.splitlines()[0] == f"ascend-perf: {line}"


def test_runs_of_a_suite_that_fail_say_why_in_chinese(command: Command, tmp_path: Path) -> None:
    entry = "- {{name: {}, command: {}, metrics: [{{name: speed, regex: 'speed (\\S+)', unit: {}}}]}}\n"
    entries = [
        ("ends", "[sh, -c, 'echo speed 1; exit 3']", "ms"), ("silent", "[sh, -c, 'exit 4']", "ms"),
        ("killed", "[sh, -c, 'kill -9 $$']", "ms"), ("nothing", "[sh, -c, 'echo done']", "ms"),
        ("absent", "[/nowhere/tool]", "ms"), ("negative", "[sh, -c, 'echo speed -4']", "ns"),
        ("endless", "[sh, -c, 'echo speed 1e999']", "ms"),
    ]  # fmt: skip
    suite = "runs: 1\nbenchmarks:\n" + "".join(entry.format(*one) for one in entries).replace("ms", "none")
    (tmp_path / "s.yaml").write_text(suite, "utf-8")

    said = command("bench", tmp_path / "s.yaml", "-o", tmp_path / "out", "--lang", "zh")

    assert [line for line in said.err.splitlines() if "失败" in line] == [
        "ascend-perf: ends: 失败：命令以退出码 3 结束：speed 1",
        "ascend-perf: silent: 失败：命令以退出码 4 结束：没有任何输出",
        "ascend-perf: killed: 失败：命令被信号 SIGKILL 终止：没有任何输出",
        "ascend-perf: nothing: 失败：speed：日志中没有与其正则表达式匹配的内容",
        "ascend-perf: absent: 失败：tool 无法启动：文件或目录不存在",
        "ascend-perf: negative: 失败：speed：日志中为 -4，单位为 ns 的指标不可能为负",
        "ascend-perf: endless: 失败：speed: '1e999' 不是有限数",
    ]


@pytest.mark.parametrize(
    ("policy", "line", "hint"),
    [
        ("- 1\n", "p.yaml: 应为映射，实际为 list", ""),
        ("a: 1\na: 2\n", "p.yaml 不是可读取的 YAML：第 2 行：键 'a' 重复", ""),
        ("metrics: [{fail: 0.1}]\n", "p.yaml: metrics[0] 没有 match", "match：名称或通配模式，如 *_p99"),
        ("metrics: [{match: a}]\n", "p.yaml: metrics[0] 既没有 fail 也没有 warn",
         "fail: null 表示只显示该指标，不设限值"),
        ("metrics: [{match: a, fail: 3 %}]\n", "p.yaml: metrics[0].fail 应为比值，实际为 '3 %'", "0.03 即 3 %"),
        ("metrics: [{match: a, fail: 0.1, warn: 0.2}]\n", "p.yaml: metrics[0] 从 0.2 起告警，高于判为失败的 0.1",
         "warn 不得大于 fail"),
        ("confidence: 0.1\n", "p.yaml: confidence 应在 0.5 至 0.9999 之间，实际为 0.1", ""),
        ("op_stream: mor\n", "p.yaml: op_stream 应为 exact, more, warn, ignore 之一，实际为 'mor'", "是否指 more？"),
        ("schema_version: 2\n", "p.yaml: schema_version 为 2，本版 ascend-perf 读取的策略版本为 1", ""),
        ("allow: [{benchmark: a, owner: li, until: 2026-12-31}]\n", "p.yaml: allow[0] 没有 metric",
         "metric：名称或通配模式；* 表示全部"),
        ("allow: [{metric: a}]\n", "p.yaml: allow[0] 没有 benchmark", "benchmark：名称或通配模式"),
        ("allow: [{benchmark: a, metric: b}]\n", "p.yaml: allow[0] 没有 owner", "owner：负责人"),
        ("allow: [{benchmark: a, metric: b, owner: c}]\n", "p.yaml: allow[0] 没有 until",
         "until：有效期的最后一天，如 2026-12-31"),
        ("allow: [{benchmark: a, metric: b, owner: c, until: soon}]\n",
         "p.yaml: allow[0].until 应为日期，如 2026-12-31，实际为 'soon'", ""),
    ],
)  # fmt: skip
def test_policies_are_refused_in_chinese(command: Command, tmp_path: Path, policy: str, line: str, hint: str) -> None:
    (tmp_path / "p.yaml").write_text(policy, "utf-8")

    said = command("gate", tmp_path, tmp_path, "--policy", tmp_path / "p.yaml", "--lang", "zh")

    assert said.err.splitlines() == [f"ascend-perf: {line}", *([f"  提示：{hint}"] if hint else [])]


def test_a_folder_without_results_is_refused_in_chinese(command: Command, tmp_path: Path) -> None:
    said = command("gate", tmp_path, tmp_path, "--lang", "zh")

    line = f"{tmp_path.name} 中既没有 results.json，也没有运行的 manifest 或算子快照"
    assert said.err.splitlines()[0] == f"ascend-perf: {line}"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"schema_version": 9}, "manifest.json 的 schema_version 为 9，本版 ascend-perf 读取的版本为 1"),
        ({"data_origin": "guessed"}, "manifest.json: data_origin 应为 measured 或 simulated，实际为 'guessed'"),
        ({"notes": [1]}, "manifest.json: notes 应为文本列表，实际为 '[1]'"),
        ({"files": {"trace": ["../x"]}},
         "manifest.json: files 应为由运行目录内路径列表组成的对象，实际为 \"{'trace': ['../x']}\""),
        ({"metrics": [{"name": "a"}]},
         'manifest.json：指标应为 {"name", "value", "unit", "better"}（单位与方向须已知），实际为 "{\'name\': \'a\'}"'),
    ],
)  # fmt: skip
def test_manifests_are_refused_in_chinese(
    command: Command, tmp_path: Path, change: dict[str, object], line: str
) -> None:
    manifest = {
        "schema_version": 1, "workload": "micro", "preset": None, "device": {"type": "cpu"}, "created": "2026-01-01",
        "data_origin": "measured", **change,
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), "utf-8")

    said = command("gate", tmp_path, tmp_path, "--lang", "zh")

    assert said.err.splitlines()[0] == f"ascend-perf: {line}"


@pytest.mark.parametrize(
    ("stream", "line"),
    [
        ("x\n", "a.ops.txt 不是算子快照"),
        ("ascend-perf op-stream 2\n", "a.ops.txt 的版本为 '2'，本版 ascend-perf 读取的版本为 1"),
        ("ascend-perf op-stream 1\nworkload\n",
         "a.ops.txt 第 2 行：应为 `key: value`，且各键只出现一次，实际为 'workload'"),
        ("ascend-perf op-stream 1\n\n[totals]\n0 a\n",
         "a.ops.txt 第 4 行：应为次数与算子，且各算子只出现一次，实际为 '0 a'"),
        ("ascend-perf op-stream 1\n\n[totals]\n1 a\n\n[stream]\n2 x a\n",
         "a.ops.txt 第 7 行：算子数应与 [totals] 的计数一致，实际为 '2 x a'"),
        ("ascend-perf op-stream 1\nworkload: a\nworld_size: 1\nmode: fake\n\n[totals]\n2 a\n\n[stream]\na\n",
         "a.ops.txt：[totals] 与 [stream] 不一致：文件被改动或不完整"),
    ],
)  # fmt: skip
def test_snapshots_are_refused_in_chinese(command: Command, tmp_path: Path, stream: str, line: str) -> None:
    path = tmp_path / "a.ops.txt"
    path.write_text(stream, "utf-8")

    assert command("diff-snapshot", path, path, "--lang", "zh").err.splitlines()[0] == f"ascend-perf: {line}"


CLUE = '{"sentence": "a", "label": "1"}\n'


@pytest.mark.parametrize(
    ("workload", "data", "line"),
    [
        ("bert-clue", "{\n", "data.json 第 1 行：不是 JSON："),
        ("bert-clue", "[]\n", "data.json 第 1 行：应为 JSON 对象，实际为 list"),
        ("bert-clue", '{"text": "a", "label": "1"}\n',
         "data.json 第 1 行：既没有 sentence 也没有 sentence1；其键为 text, label"),
        ("bert-clue", '{"sentence": 3, "label": "1"}\n',
         "data.json 第 1 行：sentence 的类型为 int；其键为 sentence, label"),
        ("bert-clue", '{"sentence": "a"}\n', "data.json 第 1 行：没有 label；其键为 sentence"),
        ("bert-clue", CLUE, "data.json 只有 1 条文本：不足以留出一条用于验证"),
        ("lora-finetune", '{"instruction": "a"}\n',
         "data.json 第 1 行：没有内容为文本的字段 'output'（字段：instruction）"),
        ("lora-finetune", '{"messages": 3}\n', "data.json 第 1 行：messages 不是消息列表"),
        ("lora-finetune", '{"messages": [{"role": "user", "content": "a"}]}\n',
         "data.json 第 1 行：没有 assistant 角色的消息，因此没有可学习的内容"),
    ],
)  # fmt: skip
def test_data_of_workloads_is_refused_in_chinese(tmp_path: Path, workload: str, data: str, line: str) -> None:
    from ascend_perf.errors import InputError
    from ascend_perf.workloads import _clue, _instructions

    path = tmp_path / "data.json"
    path.write_text(data, "utf-8")
    with pytest.raises(InputError) as refused:
        _clue.read_texts(path) if workload == "bert-clue" else _instructions.read_instructions(path)

    assert phrase(refused.value.what).zh.startswith(line)
    assert not refused.value.hint or not in_english(refused.value.hint)


def test_folders_of_pictures_are_refused_in_chinese(tmp_path: Path) -> None:
    from ascend_perf.errors import InputError
    from ascend_perf.workloads import _images

    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "x.jpg").touch()
    for name in ("a", "b"):
        (tmp_path / "cats" / name).mkdir(parents=True)
    (tmp_path / "cats" / "b" / "x.png").touch()
    said = []
    for folder in (tmp_path / "none", tmp_path / "flat", tmp_path / "cats"):
        with pytest.raises(InputError) as refused:
            _images.found_pictures(folder) if folder.name == "none" else _images.labelled_folder(folder)
        said.append(f"{phrase(refused.value.what).zh}；{phrase(refused.value.hint).zh}")

    assert said == [
        "none：不是图片目录；请用 --data FOLDER 给出",
        "flat：没有按类别划分的目录；应为 FOLDER/<类别>/<图片>.jpg",
        "cats/a：没有图片（.jpeg, .jpg, .png）；其下应为每个类别一个目录",
    ]


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ("", "t.jsonl 含 0 个请求；应为 1 至 1000000 个"),
        ("[]\n", "t.jsonl 第 1 行：不是由数字组成的 JSON 对象"),
        ('{"prompt": 3, "output_tokens": 1}\n', "t.jsonl 第 1 行：prompt 应为文本"),
        ('{"output_tokens": 1}\n', "t.jsonl 第 1 行：缺少 prompt_tokens"),
        ('{"prompt_tokens": 1}\n', "t.jsonl 第 1 行：缺少 output_tokens"),
        ('{"prompt_tokens": 0, "output_tokens": 1}\n', "t.jsonl 第 1 行：prompt_tokens 应为不小于 1 的数字"),
    ],
)
def test_traces_of_requests_are_refused_in_chinese(command: Command, tmp_path: Path, trace: str, line: str) -> None:
    (tmp_path / "t.jsonl").write_text(trace, "utf-8")

    said = command("load", "http://127.0.0.1:9", "--mode", "replay", "--trace", tmp_path / "t.jsonl", "--lang", "zh")

    assert said.err.splitlines()[0] == f"ascend-perf: {line}"


@pytest.mark.parametrize(
    ("words", "line", "hint"),
    [
        (("load", "ftp://x"), "'ftp://x' 不是服务端的地址", "例如：http://127.0.0.1:8000"),
        (("load", "http://127.0.0.1:9"), "无法连接服务端：连接被拒绝", "请检查 URL"),
        (("claims", "CL-99"), "没有宣称 'CL-99'：是否指 'CL-19'？", "`ascend-perf claims` 列出全部"),
        (("bench", "tny"), "tny：没有此文件，也没有同名的套件：是否指 'tiny'？", "自带的套件："),
        (("snapshot", "comm-bench"), "comm-bench 至少需要 2 个进程", "请加 --nproc 2"),
        (("snapshot", "micro", "-o", "nowhere/x.txt"), "无法写入 nowhere/x.txt：所在目录不存在，或该路径是目录", ""),
        (("hccl-test", "sum", "--dry-run"), "没有测试 'sum'", "可选测试："),
        (("hccl-test", "all_reduce", "--dtype", "fp13", "--dry-run"), "没有类型 'fp13'", "可选类型："),
        (("hccl-test", "all_reduce", "--dry-run", "--min", "8X"), "'8X' 不是大小", "例如：4096, 8K, 64M, 1G"),
    ],
)  # fmt: skip
def test_wrong_words_of_a_command_are_refused_in_chinese(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], line: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)

    said = command(*words, "--lang", "zh")

    lines = said.err.splitlines()
    assert lines[0] == f"ascend-perf: {line}"
    assert len(lines) == 1 + bool(hint)
    assert not hint or lines[1].startswith(f"  提示：{hint}")


def test_export_says_in_chinese_what_it_did_not_read(command: Command, tmp_path: Path) -> None:
    from tests.test_pipeline import trace_file

    trace_file(tmp_path / "in" / "a.json", 0)
    (tmp_path / "in" / "bad.json.gz").write_bytes(b"\x1f\x8b\x08\x00nonsense" * 9)
    (tmp_path / "in" / "cut.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [')[:-9])

    said = command("export", tmp_path / "in", "--format", "perfetto", "-o", tmp_path / "out.json.gz", "--lang", "zh")

    assert said.code == 0, said.err
    assert said.err.splitlines() == [
        "ascend-perf: 未读取：bad.json.gz：损坏的 gzip 文件",
        "ascend-perf: 未读取：cut.json.gz：0 个事件中没有算子、Kernel 或 Runtime 事件；文件是不完整的 gzip 文件",
    ]


def test_files_that_history_does_not_add_are_named_in_chinese(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is in the history extra")
    (tmp_path / "a.json").write_text("{}", "utf-8")
    (tmp_path / "b.json").write_text("", "utf-8")

    said = command("history", "add", tmp_path / "a.json", tmp_path / "b.json", "--db", tmp_path / "h", "--lang", "zh")

    assert said.err.splitlines() == [
        "ascend-perf: a.json 没有 schema_version，本版 ascend-perf 读取的结果文件版本为 1（提示：请用本版重新测量，"
        "或使用写出该文件的 ascend-perf 版本）",
        "ascend-perf: b.json 为空（提示：应写出该文件的运行没有得到第一个结果）",
        "ascend-perf: 2 个文件中有 2 个未添加",
        "  提示：原因见上",
    ]


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"TASK_QUEUE_ENABLE": "9"}, "TASK_QUEUE_ENABLE=9：应为 0, 1, 2 之一"),
        ({"TASK_QUEUE_ENABEL": "1"}, "TASK_QUEUE_ENABEL：未知变量：是否指 TASK_QUEUE_ENABLE？"),
        ({"HCCL_BUFFSIZE": "0"}, "HCCL_BUFFSIZE=0：应为 1 至 1048576 的整数"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2,1"}, "ASCEND_RT_VISIBLE_DEVICES=2,1：设备须按升序排列且不重复"),
        ({"HCCL_ALGO": "level0:NA"}, "HCCL_ALGO=level0:NA：level0 与 level1 都需要"),
        ({"HCCL_RDAM_TC": "1"}, "HCCL_RDAM_TC：没有此变量，是某公开工具的拼写错误"),
        ({"HCCL_EXEC_TIMEOUT": "300", "HCCL_EVENT_TIMEOUT": "200"},
         "HCCL_EXEC_TIMEOUT=300 HCCL_EVENT_TIMEOUT=200：后者应大于前者"),
    ],
)  # fmt: skip
def test_variables_of_a_launch_are_refused_in_chinese(variables: dict[str, str], line: str) -> None:
    from ascend_perf.device.launch_settings import check_environment

    (problem,) = check_environment(variables, "npu")

    assert phrase(problem.words.en).zh == line


def test_what_is_said_of_variables_in_the_table_has_its_chinese() -> None:
    import yaml

    table = yaml.safe_load((PACKAGE / "device" / "specs" / "launch_settings.yaml").read_text("utf-8"))
    texts = {f"X: {entry['about']['en']}" for entry in table["not_real"].values()}
    texts |= {f"X=1 Y=2: {pair['en']}" for pair in table["pairs"]}

    assert len(texts) > 5
    assert {text: phrase(text).zh for text in texts if in_english(text)} == {}
