"""The visible words of the reports in English and Chinese, kept in `catalogues/*.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from ascend_perf.model.finding import Words
from ascend_perf.reports.texts import Lang


@lru_cache(maxsize=2)
def catalogue(lang: Lang) -> Mapping[str, str]:
    """Texts by dotted key, e.g. `section.memory`."""
    return dict(_flat(_loaded(lang)))


@lru_cache(maxsize=1)
def phrases() -> Mapping[str, Words]:
    """Words for fixed phrases in the cells of result tables."""
    made = {}
    for key, both in _loaded("phrases").items():
        assert isinstance(both, list)
        made[key] = Words(str(both[0]), str(both[1]))
    return made


def words(key: str, /, **values: object) -> Words:
    """Both languages of a catalogue entry with its `{placeholders}` filled; a `Words` value gives its own language.

    Raises:
        KeyError: an entry or a placeholder is missing.
    """
    return Words(_filled("en", key, values), _filled("zh", key, values))


def phrase(text: str, column: str = "") -> Words:
    """A fixed phrase of the tool (component, drop reason) as readers see it; unknown text stays as it is.

    Args:
        text: the cell.
        column: name of its column, which can give a phrase a meaning of its own.
    """
    known = phrases()
    for name in (f"{column}/{text}", text):
        if found := known.get(name):
            return found
        for head, tail, words_of in _patterns():
            if name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail):
                part = name[len(head) : len(name) - len(tail)]
                return Words(words_of.en.replace("*", part), words_of.zh.replace("*", part))
    return Words(text or "—", text or "—")


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, str, Words], ...]:
    """Phrases with a `*`: what stands before it, what stands behind it, and the words."""
    starred = [(name.split("*"), both) for name, both in phrases().items() if "*" in name]
    return tuple((head, tail, both) for (head, tail), both in starred)


def _filled(lang: Lang, key: str, values: Mapping[str, object]) -> str:
    plain = {name: getattr(value, lang) if isinstance(value, Words) else value for name, value in values.items()}
    return catalogue(lang)[key].format(**plain)


def _loaded(name: str) -> Mapping[str, object]:
    import yaml

    text = (files("ascend_perf.reports") / "catalogues" / f"{name}.yaml").read_text("utf-8")
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def _flat(node: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    items: list[tuple[str, str]] = []
    for key, value in node.items():
        if isinstance(value, Mapping):
            items += _flat(value, f"{prefix}{key}.")
        else:
            items.append((f"{prefix}{key}", str(value)))
    return items
