// Above a table whose rows are parts of a whole: one stacked bar of them, in the colours of their categories.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const SHADES = 5;
  const MOST_KEYS = 10;
  const AMOUNTS = ["time_ns", "total_ns"];

  /** The rows with their time, shade and name, in the order of the table but by category; null without any time. */
  function partsOf(table) {
    const time = AMOUNTS.map(function (name) { return AP.column(table, name); }).find(Boolean);
    const name = AP.column(table, "component") || AP.column(table, "cause");
    const of = AP.column(table, "class");
    if (!table.kinds || !time || !name) return null;
    const parts = [];
    for (let row = 0; row < table.rows; row++) {
      const ns = time.get(row), more = of && of.get(row);
      if (ns > 0) parts.push({ ns: ns, kind: table.kinds[row], name: (name.get(row) || "—") + (more ? AP.t("ui.comma") + more : "") });
    }
    const kinds = Array.from(new Set(parts.map(function (p) { return p.kind; })));
    parts.sort(function (a, b) { return kinds.indexOf(a.kind) - kinds.indexOf(b.kind) || b.ns - a.ns; });
    const seen = {};
    parts.forEach(function (p) {
      seen[p.kind] = (seen[p.kind] || 0) + 1;
      p.shade = (seen[p.kind] - 1) % SHADES;
    });
    return parts.length ? { parts: parts, kinds: kinds } : null;
  }

  function key(kind, shade, text) {
    return h("span", { class: "key" }, h("span", { class: "swatch k-" + kind + " s" + shade, "aria-hidden": "true" }), h("span", null, text));
  }

  /** What the colours mean: categories, or the parts themselves where all are of one. */
  function keys(found, whole) {
    if (found.kinds.length === 1) {
      const rest = found.parts.slice(MOST_KEYS);
      return found.parts.slice(0, MOST_KEYS).map(function (p) { return key(p.kind, p.shade, p.name + " " + AP.format.share(p.ns / whole)); })
        .concat(rest.length ? [h("span", { class: "key" }, AP.t("chart.other_parts", { count: rest.length }))] : []);
    }
    return found.kinds.map(function (kind) {
      const sum = found.parts.reduce(function (all, p) { return all + (p.kind === kind ? p.ns : 0); }, 0);
      return key(kind, 0, AP.t("kind." + kind) + " " + AP.format.share(sum / whole));
    });
  }

  AP.compositionView = function (table) {
    const found = partsOf(table);
    if (!found || found.parts.length < 2) return null;
    const whole = found.parts.reduce(function (sum, p) { return sum + p.ns; }, 0);
    const said = found.parts.slice(0, MOST_KEYS).map(function (p) { return p.name + " " + AP.format.share(p.ns / whole); }).join("; ");
    return h("figure", { class: "chart composition", "data-chart": "composition" },
      h("figcaption", null, h("span", { class: "off" }, AP.w(table.title)), h("span", { class: "muted" }, AP.t("chart.composition", { time: q(whole, "ns"), count: found.parts.length }))),
      h("div", { class: "bar", role: "img", "aria-label": said }, found.parts.map(function (p) {
        const share = p.ns / whole;
        const lines = function () { return [p.name, q(p.ns, "ns") + " · " + AP.format.share(share), AP.t("kind." + p.kind)]; };
        return h("div", { class: "piece k-" + p.kind + " s" + p.shade, style: { "flex-grow": String(share) }, on: AP.tipped(lines) },
          share > 0.02 ? h("span", { class: "piece-text" }, h("span", { class: "piece-name" }, p.name + " "), h("b", null, q(share, "ratio"))) : null);
      })),
      h("div", { class: "keys" }, keys(found, whole)));
  };
})();
