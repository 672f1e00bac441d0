"""A short view of an analysis for a notebook's cell and for a plain terminal: answer, tiles, step, findings, data.

The cell is HTML without a script. Its styles hold only below its own class, so that the notebook around it stays as it
is; its colours follow the notebook's theme (JupyterLab and Notebook, VS Code, Colab), else the system's.
"""

from __future__ import annotations

import html
from typing import Final

from ascend_perf.model.finding import Finding, Words
from ascend_perf.reports.bars import Bar, Kind, bars
from ascend_perf.reports.catalogue import catalogue
from ascend_perf.reports.palette import FONT, Theme, category, palette, shades
from ascend_perf.reports.payload import Payload
from ascend_perf.reports.texts import Lang, safe, said
from ascend_perf.reports.verdict import Tile, all_together, facts, gain, spread, tiles, verdict
from ascend_perf.units import format_quantity

CLASS: Final = "ascend-perf-report"

MAX_FINDINGS: Final = 5
MAX_BARS: Final = 8
MAX_PARTS: Final = 14
MAX_TEXT: Final = 400
"""Of a cell: findings, ranks, parts of a bar, characters of a text."""

_MORE_RANKS: Final = Words("{count} more ranks", "另有 {count} 张卡")
_MORE_FINDINGS: Final = Words("{count} more findings", "另有 {count} 项发现")
_HINT: Final = Words(
    '.report("folder") writes the full page, .figures() draws its charts',
    '.report("folder") 写出完整报告，.figures() 绘制其图表',
)
_DOUBTS: Final = Words("cross-checks that differ: {count}", "不一致的交叉校验：{count}")
_WARNINGS: Final = Words("warnings: {count}", "警告：{count}")

_USED: Final = ("page", "panel", "text", "muted", "line", "sev-critical", "sev-high", "sev-medium", "sev-low", "good")
_SEVERITY: Final = {"critical": "sev-critical", "high": "sev-high", "medium": "sev-medium", "low": "sev-low"}

_RULES: Final = """
.{c} {{ {light} color-scheme: light; background: var(--page); color: var(--text); font: 13px/1.45 {font};
  font-variant-numeric: tabular-nums; padding: 12px 16px; border: 1px solid var(--line); border-radius: 6px;
  max-width: 1100px; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{ .{c} {{ {dark} color-scheme: dark; }} }}
[data-jp-theme-light="true"] .{c}, .vscode-light .{c}, html[theme="light"] .{c} {{ {light} color-scheme: light; }}
[data-jp-theme-light="false"] .{c}, .vscode-dark .{c}, html[theme="dark"] .{c} {{ {dark} color-scheme: dark; }}
.{c} div, .{c} p, .{c} ol, .{c} li, .{c} dl {{ margin: 0; padding: 0; }}
.{c} .muted {{ color: var(--muted); font-weight: 400; }}
.{c} .answer {{ border-left: 4px solid var(--sev, var(--muted)); padding: 2px 0 2px 12px; font-size: 16px; }}
.{c} .answer .gain {{ font-size: 14px; }}
.{c} .badge {{ border: 1px solid var(--sev); color: var(--sev); border-radius: 9px; padding: 0 8px; font-size: 12px; }}
.{c} .simulated {{ border: 1px dashed var(--sev-high); border-radius: 4px; padding: 2px 8px; margin: 4px 0 8px;
  font-size: 12px; }}
.{c} .tiles {{ display: flex; flex-wrap: wrap; margin: 12px 0; border: solid var(--line); border-width: 1px 0; }}
.{c} .tile {{ flex: 1 1 120px; padding: 6px 12px 6px 0; }}
.{c} .tile b {{ display: block; font-size: 17px; font-weight: 600; white-space: nowrap; }}
.{c} .step {{ display: flex; align-items: center; gap: 8px; margin: 3px 0; }}
.{c} .step .name {{ flex: none; min-width: 130px; }}
.{c} .bar {{ display: flex; flex: 1; gap: 1px; height: 18px; }}
.{c} .bar span {{ min-width: 1px; }}
.{c} .key {{ display: inline-block; margin-right: 14px; white-space: nowrap; font-size: 12px; }}
.{c} .key i {{ display: inline-block; width: 11px; height: 11px; margin-right: 5px; vertical-align: -1px; }}
.{c} ol {{ list-style: none; margin: 12px 0; }}
.{c} ol li {{ border-left: 3px solid var(--sev, var(--muted)); padding: 1px 0 1px 10px; margin: 5px 0; }}
.{c} .foot {{ border-top: 1px solid var(--line); padding-top: 6px; font-size: 12px; }}
{categories}
"""


