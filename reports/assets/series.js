// The run's own figures over its steps: loss, gradient norm and loss scale, a line for each series.
(function () {
  const h = AP.h;
  const s = AP.s;
  const FIGURES = ["loss", "grad_norm", "loss_scale"];

  function linesOf(table, figure) {
    const step = AP.column(table, "step");
    const series = AP.column(table, "series");
    const value = AP.column(table, figure);
    const lines = {};
    for (let row = 0; step && value && row < table.rows; row++) {
      const x = step.get(row), y = value.get(row);
      if (typeof x !== "number" || typeof y !== "number" || !(y > 0)) continue;
      const name = (series && series.get(row)) || "";
      (lines[name] = lines[name] || { name: name, points: [] }).points.push([x, y]);
    }
    return Object.values(lines).filter(function (l) { return l.points.length > 1; });
  }

  function ends(list, place) {
    let low = Infinity, high = -Infinity;
    list.forEach(function (l) {
      l.points.forEach(function (p) {
        low = Math.min(low, p[place]);
        high = Math.max(high, p[place]);
      });
    });
    return [low, high];
  }

  /** Round values between two, for an axis that may span a tenth or ten decades. */
  function logTicks(low, high) {
    if (high / low < 8) return AP.niceTicks(low, high, 4);
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), every = Math.ceil((to - from) / 5);
    const ticks = [];
    for (let p = from; p <= to; p += every) (to - from > 3 ? [1] : [1, 2, 5]).forEach(function (m) { ticks.push(m * Math.pow(10, p)); });
    return ticks.filter(function (t) { return t >= low && t <= high; });
  }

  function figureView(table, figure) {
    const list = linesOf(table, figure);
    const title = AP.column(table, figure);
    if (!list.length) return null;
    const x = ends(list, 0);
    const y = ends(list, 1).map(Math.log10);
    const room = Math.max(0.02, (y[1] - y[0]) * 0.06);
    if (!(x[1] > x[0])) return null;

    function draw(width) {
      const height = Math.round(Math.max(180, Math.min(260, width * 0.28)));
      const m = { l: 62, r: 12, t: 10, b: 42 };
      const px = function (v) { return m.l + (v - x[0]) / (x[1] - x[0]) * (width - m.l - m.r); };
      const py = function (v) { return height - m.b - (Math.log10(v) - y[0] + room) / (y[1] - y[0] + 2 * room) * (height - m.t - m.b); };
      const root = s("svg", { width: width, height: height, role: "img", "aria-label": AP.w(title.title) });
      logTicks(Math.pow(10, y[0] - room), Math.pow(10, y[1] + room)).forEach(function (value) {
        root.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: py(value), y2: py(value) }),
          s("text", { class: "tick", x: m.l - 6, y: py(value) + 4, "text-anchor": "end" }, AP.format.significant(value, 3)));
      });
      AP.niceTicks(x[0], x[1], Math.max(2, Math.min(8, (x[1] - x[0]), (width - m.l - m.r) / 70))).filter(Number.isInteger).forEach(function (at) {
        root.append(s("text", { class: "tick", x: px(at), y: height - m.b + 16, "text-anchor": "middle" }, AP.format.significant(at, 12)));
      });
      root.append(s("text", { class: "axis", x: (m.l + width - m.r) / 2, y: height - 6, "text-anchor": "middle" }, AP.w(AP.column(table, "step").title)));
      list.forEach(function (l, i) {
        let d = "", before = -Infinity;
        // A step that is not behind the one before begins another attempt: a line of its own.
        l.points.forEach(function (p) {
          d += (p[0] > before ? (d ? "L" : "M") : "M") + px(p[0]).toFixed(1) + " " + py(p[1]).toFixed(1);
          before = p[0];
        });
        root.append(s("path", { class: "line c" + i % 6, d: d }));
      });
      const cross = s("line", { class: "cross", y1: m.t, y2: height - m.b, visibility: "hidden" });
      root.append(cross);
      root.addEventListener("pointermove", function (e) {
        const box = root.getBoundingClientRect();
        const at = x[0] + (e.clientX - box.left - m.l) / (width - m.l - m.r) * (x[1] - x[0]);
        if (at < x[0] || at > x[1]) return AP.tip(null);
        cross.setAttribute("x1", px(at));
        cross.setAttribute("x2", px(at));
        cross.setAttribute("visibility", "visible");
        AP.tip([AP.w(AP.column(table, "step").title) + " " + Math.round(at)].concat(list.slice(0, 8).map(function (l) {
          const near = l.points.reduce(function (best, p) { return Math.abs(p[0] - at) < Math.abs(best[0] - at) ? p : best; });
          return (l.name || AP.w(title.title)) + AP.t("ui.colon") + AP.format.significant(near[1]);
        })), e.clientX, e.clientY);
      });
      root.addEventListener("pointerleave", function () {
        cross.setAttribute("visibility", "hidden");
        AP.tip(null);
      });
      return root;
    }
    return h("figure", { class: "chart", "data-chart": figure },
      h("figcaption", null, AP.w(title.title)),
      list.length > 1 && h("div", { class: "keys" }, list.map(function (l, i) {
        return h("span", { class: "key" }, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { class: "line c" + i % 6, d: "M1 5H25" })), l.name);
      })),
      AP.sized(h("div", { class: "draw" }), draw));
  }

  /** Figures that never change say nothing as a line. */
  AP.seriesView = function (table) {
    return FIGURES.filter(function (figure) {
      const value = AP.column(table, figure);
      const seen = new Set();
      for (let row = 0; value && row < table.rows && seen.size < 2; row++) {
        if (typeof value.get(row) === "number") seen.add(value.get(row));
      }
      return seen.size > 1;
    }).map(function (figure) { return figureView(table, figure); });
  };
})();
