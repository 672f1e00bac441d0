"""Text on its way out: one language picked, what a trace smuggled in made harmless for each kind of file."""

from __future__ import annotations

import re
from typing import Final, Literal

from ascend_perf.model.finding import Words

Lang = Literal["en", "zh"]
Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
"""What our documents are made of."""

MAX_TEXT: Final = 4000
"""Characters kept of one text. Status: assumed; kernel names with template arguments reach about 1500."""

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Control characters and the marks that turn the direction of writing (they can make text read as something else)."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def safe(text: str, most: int = MAX_TEXT) -> str:
    """`text` without control characters and lone surrogates, cut at `most` characters."""
    text = _SURROGATE.sub("\ufffd", _CONTROL.sub("\ufffd", text))
    return text if len(text) <= most else f"{text[:most]}…"


def said(words: Words, lang: Lang) -> str:
    """The text in one language."""
    return safe(words.en if lang == "en" else words.zh)


def pair(words: Words) -> Json:
    """Both languages for the page; one string where they are equal."""
    en, zh = safe(words.en), safe(words.zh)
    return en if en == zh else [en, zh]


_MARKDOWN: Final = re.compile(r"([\\`*{}\[\]<>#|~]|(?<!\w)_|_(?!\w))")
"""Characters that Markdown could read as markup; an underscore inside a word it cannot."""


def markdown(text: str) -> str:
    """`text` as it is in Markdown: one line, nothing of it read as markup or HTML."""
    plain = _MARKDOWN.sub(r"\\\1", " ".join(safe(text).split())).replace("&", "&amp;")
    # A comment on GitHub would call the person of that name.
    return re.sub(r"(?<!\w)@(?=\w)", "&#64;", plain)


def markdown_code(text: str) -> str:
    """`text` as a fenced block; the fence is longer than any run of backticks in it."""
    text = safe(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def script_json(text: str) -> str:
    """JSON text that cannot end or open a script element; the value it stands for is the same."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
