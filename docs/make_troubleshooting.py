"""Write docs/troubleshooting.md, the table that findings refer to, from the rules of the package.

python docs/make_troubleshooting.py            write it
python docs/make_troubleshooting.py --check    say whether it is up to date (exit code 1 when it is not)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ascend_perf.analyzers import _rules
from ascend_perf.model.finding import Words

TARGET = Path(__file__).parent / "troubleshooting.md"

HEAD = """# Troubleshooting table

Written by `docs/make_troubleshooting.py` from `analyzers/rules/`; do not edit.
In the terminal: `ascend-perf explain N-05`.

Severity is the default while the share of the step is unknown. The mark says where a threshold comes from:
S seen in a source file or an official document, M measured and published by others, I inferred or a rule of thumb.
A row lists its thresholds with their defaults, and each says where it comes from; [a user's file](method.md#thresholds)
overrides them.
"""

GROUPS = {
    "H": Words("Device idle, host-bound, scheduling", "设备空闲与下发瓶颈"),
    "C": Words("Compute kernels", "计算算子"),
    "M": Words("Memory traffic on the device", "设备访存"),
    "N": Words("Communication", "通信"),
    "D": Words("Input pipeline, DVPP and AIPP", "数据输入、DVPP 与 AIPP"),
    "K": Words("Memory capacity and fragmentation", "内存容量与碎片"),
    "P": Words("Power and frequency", "功耗与频率"),
    "E": Words("Mixture of experts", "MoE"),
    "L": Words("Pipeline parallelism", "流水线并行"),
    "V": Words("Inference and serving", "推理与服务化"),
    "Q": Words("Precision and stability", "精度与稳定性"),
}


def page() -> str:
    """The whole page as Markdown, English and Chinese row by row."""
    lines = [HEAD]
    letter = ""
    for code in _rules.rule_codes():
        if code[0] != letter:
            letter = code[0]
            lines += [f"## {letter}. {GROUPS[letter].en} · {GROUPS[letter].zh}", ""]
        lines += _row(_rules.rule(code))
    return "\n".join(lines)


def _row(rule: _rules.Rule) -> list[str]:
    lines = [f"### {rule.code} {rule.title.en} {{ #{rule.code.lower()} }}", "", rule.title.zh, ""]
    lines += [f"Severity {rule.severity.value}, threshold {rule.mark}.", ""]
    for label, words in (
        ("Symptom", rule.symptom),
        ("Cause", rule.cause),
        ("Confirm", rule.confirm),
        ("Effect", rule.effect),
    ):
        lines += [f"**{label}.** {_text(words.en)}", "", _text(words.zh), ""]
    lines += ["**What to do**", ""]
    for number, remedy in enumerate(rule.remedies, 1):
        where = "" if remedy.vendors == _rules.VENDORS else f"[{'/'.join(remedy.vendors).upper()}] "
        lines += [f"{number}. {where}{_text(remedy.text.en)} {_text(remedy.text.zh)}", ""]
        if remedy.code:
            lines += ["    ```text", *(f"    {line}" for line in remedy.code.splitlines()), "    ```", ""]
    if rule.needs_data is not None:
        lines += [f"**Not judged from profiles; what would tell.** {_text(rule.needs_data.en)}", ""]
        lines += [_text(rule.needs_data.zh), ""]
    if rule.judged_by:
        lines += [f"Judged by: {', '.join(f'`{name}`' for name in rule.judged_by)}", ""]
    lines += _thresholds(rule.code)
    lines += [f"Source: {'; '.join(rule.sources)}", ""]
    return lines


def _thresholds(code: str) -> list[str]:
    limits = _rules.limits_of(code)
    if not limits:
        return []
    lines = ["| threshold | default | says | from |", "| --- | --- | --- | --- |"]
    for owner, item in limits:
        name = f"`{item.name}`" if owner == code else f"`{item.name}` of [{owner}](#{owner.lower()})"
        origin = f"{item.status}: {_text(item.source)}" if item.source else item.status
        lines.append(f"| {name} | {item.shown} | {_text(item.text.en)} {_text(item.text.zh)} | {origin} |")
    return [*lines, ""]


def _text(text: str) -> str:
    """Markdown in which names with signs of their own stay as they are."""
    return re.sub(r"([*_<\[\]|])", r"\\\1", text)


def main() -> None:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, "utf-8")
        print(TARGET.relative_to(Path.cwd()) if TARGET.is_relative_to(Path.cwd()) else TARGET.name)
    elif not TARGET.is_file() or TARGET.read_text("utf-8") != text:
        print("docs/troubleshooting.md is not up to date: python docs/make_troubleshooting.py")
        sys.exit(1)


if __name__ == "__main__":
    main()
