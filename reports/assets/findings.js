// Ranked cards: what is slow, why, the evidence, what to do, and at most how much it gives.
(function () {
  const h = AP.h;
  const OPEN_CARDS = 5;
  const OPEN_AT_LEAST = 2; // further cards of low severity are folded
  const MARK = { critical: "▲▲", high: "▲", medium: "◆", low: "●" };

  function copyable(code) {
    const button = h("button", { type: "button", class: "quiet copy" }, AP.t("ui.copy"));
    button.addEventListener("click", function () { AP.copy(code, button); });
    // On a phone lines of code are wrapped: between words, not after the dashes of an option.
    const words = code.split(/(\s+)/).map(function (word) {
      if (/^-/.test(word) && word.length < 26) return h("span", { class: "whole" }, word);
      return word.length < 26 ? word : word.match(/[^(.]+[(.]*|[(.]+/g).map(function (part, i) { return i ? [h("wbr"), part] : part; });
    });
    return h("div", { class: "code" }, h("pre", { tabindex: "0" }, h("code", null, words)), button);
  }

  function ranges(numbers) {
    const sorted = Array.from(new Set(numbers)).sort(function (a, b) { return a - b; });
    const runs = [];
    for (const n of sorted) {
      const last = runs[runs.length - 1];
      if (last && n === last[1] + 1) last[1] = n;
      else runs.push([n, n]);
    }
    return runs.map(function (r) { return r[0] === r[1] ? String(r[0]) : r[0] + "-" + r[1]; }).join(", ");
  }
  AP.ranges = ranges;

  function evidence(finding, number) {
    const clocked = finding.evidence.some(function (item) { return item.at !== null; });
    return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": AP.t("ui.finding_n", { n: number }) + AP.t("ui.colon") + AP.t("ui.evidence") },
      h("table", { class: "evidence" }, h("caption", { class: "off" }, AP.t("ui.evidence")),
        h("tbody", null, finding.evidence.map(function (item) {
          const value = item.value === null ? AP.t("ui.unknown") : AP.format.quantity(item.value, item.unit);
          const isFigure = typeof item.value === "number";
          return h("tr", null,
            h("th", { scope: "row" }, AP.w(item.name)),
            isFigure ? h("td", { class: "figure" }, value) : h("td", { class: "word", colspan: 2 }, paths(AP.glued(value)), item.where ? h("span", { class: "muted" }, " · ", paths(AP.w(item.where))) : null),
            isFigure && h("td", { class: "where" }, paths(AP.w(item.where))),
            clocked && h("td", { class: "figure" }, item.at === null ? "" : AP.timelineOf(item.rank)
              ? h("button", {
                type: "button", class: "link", title: AP.t("ui.show_in_timeline"),
                on: { click: function () { AP.goTimeline(item.rank, item.at, item.at); } },
              }, AP.format.offset(item.at))
              : AP.format.offset(item.at)));
        }))));
  }

  /** A text whose long paths and names break where a folder or a word of theirs ends. */
  function paths(text) {
    return text.split(/([\x21-\x7e]{25,})/).map(function (part, i) {
      return i % 2 ? part.match(/[^/_.=:]+[/_.=:]*|[/_.=:]+/g).map(function (piece, k) { return k ? [h("wbr"), piece] : piece; }) : part;
    });
  }

  function body(finding, number) {
    const based = [
      finding.formula && [AP.t("ui.formula") + AP.t("ui.colon"), h("code", null, AP.w(finding.formula))],
      finding.source && [AP.t("ui.source") + AP.t("ui.colon"), paths(AP.w(finding.source))],
      [AP.t("ui.row") + AP.t("ui.colon") + finding.code],
    ].filter(Boolean);
    const band = finding.bands.find(function (b) { return AP.timelineOf(b.rank); });
    return h("div", { class: "card-body" },
      h("h4", null, AP.t("ui.why")), h("p", null, paths(AP.w(finding.cause))),
      finding.confirm && [h("h4", null, AP.t("ui.confirm")), h("p", null, paths(AP.w(finding.confirm)))],
      h("h4", null, AP.t("ui.evidence")), evidence(finding, number),
      finding.remedies.length && [h("h4", null, AP.t("ui.remedy")), h("ol", { class: "remedies" }, finding.remedies.map(function (r) {
        return h("li", null, paths(AP.w(r.text)), r.code && copyable(r.code));
      }))],
      h("p", { class: "based" }, AP.t("ui.based_on") + " — ", based.map(function (part, i) { return [i ? " · " : null, part]; })),
      h("p", { class: "links screen" },
        h("a", { href: "#section-" + finding.section }, AP.t("ui.go_to_section") + AP.t("ui.colon") + AP.t("section." + finding.section)),
        band && h("button", {
          type: "button", class: "link",
          on: { click: function () { AP.goTimeline(band.rank, band.start, band.end); } },
        }, AP.t("ui.show_in_timeline"))));
  }

  function head(finding, number) {
    const said = [];
    const only = AP.data.ranks.length === 1 && finding.ranks.every(function (rank) { return rank === AP.data.ranks[0]; });
    if (finding.ranks.length && !only) said.push(AP.t("ui.cause_on", { ranks: ranges(finding.ranks) }));
    if (finding.affected.length && ranges(finding.affected) !== ranges(finding.ranks)) {
      said.push(AP.t("ui.lost_on", { ranks: ranges(finding.affected) }));
    }
    return [
      h("span", { class: "number", "aria-hidden": "true" }, number),
      h("div", { class: "card-title" },
        h("h3", null, h("span", { class: "off" }, AP.t("ui.finding_n", { n: number }) + AP.t("ui.colon")), AP.w(finding.title)),
        h("p", { class: "gain" }, finding.gain ? [h("strong", null, AP.w(finding.gain)), finding.added && h("span", { class: "muted added" }, AP.w(finding.added))] : h("span", { class: "muted" }, AP.t("gain.unknown"))),
        h("p", { class: "meta" },
          h("span", { class: "severity" }, h("span", { "aria-hidden": "true" }, MARK[finding.severity] + " "), AP.t("severity." + finding.severity)),
          h("span", null, finding.code), said.map(function (text) { return h("span", null, text); }))),
    ];
  }

  function card(finding, index) {
    const number = index + 1;
    const id = "finding-" + number;
    const props = { id: id, class: "card sev-" + finding.severity };
    if (index < OPEN_CARDS && (index < OPEN_AT_LEAST || finding.severity !== "low")) return h("article", props, h("header", null, head(finding, number)), body(finding, number));
    props.open = Boolean(AP.state.open[id]);
    props.on = { toggle: function (e) { AP.state.open[id] = e.target.open; AP.save(); } };
    return h("details", props, h("summary", null, head(finding, number)), body(finding, number));
  }

  function judged(verdict) {
    return AP.data.judged.filter(function (row) { return row.verdict === verdict; });
  }

  function judgedList(verdict, title) {
    const rows = judged(verdict);
    if (!rows.length) return null;
    const id = "judged-" + verdict;
    const several = AP.data.ranks.length > 1;
    return h("details", {
      class: "judged", id: id, open: Boolean(AP.state.open[id]),
      on: { toggle: function (e) { AP.state.open[id] = e.target.open; AP.save(); } },
    },
    h("summary", null, AP.t(title, { count: rows.length })),
    verdict === "clean"
      ? h("ul", { class: "codes" }, rows.map(function (row) {
        const part = several && row.ranks.length && row.ranks.length < AP.data.ranks.length;
        return h("li", null, h("b", null, row.code), rule(row.code), part && h("span", { class: "muted" }, " · " + AP.t("ui.clean_part", { ranks: ranges(row.ranks) })));
      }))
      : h("dl", { class: "reasons" }, rows.map(function (row) {
        return [h("dt", null, row.code, rule(row.code)), h("dd", null, row.reason ? AP.w(row.reason) : AP.t("reason.none_given"))];
      })));
  }

  function rule(code) {
    const title = AP.data.rules && AP.data.rules[code];
    return title ? " " + AP.w(title) : null;
  }

  AP.findingsView = function () {
    const findings = AP.data.findings;
    return h("section", { id: "findings", class: "part" },
      h("h2", null, AP.t(findings.length ? "ui.first" : "ui.first_none")),
      findings.map(card),
      AP.data.together && h("p", { class: "together" }, AP.w(AP.data.together)),
      judgedList("clean", "ui.clean_count"),
      judgedList("not_judged", "ui.not_judged_count"));
  };
})();
