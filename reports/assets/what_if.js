// Page of estimates: the answer, device time of an item by configuration with its range, tables. Uses the modules of
// the report page.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const LONGEST = 4;  // times the shortest bar

  function simulated(title) {
    return AP.state.lang === "zh" ? title + "（" + AP.t("origin.simulated") + "）" : title + " (" + AP.t("origin.simulated") + ")";
  }

  function hasBars() {
    return AP.data.groups.some(function (g) { return g.rows.length > 0; });
  }

  function entries() {
    return [["verdict", AP.t("ui.top")], ["chart", AP.t(hasBars() ? "what_if.chart" : "what_if.problems")], ["tables", AP.t("what_if.table")]]
      .concat(AP.data.left_out.length ? [["left-out", AP.t("what_if.left_out")]] : []).concat([["notes", AP.t("what_if.notes")]]);
  }

  function verdict() {
    return h("section", { id: "verdict", class: "verdict" },
      h("p", { class: "badges" }, h("span", { class: "badge simulated" }, AP.t("origin.simulated")),
        h("span", { class: "muted" }, [AP.data.generator].concat(AP.data.versions.map(function (v) { return v[0] + " " + v[1]; })).join(" · "))),
      h("h1", null, AP.w(AP.data.lead), AP.state.lang === "zh" ? null : " ", h("strong", null, AP.w(AP.data.main))),
      AP.data.groups.length > 1 ? h("ul", { class: "wi-verdicts" }, AP.data.groups.map(function (g) { return h("li", null, AP.w(g.said)); })) : null);
  }

  function figures(row, item) {
    return [AP.format.significant(row.rate, 3) + " " + item + "/s", row.mfu === null ? null : "MFU " + q(row.mfu, "ratio"),
      q(row.peak, "bytes")].filter(function (x) { return x !== null; });
  }

  function bar(row, item, scale, least) {
    const tip = function (i) { return function () {
      return [AP.w(row.label), AP.w(AP.data.parts[i].label) + AP.t("ui.colon") + q(row.parts[i] / row.ns, "ratio"), AP.t("what_if.per_item") + AP.t("ui.colon") + q(row.parts[i], "ns")];
    }; };
    const range = function () { return [AP.w(row.label), AP.t("what_if.range") + AP.t("ui.colon") + q(row.low, "ns") + " – " + q(row.high, "ns")]; };
    return [
      h("div", { class: "wi-label" }, AP.w(row.label),
        row.best ? h("span", { class: "mark best" }, AP.t(row.sure ? "what_if.mark_best" : "what_if.mark_first")) : null,
        row.rival ? h("span", { class: "mark" }, AP.t("what_if.mark_rival")) : null),
      h("div", { class: "wi-track" + (row.high > scale ? " cut" : "") },
        h("div", { class: "wi-bar", style: { width: (100 * row.ns / scale).toFixed(3) + "%" } }, row.parts.map(function (ns, i) {
          if (!(ns > 0)) return null;
          const share = ns / row.ns;
          return h("span", { class: "piece k-" + AP.data.parts[i].kind + " s0", tabindex: "0", role: "img", style: { "flex-grow": String(share) }, "aria-label": tip(i)().join(AP.t("ui.colon")), on: AP.tipped(tip(i)) });
        })),
        h("div", { class: "wi-range", tabindex: "0", role: "img", "aria-label": range().join(AP.t("ui.colon")), on: AP.tipped(range),
          style: { left: (100 * row.low / scale).toFixed(3) + "%", width: (100 * (row.high - row.low) / scale).toFixed(3) + "%" } }),
        row.ns > scale ? h("span", { class: "wi-cut" }, AP.t("what_if.cut", { times: AP.format.significant(row.ns / least, 2) })) : null),
      h("div", { class: "wi-figures" }, h("b", null, figures(row, item)[0]), h("span", { class: "muted" }, figures(row, item).slice(1).join(" · "))),
    ];
  }

  function group(g, scale, least) {
    return h("div", { class: "wi-group" },
      h("h3", null, g.title),
      g.rows.length ? h("div", { class: "wi-rows" }, g.rows.map(function (row) {
        row.sure = g.told;
        return bar(row, g.item, scale, least);
      })) : null,
      g.without.length ? h("ul", { class: "wi-without" }, g.without.map(function (w) {
        return h("li", null, h("b", null, AP.w(w.label)), AP.t("ui.colon") + AP.w(w.state) + AP.t("ui.colon"), h("span", { class: "muted" }, AP.w(w.why)),
          w.fits === null ? null : h("div", { class: "muted" }, AP.w(w.fits)));
      })) : null);
  }

  function chart() {
    // One bar that is many times longer would make all others points: those are cut, and say so. The others are there
    // with the whole of their range.
    const rows = AP.data.groups.flatMap(function (g) { return g.rows; });
    const least = Math.min.apply(null, rows.map(function (r) { return r.ns; }));
    const whole = rows.filter(function (r) { return r.ns <= LONGEST * least; });
    const scale = rows.length ? Math.max.apply(null, whole.map(function (r) { return r.high; })) : 1;
    const used = AP.data.parts.filter(function (p, i) { return AP.data.groups.some(function (g) { return g.rows.some(function (r) { return r.parts[i] > 0; }); }); });
    return h("section", { id: "chart", class: "part" },
      h("div", { class: "section-head" }, h("h2", null, hasBars() ? simulated(AP.t("what_if.chart")) : AP.t("what_if.problems"))),
      hasBars() ? h("p", { class: "note" }, AP.t("what_if.chart_note")) : null,
      hasBars() ? h("ul", { class: "wi-legend" }, used.map(function (p) {
        return h("li", null, h("span", { class: "swatch k-" + p.kind + " s0", "aria-hidden": "true" }), AP.w(p.label));
      }), h("li", null, h("span", { class: "whisker", "aria-hidden": "true" }), AP.t("what_if.range"))) : null,
      AP.data.groups.map(function (g) { return group(g, scale, least); }));
  }

  function tables() {
    return h("section", { id: "tables", class: "part" },
      h("div", { class: "section-head" }, h("h2", null, simulated(AP.t("what_if.table")))),
      AP.data.tables.map(function (table, at) { return AP.tableView(table, table.name + "/" + at); }));
  }

  function rest() {
    return [
      AP.data.left_out.length ? h("section", { id: "left-out", class: "part" }, h("h2", null, AP.t("what_if.left_out")),
        h("ul", null, AP.data.left_out.map(function (l) { return h("li", null, l[0] + AP.t("ui.colon") + l[1].join(", ")); }))) : null,
      h("section", { id: "notes", class: "part" }, h("h2", null, AP.t("what_if.notes")),
        h("ul", null, AP.data.notes.map(function (n) { return h("li", null, AP.w(n)); }))),
    ];
  }

  AP.sheet("what_if.title", entries, function () { return [verdict(), chart(), tables(), rest()]; });
})();
