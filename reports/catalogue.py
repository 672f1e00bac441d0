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
    return dict(_flat(loaded(lang)))


def words(key: str, /, **values: object) -> Words:
    """Both languages of a catalogue entry with its `{placeholders}` filled; a `Words` value gives its own language.

    Raises:
        KeyError: an entry or a placeholder is missing.
    """
    return Words(_filled("en", key, values), _filled("zh", key, values))


def _filled(lang: Lang, key: str, values: Mapping[str, object]) -> str:
    plain = {name: getattr(value, lang) if isinstance(value, Words) else value for name, value in values.items()}
    return catalogue(lang)[key].format(**plain)


def loaded(name: str) -> Mapping[str, object]:
    """Content of `catalogues/NAME.yaml`."""
    import yaml

    text = (files("ascend_perf.reports") / "catalogues" / f"{name}.yaml").read_text("utf-8")
    content = yaml.safe_load(text)
    assert isinstance(content, dict)
    return content


def _flat(node: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    items: list[tuple[str, str]] = []
    for key, value in node.items():
        if isinstance(value, Mapping):
            items += _flat(value, f"{prefix}{key}.")
        else:
            items.append((f"{prefix}{key}", str(value)))
    return items
