"""Words of the gate in both languages, and names made safe for where they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from ascend_perf.gate.outcome import Decision, Explanation, Outcome, Row
from ascend_perf.model.finding import Words
from ascend_perf.units import format_quantity, significant

Lang = Literal["en", "zh"]
COLONS: Final[Mapping[Lang, str]] = {"en": ": ", "zh": "："}
SEMICOLONS: Final[Mapping[Lang, str]] = {"en": "; ", "zh": "；"}

MAX_TEXT: Final = 500
"""A longer text from a file is cut."""

_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""What a terminal obeys, what turns the direction of writing, and what XML cannot hold."""
_MARKUP: Final = re.compile(r"[\\`*{}\[\]<>#|~&@!$]|(?<!\w)_|_(?!\w)|:(?=//)|(?<=www)\.")

OUTCOMES: Final[Mapping[Outcome, Words]] = {
    "regression": Words("regression", "性能劣化"),
    "not_comparable": Words("not comparable", "不可比"),
    "inconclusive": Words("cannot tell", "无法判定"),
    "warning": Words("warning", "警告"),
    "allowed": Words("allowed", "已豁免"),
    "improved": Words("improved", "提升"),
    "new": Words("new", "新增"),
    "removed": Words("removed", "已移除"),
    "pass": Words("pass", "通过"),
}

VERDICTS: Final[Mapping[Decision, Words]] = {
    "pass": Words("Performance gate passed", "性能门禁通过"),
    "regression": Words("Performance gate failed: regression", "性能门禁未通过：性能劣化"),
    "inconclusive": Words("Performance gate cannot tell: measure more", "性能门禁无法判定：需要更多测量"),
    "not_comparable": Words("Performance gate cannot compare", "性能门禁无法比较"),
}

SIMULATED: Final = Words("simulated", "仿真")
OF_ONE_SIDE: Final[Mapping[str, Words]] = {
    "base": Words("base simulated", "BASE 为仿真"), "head": Words("head simulated", "HEAD 为仿真"),
}
"""Of figures that are made of both sides."""


def say(words: Words, lang: Lang) -> str:
    """The text in one language, on one line."""
    return clean(words.zh if lang == "zh" else words.en, 4 * MAX_TEXT)


def clean(text: object, most: int = MAX_TEXT) -> str:
    """One line without characters that a terminal, an XML parser or the direction of writing obey."""
    plain = " ".join(_CONTROL.sub("\ufffd", re.sub(r"[\t\n\r]+", " ", str(text))).split(" ")).strip()
    return plain if len(plain) <= most else f"{plain[:most]}…"


def markdown(text: object, most: int = MAX_TEXT) -> str:
    """`text` as it is in Markdown: no markup, no HTML, no mention of a person, no link."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", clean(text, most))


def bracketed(text: str, words: Words | None, lang: Lang) -> str:
    """A text with a remark behind it, if there is one."""
    if words is None:
        return text
    return f"{text}（{say(words, lang)}）" if lang == "zh" else f"{text} ({say(words, lang)})"


def simulated(
    of: Row | Explanation, side: Literal["base", "head", "both"] = "both"
) -> Words | None:
    """What a figure of one side, or of both, must be read with; None where nothing of it is simulated."""
    if not of.simulated or side == of.measured_side:
        return None
    if of.measured_side is None or side != "both":
        return SIMULATED
    return OF_ONE_SIDE["head" if of.measured_side == "base" else "base"]


def figure(row: Row, side: Literal["base", "head"], lang: Lang = "en") -> str:
    """The figure of a side with its unit; a simulated one says so."""
    value = row.base if side == "base" else row.head
    return "—" if value is None else bracketed(format_quantity(value, row.unit), simulated(row, side), lang)


def change(row: Row) -> str:
    """The change with its sign."""
    if row.change_ratio is None:
        return "—"
    percent = row.change_ratio * 100
    return "=" if percent == 0 else f"{'+' if percent > 0 else '-'}{significant(abs(percent), 3)} %"


def interval(row: Row) -> str:
    """The interval of the change."""
    if row.interval is None or row.interval.lower == row.interval.upper:
        return "—"
    ends = ((end - 1) * 100 for end in (row.interval.lower, row.interval.upper))
    return " … ".join(f"{'-' if end < 0 else '+'}{significant(abs(end), 3)} %" for end in ends)


def of_both(text: str, row: Row, lang: Lang) -> str:
    """A figure that is made of both sides, such as the change; it says so where one is simulated."""
    return text if text in ("—", "=") else bracketed(text, simulated(row), lang)


def launches(row: Row) -> str:
    """Launches of both sides."""
    return "—" if row.interval is None else f"{row.interval.base_launches} + {row.interval.head_launches}"


def title(row: Row, lang: Lang) -> str:
    """What a row is about, and how it ended."""
    about = " · ".join(part for part in (clean(row.benchmark), clean(row.name)) if part)
    return f"{about}{COLONS[lang]}{say(OUTCOMES[row.outcome], lang)}"


def message(row: Row, lang: Lang) -> str:
    """The row in a sentence: figures, change, reason; it says which side is simulated, whatever it holds of it."""
    parts = []
    if row.base is not None and row.head is not None and row.base != row.head:
        parts.append(f"{figure(row, 'base', lang)} -> {figure(row, 'head', lang)}"
                     + (f" ({change(row)})" if row.change_ratio else ""))  # fmt: skip
        parts.append(say(row.reason, lang))
    else:
        parts.append(bracketed(say(row.reason, lang), simulated(row), lang))
    return SEMICOLONS[lang].join(parts)


def sentence(row: Row, lang: Lang) -> str:
    """Title and message."""
    return f"{title(row, lang)}{'。' if lang == 'zh' else '. '}{message(row, lang)}"
