// Message size against bandwidth of collectives, both logarithmic, with the vendor peak of their link as a line.
(function () {
  const h = AP.h;
  const s = AP.s;
  const q = AP.format.quantity;
  const KINDS = 6;  // colours and shapes; what is more shares the last
  const AREA = { least: 3, most: 13 };  // radius in px

  /** Outlines around (0, 0), so that kinds differ by more than colour. */
  const SHAPES = [
    function (r) { return "M" + -r + " 0a" + r + " " + r + " 0 1 0 " + 2 * r + " 0a" + r + " " + r + " 0 1 0 " + -2 * r + " 0Z"; },
    function (r) { return "M" + -r + " " + -r + "H" + r + "V" + r + "H" + -r + "Z"; },
    function (r) { return "M0 " + -1.2 * r + "L" + 1.1 * r + " " + 0.8 * r + "H" + -1.1 * r + "Z"; },
    function (r) { return "M0 " + -1.3 * r + "L" + 1.3 * r + " 0L0 " + 1.3 * r + "L" + -1.3 * r + " 0Z"; },
    function (r) { return "M0 " + 1.2 * r + "L" + 1.1 * r + " " + -0.8 * r + "H" + -1.1 * r + "Z"; },
    function (r) { return "M" + -r + " " + -r + "L0 " + -0.4 * r + "L" + r + " " + -r + "L" + 0.4 * r + " 0L" + r + " " + r + "L0 " + 0.4 * r + "L" + -r + " " + r + "L" + -0.4 * r + " 0Z"; },
  ];

  function pointsOf(table) {
    const columns = {};
    ["op", "group", "group_size", "transport", "count", "size_bytes", "time_ns", "total_ns", "bus_bytes_per_s", "peak_bytes_per_s"].forEach(function (name) { columns[name] = AP.column(table, name); });
    if (!columns.size_bytes || !columns.bus_bytes_per_s) return [];
    const made = [];
    for (let row = 0; row < table.rows; row++) {
      const at = {};
      for (const name in columns) at[name] = columns[name] ? columns[name].get(row) : null;
      if (at.size_bytes > 0 && at.bus_bytes_per_s > 0) made.push(at);
    }
    return made;
  }

  /** What colour and shape stand for: the link, or the group where all points are of one link. */
  function kindsOf(points) {
    function of(name, unknown) { return function (p) { return p[name] === null ? unknown : String(p[name]); }; }
    const link = of("transport", AP.t("chart.link_unknown"));
    const group = of("group", "?");
    const links = Array.from(new Set(points.map(link)));
    const by = links.length > 1 ? link : function (p) { return link(p) + AP.t("ui.comma") + group(p); };
    const names = Array.from(new Set(points.map(by)));
    const place = function (p) { return Math.min(KINDS - 1, names.indexOf(by(p))); };
    const shown = names.length > KINDS ? names.slice(0, KINDS - 1).concat(AP.t("chart.other_groups", { count: names.length - KINDS + 1 })) : names;
    return { place: place, names: shown, link: link };
  }

  /** The ceilings that are known, once each: {label, top}. */
  function ceilingsOf(points, link) {
    const found = {};
    points.forEach(function (p) {
      if (!(p.peak_bytes_per_s > 0)) return;
      const key = link(p) + "|" + p.peak_bytes_per_s;
      const one = found[key] = found[key] || { link: link(p), top: p.peak_bytes_per_s, ranks: new Set() };
      if (p.group_size !== null) one.ranks.add(p.group_size);
    });
    const list = Object.values(found);
    list.forEach(function (one) {
      const several = list.filter(function (other) { return other.link === one.link; }).length > 1;
      one.label = several && one.ranks.size ? AP.t("chart.ceiling_ranks", { link: one.link, count: AP.ranges(Array.from(one.ranks)) }) : one.link;
    });
    return list.sort(function (a, b) { return b.top - a.top; });
  }

  AP.sizesView = function (table) {
    const points = pointsOf(table);
    if (!points.length) return null;
    const kinds = kindsOf(points);
    const ceilings = ceilingsOf(points, kinds.link);
    const longest = Math.max.apply(null, points.map(function (p) { return p.total_ns || 0; }));
    const calls = points.reduce(function (sum, p) { return sum + (p.count || 1); }, 0);
    const xs = points.map(function (p) { return Math.log10(p.size_bytes); });
    const ys = points.map(function (p) { return Math.log10(p.bus_bytes_per_s); }).concat(ceilings.map(function (c) { return Math.log10(c.top); }));
    const range = {
      x0: Math.floor(Math.min.apply(null, xs) - 0.1), x1: Math.ceil(Math.max.apply(null, xs) + 0.1),
      y0: Math.floor(Math.min.apply(null, ys) - 0.1), y1: Math.max.apply(null, ys) + 0.25,
    };
    // The large ones first, so that small ones stay visible on top of them.
    const order = points.slice().sort(function (a, b) { return (b.total_ns || 0) - (a.total_ns || 0); });

    function draw(width) {
      const height = Math.round(Math.max(260, Math.min(400, width * 0.42)));
      const rate = function (p) { return q(+Math.pow(10, p).toPrecision(1), "bytes_per_s"); };
      // Few decades: their twos and fives too.
      const ticks = AP.powers(range.y0, range.y1).concat(range.y1 - range.y0 > 3.5 ? [] : AP.powers(range.y0 - 1, range.y1).map(function (p) { return [p + Math.log10(2), p + Math.log10(5)]; }).flat())
        .filter(function (p) { return p >= range.y0 && p <= range.y1; });
      const m = { l: 18 + 6 * Math.max.apply(null, ticks.map(function (p) { return rate(p).length; })), r: 24, t: 14, b: 44 };
      const px = function (v) { return m.l + (Math.log10(v) - range.x0) / (range.x1 - range.x0) * (width - m.l - m.r); };
      const py = function (v) { return height - m.b - (Math.log10(v) - range.y0) / (range.y1 - range.y0) * (height - m.t - m.b); };
      const root = s("svg", { width: width, height: height, role: "img", "aria-label": AP.t("chart.sizes") });
      // Powers of two are what messages are sized by; steps of 2^10 read as kiB, MiB, GiB.
      const every = Math.max(1, Math.ceil((range.x1 - range.x0) / Math.max(2, Math.floor((width - m.l - m.r) / 70)) / Math.log10(4)));
      for (let p = Math.ceil(range.x0 / Math.log10(4) / every) * every; p * Math.log10(4) <= range.x1 + 1e-9; p += every) {
        const at = px(Math.pow(4, p));
        root.append(s("line", { class: "grid", x1: at, x2: at, y1: m.t, y2: height - m.b }),
          s("text", { class: "tick", x: at, y: height - m.b + 16, "text-anchor": "middle" }, q(Math.pow(4, p), "bytes")));
      }
      ticks.forEach(function (p) {
        const at = py(Math.pow(10, p));
        root.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: at, y2: at }),
          s("text", { class: "tick", x: m.l - 6, y: at + 4, "text-anchor": "end" }, rate(p)));
      });
      root.append(s("text", { class: "axis", x: (m.l + width - m.r) / 2, y: height - 6, "text-anchor": "middle" }, AP.t("chart.size_axis")));
      let last = -Infinity;
      ceilings.forEach(function (c) {
        const at = py(c.top);
        root.append(s("line", { class: "roof ceiling", x1: m.l, x2: width - m.r, y1: at, y2: at }));
        // Lines that lie close share the place of a label; the tip of a point names its own.
        if (at - last < 13) return;
        last = at;
        root.append(s("text", { class: "roof-label", x: m.l + 4, y: at - 4 }, AP.t("chart.ceiling", { link: c.label, rate: q(c.top, "bytes_per_s") })));
      });
      order.forEach(function (p) {
        const radius = Math.max(AREA.least, longest ? AREA.most * Math.sqrt((p.total_ns || 0) / longest) : AREA.least + 2);
        const place = kinds.place(p);
        const lines = function () {
          return [
            [p.op, p.group, kinds.link(p)].filter(Boolean).join(AP.t("ui.comma")),
            p.count > 1 ? AP.t("chart.calls", { count: q(p.count, "count") }) : null,
            AP.t("chart.size_of", { size: q(Math.round(p.size_bytes), "bytes"), time: q(p.time_ns, "ns") }),
            AP.t("chart.rate_of", { rate: q(p.bus_bytes_per_s, "bytes_per_s") }),
            p.peak_bytes_per_s > 0 ? AP.t("chart.of_ceiling", { share: q(p.bus_bytes_per_s / p.peak_bytes_per_s, "ratio"), rate: q(p.peak_bytes_per_s, "bytes_per_s") }) : AP.t("chart.no_ceiling"),
          ];
        };
        root.append(s("path", { class: "point c" + place, d: SHAPES[place](+radius.toFixed(1)), transform: "translate(" + px(p.size_bytes).toFixed(1) + " " + py(p.bus_bytes_per_s).toFixed(1) + ")", on: AP.tipped(lines) }));
      });
      return root;
    }
    return h("figure", { class: "chart", "data-chart": "sizes" },
      h("figcaption", null, AP.t("chart.sizes"), h("span", { class: "muted" }, " · " + AP.t("chart.sizes_axis", { count: q(calls, "count") }))),
      h("div", { class: "keys" }, kinds.names.map(function (name, i) {
        return h("span", { class: "key" }, s("svg", { width: 14, height: 14, "aria-hidden": "true" }, s("path", { class: "point c" + i, d: SHAPES[i](5), transform: "translate(7 7)" })), name);
      }), ceilings.length ? h("span", { class: "key" }, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("line", { class: "roof ceiling", x1: 1, x2: 25, y1: 5, y2: 5 })), AP.t("chart.ceiling_key")) : null),
      AP.sized(h("div", { class: "draw" }), draw),
      table.note && h("p", { class: "note" }, AP.w(table.note)));
  };
})();