def cell_html(payload: Payload) -> str:
    """The view as HTML in the payload's language; every text of the profile is escaped."""
    view = _View(payload)
    parts = (view.answer(), view.tiles(), view.steps(), view.findings(), view.foot())
    return f'<div class="{CLASS}" lang="{view.tag}"><style>{_style()}</style>{"".join(parts)}</div>'


def cell_text(payload: Payload) -> str:
    """The view as plain text in the payload's language."""
    view, lang = _View(payload), payload.lang
    answer = verdict(payload)
    lines = [banner] if (banner := view.banner()) else []
    lines.append(f"{said(answer.lead, lang)} {said(answer.main, lang)}")
    if answer.gain is not None:
        lines.append(said(answer.gain, lang))
    colon, comma = view.words["ui.colon"], view.words["ui.comma"]
    shown = [f"{said(t.label, lang)}{colon}{said(t.value, lang)}{comma}{said(t.note, lang)}" for t in tiles(payload)]
    lines += ["", *(f"  {text}" for text in shown), ""]
    for number, finding in enumerate(payload.findings[:MAX_FINDINGS], 1):
        lines.append(f"  {number}. [{finding.code}] {view.title(finding)}")
        if bound := view.gain_of(finding):
            lines.append(f"     {bound}")
    lines += [f"  {text}" for text in view.more()]
    lines += ["", view.data(), view.say(_HINT)]
    return "\n".join(" ".join(line.split("\n")) for line in lines)


def _style() -> str:
    def colours(theme: Theme) -> str:
        return " ".join(f"--{name}: {palette(theme)[name]};" for name in _USED)

    kinds: tuple[Kind, ...] = ("computing", "transfer", "wait", "copy", "idle", "host", "other")
    made = [
        f".{CLASS} .k-{kind}-{shade} {{ background: {category(kind, shade)}; }}"
        for kind in kinds
        for shade in range(5 if kind not in ("wait", "other") else 1)
    ]
    hatched = f"repeating-linear-gradient(-45deg, {category('wait')} 0 2px, {palette()['wait-paper']} 2px 6px)"
    made.append(f".{CLASS} .k-wait-0 {{ background: {hatched}; }}")
    return _RULES.format(
        c=CLASS, font=FONT.replace('"', "'"), light=colours("light"), dark=colours("dark"), categories="\n".join(made)
    )


