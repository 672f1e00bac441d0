// Device counters over time: a small chart for each, under one another on one clock, with what the device did above.
(function () {
  const h = AP.h;
  const s = AP.s;
  const ROW = 46, GAP = 12, STRIP = 9;
  const STRIPS = [["computing_ratio", "c0"], ["communicating_ratio", "c3"]];

  function seriesOf(table) {
    const read = {};
    ["counter", "unit", "start_ns", "dur_ns", "mean", "least", "most", "computing_ratio", "communicating_ratio"].forEach(function (name) {
      read[name] = AP.column(table, name);
    });
    const made = {};
    for (let row = 0; read.counter && read.start_ns && read.mean && row < table.rows; row++) {
      const name = read.counter.get(row), start = read.start_ns.get(row), mean = read.mean.get(row);
      if (typeof start !== "number" || typeof mean !== "number") continue;
      const one = made[name] = made[name] || { name: name, unit: read.unit.key(row), points: [], top: -Infinity, low: Infinity };
      const point = { start: start, end: start + (read.dur_ns.get(row) || 0), mean: mean, least: read.least.get(row), most: read.most.get(row) };
      STRIPS.forEach(function (strip) { point[strip[0]] = read[strip[0]] && read[strip[0]].get(row); });
      one.points.push(point);
      one.top = Math.max(one.top, point.most);
      one.low = Math.min(one.low, point.least);
    }
    return Object.values(made);
  }

  function near(points, when) {
    let low = 0, high = points.length - 1;
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (points[mid].start <= when) low = mid;
      else high = mid - 1;
    }
    return points[low];
  }

  AP.countersView = function (table) {
    const list = seriesOf(table).filter(function (one) { return one.points.length > 1 && (one.top !== 0 || one.low !== 0); });
    if (!list.length) return null;
    const x0 = Math.min.apply(null, list.map(function (one) { return one.points[0].start; }));
    const x1 = Math.max.apply(null, list.map(function (one) { return one.points[one.points.length - 1].end; }));
    if (!(x1 > x0)) return null;
    const fullest = list.reduce(function (best, one) { return one.points.length > best.points.length ? one : best; });
    const strips = STRIPS.filter(function (strip) { return AP.column(table, strip[0]); });
    const value = function (one, v) { return AP.format.quantity(v, one.unit); };

    function draw(width) {
      const m = { l: Math.min(190, width * 0.34), r: 70, t: 6, b: 30 };
      const above = strips.length * (STRIP + 4) + 8, letters = Math.min(30, Math.floor((m.l - 10) / 6.3));
      const height = m.t + above + list.length * (ROW + GAP) + m.b;
      const px = function (v) { return m.l + (v - x0) / (x1 - x0) * (width - m.l - m.r); };
      const root = s("svg", { width: width, height: height, role: "img", "aria-label": AP.w(table.title) });
      strips.forEach(function (strip, i) {
        const y = m.t + i * (STRIP + 4);
        root.append(s("text", { class: "tick", x: m.l - 8, y: y + STRIP - 1, "text-anchor": "end" }, AP.w(AP.column(table, strip[0]).title)));
        fullest.points.forEach(function (p) {
          const ratio = p[strip[0]];
          if (!(ratio > 0)) return;
          root.append(s("rect", { class: "share " + strip[1], x: px(p.start), y: y, width: Math.max(0.6, px(p.end) - px(p.start)), height: STRIP, "fill-opacity": (0.15 + 0.85 * ratio).toFixed(2) }));
        });
      });
      list.forEach(function (one, i) {
        const top = m.t + above + i * (ROW + GAP);
        // Levels that hardly change would look wild on a scale of their own: from 0 unless they go below.
        const low = Math.min(0, one.low), high = one.top > low ? one.top : low + 1;
        const py = function (v) { return top + ROW - (v - low) / (high - low) * (ROW - 3); };
        root.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: top + ROW, y2: top + ROW }),
          s("text", { class: "tick", x: m.l - 8, y: top + ROW / 2 + 4, "text-anchor": "end" }, one.name.length > letters ? [s("title", null, one.name), one.name.slice(0, letters - 1) + "…"] : one.name),
          s("text", { class: "tick", x: width - m.r + 6, y: top + 11 }, value(one, high)));
        if (low < 0) root.append(s("text", { class: "tick", x: width - m.r + 6, y: top + ROW }, value(one, low)));
        let band = "", line = "";
        one.points.forEach(function (p, k) {
          const x = ((px(p.start) + px(p.end)) / 2).toFixed(1);
          band += (k ? "L" : "M") + x + " " + py(p.most).toFixed(1);
          line += (k ? "L" : "M") + x + " " + py(p.mean).toFixed(1);
        });
        for (let k = one.points.length - 1; k >= 0; k--) band += "L" + ((px(one.points[k].start) + px(one.points[k].end)) / 2).toFixed(1) + " " + py(one.points[k].least).toFixed(1);
        root.append(s("path", { class: "range counter", d: band + "Z" }), s("path", { class: "line counter", d: line }));
      });
      const scale = AP.format.scaleOf(Math.max(Math.abs(x0), Math.abs(x1)), "ns");
      AP.niceTicks(x0 / scale[0], x1 / scale[0], Math.max(2, Math.min(8, (width - m.l - m.r) / 90))).forEach(function (t) {
        const at = px(t * scale[0]);
        root.prepend(s("line", { class: "grid", x1: at, x2: at, y1: m.t + above, y2: height - m.b + 4 }));
        root.append(s("text", { class: "tick", x: at, y: height - 12, "text-anchor": "middle" }, AP.glued(AP.format.tick(t) + " " + scale[1])));
      });
      const cross = s("line", { class: "cross", y1: m.t, y2: height - m.b, visibility: "hidden" });
      root.append(cross);
      root.addEventListener("pointermove", function (e) {
        const box = root.getBoundingClientRect();
        const when = x0 + (e.clientX - box.left - m.l) / (width - m.l - m.r) * (x1 - x0);
        if (when < x0 || when > x1) return AP.tip(null);
        const row = Math.floor((e.clientY - box.top - m.t - above) / (ROW + GAP));
        const one = list[Math.max(0, Math.min(list.length - 1, row))];
        const p = near(one.points, when);
        cross.setAttribute("x1", px(when));
        cross.setAttribute("x2", px(when));
        cross.setAttribute("visibility", "visible");
        AP.tip([one.name, AP.format.offset(p.start), AP.w(AP.column(table, "mean").title) + AP.t("ui.colon") + value(one, p.mean)]
          .concat(["least", "most"].map(function (n) { return AP.w(AP.column(table, n).title) + AP.t("ui.colon") + value(one, p[n]); }))
          .concat(strips.map(function (strip) { return AP.w(AP.column(table, strip[0]).title) + AP.t("ui.colon") + AP.format.quantity(p[strip[0]], "ratio"); })), e.clientX, e.clientY);
      });
      root.addEventListener("pointerleave", function () {
        cross.setAttribute("visibility", "hidden");
        AP.tip(null);
      });
      return root;
    }
    return h("figure", { class: "chart", "data-chart": "counters" },
      h("figcaption", null, AP.w(table.title)),
      AP.sized(h("div", { class: "draw" }), draw),
      table.note && h("p", { class: "note" }, AP.w(table.note)));
  };
})();
