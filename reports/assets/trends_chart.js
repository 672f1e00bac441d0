// The drawing of a trend: values with their range, levels between change points, and what people said of them.
(function () {
  const s = AP.s;
  const f = AP.format;

  function span(list) {
    let low = Infinity, high = -Infinity;
    list.forEach(function (v) {
      if (v === null) return;
      low = Math.min(low, v);
      high = Math.max(high, v);
    });
    return [low, high];
  }

  function ticks(low, high, most) {
    const raw = (high - low) / most, power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map(function (m) { return m * power; }).find(function (v) { return v >= raw; });
    const made = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) made.push(v);
    return made;
  }

  function path(points) {
    let d = "", pen = "M";
    points.forEach(function (p) {
      if (p[1] === null) { pen = "M"; return; }
      d += pen + p[0].toFixed(1) + " " + p[1].toFixed(1);
      pen = "L";
    });
    return d;
  }

  /** A small line with marks at change points. */
  AP.spark = function (values, marks, label) {
    const width = 132, height = 26, y = span(values);
    const root = s("svg", { class: "spark", width: width, height: height, role: "img", "aria-label": label });
    if (!(y[1] >= y[0])) return root;
    const px = function (i) { return 3 + (values.length < 2 ? 0.5 : i / (values.length - 1)) * (width - 6); };
    const py = function (v) { return v === null ? null : y[1] > y[0] ? height - 3 - (v - y[0]) / (y[1] - y[0]) * (height - 6) : height / 2; };
    marks.filter(function (at) { return at > 0; }).forEach(function (at) {
      const x = (px(at) + px(Math.max(0, at - 1))) / 2;
      root.append(s("line", { x1: x, x2: x, y1: 1, y2: height - 1 }));
    });
    if (values.length === 1) root.append(s("circle", { cx: width / 2, cy: height / 2, r: 2, fill: "currentColor" }));
    else root.append(s("path", { d: path(values.map(function (v, i) { return [px(i), py(v)]; })) }));
    return root;
  };

  /** Lines that say what one value is. */
  AP.valueLines = function (trend, i) {
    const result = AP.data.results[trend.at[i]];
    const z = trend.z[i];
    return [
      f.quantity(trend.value[i], trend.unit) + (trend.runs[i] > 1 ? " (" + AP.t("trends.runs_range", { count: trend.runs[i], low: f.quantity(trend.low[i], trend.unit), high: f.quantity(trend.high[i], trend.unit) }) + ")" : ""),
      (result.commit ? result.commit + " · " : "") + result.day,
      z === null ? null : AP.t("trends.z", { z: (z < 0 ? "−" : "+") + f.significant(Math.abs(z), 3) }),
    ];
  };

  /** The chart of a trend. Arrow keys go from value to value. */
  AP.trendChart = function (trend) {
    const count = trend.value.length;

    function draw(width) {
      const height = Math.round(Math.max(190, Math.min(270, width * 0.26)));
      const m = { l: 74, r: 14, t: 22, b: 30 };
      const seen = span(trend.value.concat(trend.level));
      const ends = span(trend.low.concat(trend.high));
      // Single slow runs must not flatten the trend: long ranges go over the edge.
      const size = Math.max(seen[1] - seen[0], (ends[1] - ends[0]) / 3);
      let low = Math.max(ends[0], seen[0] - size), high = Math.min(ends[1], seen[1] + size);
      const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.005, 1e-12);
      low -= room;
      high += room;
      const px = function (i) { return m.l + (count < 2 ? 0.5 : i / (count - 1)) * (width - m.l - m.r); };
      const py = function (v) { return v === null ? null : height - m.b - (Math.max(low, Math.min(high, v)) - low) / (high - low) * (height - m.t - m.b); };
      const root = s("svg", { width: width, height: height, role: "img", tabindex: "0", "aria-label": trend.metric + AP.t("ui.colon") + AP.t("trends.chart_says", { count: count, changes: trend.changes.length, newest: f.quantity(trend.value[count - 1], trend.unit) }) });
      ticks(low, high, 4).forEach(function (v) {
        root.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: py(v), y2: py(v) }),
          s("text", { class: "tick", x: m.l - 6, y: py(v) + 4, "text-anchor": "end" }, f.quantity(Math.abs(v) < (high - low) * 1e-9 ? 0 : v, trend.unit)));
      });
      const every = Math.max(1, Math.ceil(count / Math.max(1, Math.floor((width - m.l - m.r) / 112))));
      for (let i = 0; i < count; i += every) {
        root.append(s("text", { class: "tick", x: Math.min(px(i), width - 34), y: height - 8, "text-anchor": i ? "middle" : "start" }, AP.data.results[trend.at[i]].day));
      }
      trend.changes.forEach(function (c, n) {
        const half = count > 1 ? (px(1) - px(0)) / 2 : 0, x = px(c.place) - half;
        const group = s("g", { class: c.direction + " " + c.state });
        if (c.latest > c.earliest) group.append(s("rect", { class: "where", x: px(c.earliest) - half, width: px(c.latest) - px(c.earliest) + half, y: m.t, height: height - m.t - m.b }));
        group.append(s("line", { class: "change-line", x1: x, x2: x, y1: m.t - 6, y2: height - m.b }),
          s("text", { class: "flag", x: x, y: m.t - 9, "text-anchor": "middle" }, String(n + 1)));
        root.append(group);
      });
      if (count <= 400) trend.value.forEach(function (v, i) {
        if (v !== null && trend.high[i] > trend.low[i]) root.append(s("line", { class: "range", x1: px(i), x2: px(i), y1: py(trend.low[i]), y2: py(trend.high[i]) }));
      });
      root.append(s("path", { class: "value", d: path(trend.value.map(function (v, i) { return [px(i), py(v)]; })) }));
      // Levels as stairs.
      let d = "";
      for (let i = 0; i < count;) {
        let end = i;
        while (end + 1 < count && trend.level[end + 1] === trend.level[i]) end++;
        const half = count > 1 ? (px(1) - px(0)) / 2 : 12;
        d += "M" + Math.max(m.l, px(i) - half).toFixed(1) + " " + py(trend.level[i]).toFixed(1) + "H" + Math.min(width - m.r, px(end) + half).toFixed(1);
        i = end + 1;
      }
      root.append(s("path", { class: "level", d: d }));
      trend.value.forEach(function (v, i) {
        const odd = trend.z[i] !== null && Math.abs(trend.z[i]) > 5;
        if (v !== null && (count <= 400 || odd)) root.append(s("circle", { class: odd ? "odd" : null, cx: px(i), cy: py(v), r: odd ? 3.5 : count > 120 ? 1.6 : 2.4 }));
      });
      const cross = s("line", { class: "cross", y1: m.t, y2: height - m.b, visibility: "hidden" });
      root.append(cross);
      let at = count - 1;
      function show(i, x, y) {
        at = Math.max(0, Math.min(count - 1, i));
        cross.setAttribute("x1", px(at));
        cross.setAttribute("x2", px(at));
        cross.setAttribute("visibility", "visible");
        AP.tip(AP.valueLines(trend, at), x, y);
      }
      function hide() {
        cross.setAttribute("visibility", "hidden");
        AP.tip(null);
      }
      root.addEventListener("pointermove", function (e) {
        const box = root.getBoundingClientRect();
        show(Math.round((e.clientX - box.left - m.l) / (width - m.l - m.r) * (count - 1)), e.clientX, e.clientY);
      });
      root.addEventListener("pointerleave", hide);
      root.addEventListener("blur", hide);
      root.addEventListener("keydown", function (e) {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
        if (!by) return;
        e.preventDefault();
        const box = root.getBoundingClientRect();
        const next = Math.max(0, Math.min(count - 1, at + by));
        show(next, box.left + px(next), box.top + (py(trend.value[next]) || 0));
      });
      return root;
    }
    return AP.sized(AP.h("div", { class: "draw" }), draw);
  };
})();