class _View:
    """Pieces of the cell."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.lang: Lang = payload.lang
        self.tag = "zh-CN" if payload.lang == "zh" else "en"
        self.words = catalogue(payload.lang)
        self.span = spread(payload.figures("span_us"))

    def say(self, words: Words) -> str:
        """One language, short enough for a cell."""
        return safe(said(words, self.lang), MAX_TEXT)

    def shown(self, words: Words) -> str:
        """The same, escaped."""
        return html.escape(self.say(words))

    def title(self, finding: Finding) -> str:
        """The finding in a sentence."""
        return self.say(finding.title)

    def gain_of(self, finding: Finding) -> str:
        """What it can give at most; empty when unknown."""
        bound = gain(finding, self.span)
        return "" if bound is None else self.say(bound)

    def banner(self) -> str:
        """What is simulated and what is not; empty where all was measured."""
        if self.payload.data_origin == "measured":
            return ""
        return f"{self.words['origin.simulated']}{self.words['ui.colon']}{self.words['origin.banner']}"

    def answer(self) -> str:
        """The band at the top."""
        answer = verdict(self.payload)
        first = self.payload.findings[:1]
        colour = _SEVERITY[first[0].severity.value] if first else "good" if answer.is_clean else "muted"
        origin = self.payload.data_origin
        badge = "good" if origin == "measured" else "sev-high"
        bound = "" if answer.gain is None else f'<p class="gain">{self.shown(answer.gain)}</p>'
        label = html.escape(safe(self.payload.label, 120))
        said_of_data = html.escape(self.words[f"origin.{origin}"])
        banner = f'<p class="simulated">{html.escape(text)}</p>' if (text := self.banner()) else ""
        return (
            f'<p><span class="badge" style="--sev: var(--{badge})">{said_of_data}</span> '
            f'<span class="muted">{label}</span></p>{banner}'
            f'<div class="answer" style="--sev: var(--{colour})"><p>{self.shown(answer.lead)} '
            f"<b>{self.shown(answer.main)}</b></p>{bound}</div>"
        )

    def tiles(self) -> str:
        """Figures of the step."""
        return f'<div class="tiles">{"".join(self._tile(tile) for tile in tiles(self.payload))}</div>'

    def _tile(self, tile: Tile) -> str:
        mark = {"bad": (" ▲", "sev-critical"), "watch": (" ◆", "sev-high")}.get(tile.state)
        sign = "" if mark is None else f'<span style="color: var(--{mark[1]})">{mark[0]}</span>'
        return (
            f'<div class="tile" title="{self.shown(tile.hint)}"><span class="muted">{self.shown(tile.label)}</span>'
            f'<b>{self.shown(tile.value)}{sign}</b><span class="muted">{self.shown(tile.note)}</span></div>'
        )

    def steps(self) -> str:
        """Where the step goes: the ranks with the longest steps, and what their colours mean."""
        known = [bar for bar in bars(self.payload) if bar.parts and bar.total_ns > 0]
        if not known:
            return ""
        drawn = sorted(known, key=lambda bar: (not bar.is_outlier, -bar.total_ns))[:MAX_BARS]
        drawn.sort(key=lambda bar: -bar.total_ns)
        scale = drawn[0].total_ns
        rows = "".join(self._bar(bar, scale) for bar in drawn)
        hidden = len(known) - len(drawn)
        more = "" if not hidden else f'<p class="muted">{html.escape(self.say(_MORE_RANKS).format(count=hidden))}</p>'
        return f"<div>{rows}{more}{self._keys(drawn[0])}</div>"

    def _bar(self, bar: Bar, scale: float) -> str:
        rank = "ui.rank_unknown" if bar.rank is None else "ui.rank_n"
        name = html.escape(self.words[rank].format(rank=bar.rank) + (" ◆" if bar.is_outlier else ""))
        pieces = "".join(
            f'<span class="k-{part.kind}-{_shade(part.kind, shade)}" '
            f'style="flex: {part.time_ns / bar.total_ns:.5f} 1 0" '
            f'title="{self.shown(part.label)}: {self._amount(part.time_ns, bar.total_ns)}"></span>'
            for part, shade in list(zip(bar.parts, shades(bar), strict=True))[:MAX_PARTS]
        )
        total = html.escape(format_quantity(bar.total_ns, "ns"))
        return (
            f'<div class="step"><span class="name">{name} <span class="muted">{total}</span></span>'
            f'<div class="bar" style="max-width: {100 * bar.total_ns / scale:.3f}%">{pieces}</div></div>'
        )

    def _keys(self, bar: Bar) -> str:
        made = [
            f'<span class="key"><i class="k-{part.kind}-{_shade(part.kind, shade)}"></i>{self.shown(part.label)} '
            f'<span class="muted">{self._amount(part.time_ns, bar.total_ns)}</span></span>'
            for part, shade in list(zip(bar.parts, shades(bar), strict=True))[:MAX_PARTS]
        ]
        return f"<div>{' '.join(made)}</div>"

    def _amount(self, time_ns: float, total_ns: float) -> str:
        return html.escape(f"{format_quantity(time_ns, 'ns')}, {format_quantity(time_ns / total_ns, 'ratio')}")

    def findings(self) -> str:
        """The first findings with their bounds."""
        rows = "".join(
            f'<li style="--sev: var(--{_SEVERITY[finding.severity.value]})"><b>{number}.</b> '
            f'{html.escape(self.title(finding))} <span class="muted">{html.escape(self._about(finding))}</span></li>'
            for number, finding in enumerate(self.payload.findings[:MAX_FINDINGS], 1)
        )
        more = "".join(f'<p class="muted">{html.escape(text)}</p>' for text in self.more())
        return (f"<ol>{rows}</ol>" if rows else "") + more

    def _about(self, finding: Finding) -> str:
        severity = self.words[f"severity.{finding.severity.value}"]
        return " · ".join(filter(None, (self.gain_of(finding), severity, safe(finding.code, 20))))

    def more(self) -> list[str]:
        """How many findings are not shown, and what all of them give together."""
        hidden = len(self.payload.findings) - MAX_FINDINGS
        together = all_together(self.payload.findings)
        lines = [self.say(_MORE_FINDINGS).format(count=hidden)] if hidden > 0 else []
        return lines + ([self.say(together)] if together is not None else [])

    def data(self) -> str:
        """How complete the data is, in a line."""
        known = {said(fact.label, "en"): fact for fact in facts(self.payload)}
        data = known[catalogue("en")["fact.data"]]
        line = f"{self.say(data.label)}{self.words['ui.colon']}{self.say(data.value)}"
        checks = sum(not check.holds for rank in self.payload.ranks for check in rank.meta.checks)
        warnings = len({text for rank in self.payload.ranks for text in rank.meta.warnings})
        for count, words in ((checks, _DOUBTS), (warnings, _WARNINGS)):
            if count:
                line += ("；" if self.lang == "zh" else "; ") + self.say(words).format(count=count)
        return line

    def foot(self) -> str:
        """Data quality, and what to do for more."""
        version = html.escape(f"ascend-perf {self.payload.version}")
        return (
            f'<div class="foot"><p>{html.escape(self.data())}</p>'
            f'<p class="muted">{self.shown(_HINT)} · {version}</p></div>'
        )


def _shade(kind: Kind, shade: int) -> int:
    return 0 if kind in ("wait", "other") else shade % 5
