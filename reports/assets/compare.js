// Page of a comparison: sides, what stands out, steps side by side, tables. Uses the modules of the report page.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;

  function entries() {
    return [["verdict", AP.t("ui.top")]]
      .concat(AP.data.bars.length ? [["where", AP.t("compare.steps")]] : [])
      .concat(AP.data.sections.map(function (s) { return ["section-" + s.key, AP.w(s.title)]; }));
  }

  function side(s) {
    const facts = [[AP.t("compare.device"), s.device === null ? "—" : s.device], [AP.t("compare.cards"), String(s.cards)]]
      .concat(s.facts.map(function (f) { return [AP.w(f[0]), AP.w(f[1])]; }));
    return h("div", { class: "compare-side" },
      h("h3", null, s.letter + (s.baseline ? " · " + AP.t("compare.baseline") : ""), " ",
        h("span", { class: "muted" }, AP.t("compare.kind_" + s.kind) + (s.origin === "simulated" ? " · " + AP.t("origin.simulated") : ""))),
      h("p", null, s.label),
      h("dl", { class: "facts" }, facts.map(function (f) { return h("div", null, h("dt", null, f[0]), h("dd", null, f[1])); })));
  }

  function verdict() {
    const grave = AP.data.said.some(function (s) { return s.grave; });
    return h("section", { id: "verdict", class: "verdict" + (grave ? " sev-critical" : "") },
      h("p", { class: "badges" }, h("span", { class: "badge " + AP.data.origin }, AP.data.mark === null ? AP.t("origin.measured") : AP.w(AP.data.mark)), h("span", { class: "muted" }, AP.data.generator)),
      h("h1", null, AP.w(AP.data.lead), " ", h("strong", null, AP.w(AP.data.main))),
      AP.data.said.length ? h("div", { class: "compare-said" },
        h("h2", null, AP.t(grave ? "compare.unlike_forced" : "compare.to_know")),
        h("ul", null, AP.data.said.map(function (s) { return h("li", { class: s.grave ? "grave" : null }, AP.w(s.text)); }))) : null,
      h("div", { class: "compare-sides", role: "group", "aria-label": AP.t("compare.sides") }, AP.data.sides.map(side)),
      AP.data.points.length ? [h("h2", { class: "compare-points" }, AP.t("compare.points")), h("ul", null, AP.data.points.map(function (p) { return h("li", null, AP.w(p)); }))] : null);
  }

  function named(letter, mark) {
    return mark === null ? letter : letter + (AP.state.lang === "zh" ? "（" + AP.w(mark) + "）" : " (" + AP.w(mark) + ")");
  }

  function bar(b, scale) {
    const tips = function (part) { return function () { return [named(b.letter, b.mark) + " · " + AP.w(part.label), q(part.ns, "ns") + " · " + q(part.ns / b.total_ns, "ratio")]; }; };
    return h("div", { class: "bar-row" },
      h("div", { class: "bar-label" }, b.letter, h("span", { class: "muted" }, " " + q(b.total_ns, "ns")), b.mark === null ? null : [" ", h("span", { class: "badge simulated" }, AP.w(b.mark))]),
      h("div", { class: "bar-track" }, h("div", { class: "bar", style: { width: (100 * b.total_ns / scale).toFixed(3) + "%" } },
        b.parts.filter(function (part) { return part.ns > 0; }).map(function (part) {
          const share = part.ns / b.total_ns;
          return h("span", { class: "piece k-" + part.kind + " s0", tabindex: "0", role: "img", style: { "flex-grow": String(share) }, "aria-label": tips(part)().join(AP.t("ui.colon")), on: AP.tipped(tips(part)) },
            share > 0.05 ? h("span", { class: "piece-text" }, h("span", { class: "piece-name" }, AP.w(part.label) + " "), h("b", null, q(share, "ratio"))) : null);
        }))));
  }

  function bars() {
    const there = AP.data.bars.filter(function (b) { return b.total_ns > 0; });
    if (!there.length) return null;
    const scale = Math.max.apply(null, there.map(function (b) { return b.total_ns; }));
    const parts = there[0].parts.map(function (part, i) { return [part, there.map(function (b) { return b.parts[i]; })]; });
    return h("section", { id: "where", class: "part" },
      h("h2", null, named(AP.t("compare.steps"), AP.data.bars_mark)),
      h("div", { class: "bars" }, there.map(function (b) { return bar(b, scale); })),
      h("p", { class: "note" }, AP.t("compare.steps_note")),
      h("table", { class: "compare-split" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, h("span", { class: "off" }, AP.t("compare.steps"))), there.map(function (b) { return h("th", { scope: "col", class: "figure" }, named(b.letter, b.mark)); }))),
        h("tbody", null,
          parts.map(function (row) {
            return h("tr", null, h("th", { scope: "row" }, h("span", { class: "swatch k-" + row[0].kind + " s0", "aria-hidden": "true" }), AP.w(row[0].label)),
              row[1].map(function (part, i) { return h("td", { class: "figure" }, q(part.ns, "ns"), h("span", { class: "muted" }, " " + q(part.ns / there[i].total_ns, "ratio"))); }));
          }),
          h("tr", { class: "total" }, h("th", { scope: "row" }, h("span", { class: "swatch", "aria-hidden": "true" }), AP.t("ui.total")), there.map(function (b) { return h("td", { class: "figure" }, q(b.total_ns, "ns")); })))));
  }

  function section(s) {
    return h("section", { id: "section-" + s.key, class: "part" },
      h("div", { class: "section-head" }, h("h2", null, AP.w(s.title))),
      s.tables.map(function (at) {
        const table = AP.data.tables[at];
        return [AP.tableView(table, table.name + "/" + at), table.cut ? h("p", { class: "note" }, AP.t("compare.cut", { shown: table.rows, count: table.cut })) : null];
      }));
  }

  AP.sheet("compare.title", entries, function () { return [verdict(), bars(), AP.data.sections.map(section)]; });
})();
