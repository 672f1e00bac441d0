// Charts in SVG: step bar, roofline, memory lines, heat maps. Colours come from the style sheet by class.
(function () {
  const h = AP.h;
  const s = AP.s;
  const q = AP.format.quantity;
  const MOST_BARS = 16;
  const MOST_OUTSIDE = 0.001; // of the time of all marks: what may lie outside of the roofline's axes
  const MANY_BARS = 8; // where there are more ranks than that, which the strip of the job shows

  // ---- where the step goes -------------------------------------------------------------------------------------

  function shadeOf(bar) {
    const seen = {};
    return bar.parts.map(function (part) {
      seen[part.kind] = (seen[part.kind] || 0) + 1;
      return (seen[part.kind] - 1) % 5;
    });
  }

  function barView(bar, scale, labelled) {
    const shades = shadeOf(bar);
    const parts = bar.parts.map(function (part, i) {
      const share = part.ns / bar.total_ns;
      const lines = function () { return [AP.w(part.label), q(part.ns, "ns") + " · " + AP.format.share(share)]; };
      return h("a", {
        class: "piece k-" + part.kind + " s" + shades[i], href: "#section-" + part.section,
        style: { "flex-grow": String(share) }, "aria-label": lines().join(AP.t("ui.colon")), on: AP.tipped(lines),
      }, share > 0.02 ? h("span", { class: "piece-text" }, h("span", { class: "piece-name" }, AP.w(part.label) + " "), h("b", null, q(share, "ratio"))) : null);
    });
    return h("div", { class: "bar-row" + (bar.outlier ? " outlier" : "") },
      labelled && h("div", { class: "bar-label" }, AP.rankName(bar.rank),
        bar.outlier && h("span", { class: "mark", title: AP.t("ui.outlier") }, " ◆"),
        h("span", { class: "muted" }, " " + q(bar.total_ns, "ns"))),
      h("div", { class: "bar-track" }, h("div", { class: "bar", style: { width: (100 * bar.total_ns / scale).toFixed(3) + "%" } }, parts)));
  }

  function legend(bar) {
    const shades = shadeOf(bar);
    return h("ul", { class: "legend", "aria-label": AP.t("ui.where") },
      bar.parts.map(function (part, i) {
        return h("li", null,
          h("span", { class: "swatch k-" + part.kind + " s" + shades[i], "aria-hidden": "true" }), h("span", null, AP.w(part.label)),
          h("span", { class: "figure" }, q(part.ns, "ns")), h("span", { class: "figure" }, AP.format.share(part.ns / bar.total_ns)));
      }),
      h("li", { class: "total" }, h("span", { class: "swatch" }), h("span", null, AP.t("ui.total")), h("span", { class: "figure" }, q(bar.total_ns, "ns")), h("span", { class: "figure" }, "100 %")));
  }

  AP.barsView = function () {
    const all = AP.data.bars.filter(function (bar) { return bar.parts.length && bar.total_ns > 0; });
    if (!all.length) return null;
    const sorted = all.slice().sort(function (a, b) { return b.total_ns - a.total_ns; });
    const outliers = sorted.filter(function (bar) { return bar.outlier; });
    const shown = Array.from(new Set(outliers.concat(sorted))).slice(0, all.length > MOST_BARS ? MANY_BARS : MOST_BARS).sort(function (a, b) { return b.total_ns - a.total_ns; });
    const scale = sorted[0].total_ns;
    const chosen = all.find(function (bar) { return bar.rank === AP.state.rank; }) || shown[0];
    const several = all.length > 1;
    const seen = Math.max(all.length, AP.data.job && AP.data.job.strip ? AP.data.job.strip.ranks.length : 0);
    return h("section", { id: "where", class: "part" },
      h("h2", null, AP.t("ui.where")),
      h("div", { class: "bars" }, shown.map(function (bar) { return barView(bar, scale, several); })),
      seen > shown.length && h("p", { class: "note" }, AP.t("bar.more_ranks", { count: AP.format.significant(seen - shown.length, 12) })),
      h("p", { class: "note" }, several ? AP.t("bar.several") + " " : "", AP.t("bar.note")),
      several && h("h3", { class: "small" }, AP.rankName(chosen.rank)),
      legend(chosen));
  };

  // ---- axes ------------------------------------------------------------------------------------------------------

  function powers(low, high) {
    const ticks = [];
    for (let p = Math.ceil(low - 1e-9); p <= high + 1e-9; p++) ticks.push(p);
    return ticks;
  }

  AP.powers = powers;

  function niceTicks(low, high, wanted) {
    const raw = (high - low) / wanted;
    if (!(raw > 0)) return [low];
    const power = Math.pow(10, Math.floor(Math.log10(raw)));
    const step = [1, 2, 5, 10].map(function (m) { return m * power; }).find(function (x) { return x >= raw; });
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return ticks;
  }

  AP.niceTicks = niceTicks;

  // ---- roofline --------------------------------------------------------------------------------------------------

  let ruler = null;
  /** Width of a text of a drawing (11 px), in px. */
  function textWidth(text) {
    if (!ruler) {
      ruler = document.createElement("canvas").getContext("2d");
      ruler.font = "11px " + getComputedStyle(document.body).fontFamily;
    }
    return ruler.measureText(text).width;
  }

  /** The words with which all of several texts begin. */
  function sharedWords(texts) {
    if (texts.length < 2) return "";
    const words = texts.map(function (t) { return t.split(" "); });
    let n = 0;
    while (words.every(function (w) { return n < w.length - 1 && w[n] === words[0][n]; })) n++;
    return words[0].slice(0, n).join(" ");
  }

  /** A kernel's name for a place of one line: without its type, namespaces and template arguments. */
  function briefly(name) {
    const plain = name.replace(/^void\s+/, "").replace(/\(anonymous namespace\)::/g, "").split(/[<(]/)[0];
    const last = plain.split("::").pop() || name;
    return last.length > 26 ? last.slice(0, 25) + "…" : last;
  }

  AP.rooflineView = function (table, roofs) {
    const x = AP.column(table, "intensity_flops_per_byte");
    const y = AP.column(table, "achieved_flops_per_s");
    const time = AP.column(table, "time_ns");
    const name = AP.column(table, "name");
    const type = AP.column(table, "op_type");
    const roof = AP.column(table, "roof");
    if (!x || !y) return null;
    const marks = [];
    let total = 0;
    for (let row = 0; row < table.rows; row++) {
      const mark = { x: x.get(row), y: y.get(row), ns: time ? time.get(row) || 0 : 0, name: name ? name.get(row) : null, type: type ? type.get(row) : null, roof: roof ? roof.get(row) : null, isVector: Boolean(roof) && /vec/i.test(roof.key(row) || "") };
      if (!(mark.x > 0) || !(mark.y > 0)) continue;
      marks.push(mark);
      total += mark.ns;
    }
    if (!marks.length) return null;
    marks.sort(function (a, b) { return b.ns - a.ns; });
    const lines = [];
    if (roofs) {
      const kind = AP.column(roofs, "kind");
      const value = AP.column(roofs, "value");
      const label = AP.column(roofs, "name");
      const basis = AP.column(roofs, "basis");
      for (let row = 0; kind && value && row < roofs.rows; row++) {
        if (value.get(row) > 0) lines.push({ kind: kind.key(row), value: value.get(row), label: label ? label.get(row) : "", look: basis && basis.key(row) === "measured" ? "roof measured" : "roof" });
      }
    }
    const flat = lines.filter(function (l) { return l.kind === "compute"; });
    const slopes = lines.filter(function (l) { return l.kind === "bandwidth"; });
    const peak = flat.length ? Math.max.apply(null, flat.map(function (l) { return l.value; })) : 0;
    const steep = slopes.length ? Math.max.apply(null, slopes.map(function (l) { return l.value; })) : 0;
    // The axes reach down to what holds nearly all of the time: a few tiny kernels would stretch them over many decades.
    let below = 0;
    const low = new Set(marks.slice().sort(function (a, b) { return a.y - b.y; }).filter(function (m) { below += m.ns; return below <= total * MOST_OUTSIDE; }));
    const main = marks.filter(function (m) { return !total || !low.has(m); });
    const xs = main.map(function (m) { return m.x; }).concat(peak && steep ? [peak / steep] : []);
    const ys = main.map(function (m) { return m.y; }).concat(flat.map(function (l) { return l.value; }));
    const range = {
      x0: Math.floor(Math.log10(Math.min.apply(null, xs)) - 0.1), x1: Math.ceil(Math.log10(Math.max.apply(null, xs)) + 0.3),
      y0: Math.floor(Math.log10(Math.min.apply(null, ys)) - 0.1), y1: Math.log10(Math.max.apply(null, ys)) + 0.3,
    };
    const inside = marks.filter(function (m) {
      const x10 = Math.log10(m.x), y10 = Math.log10(m.y);
      return x10 >= range.x0 && x10 <= range.x1 && y10 >= range.y0 && y10 <= range.y1;
    });
    const outside = marks.length - inside.length;

    // What all roofs share is the device; it stands in the caption once.
    const device = sharedWords(lines.map(function (l) { return l.label; }));
    lines.forEach(function (l) { l.label = l.label.slice(device.length).trim(); });

    function draw(width) {
      const height = Math.round(Math.max(280, Math.min(460, width * 0.5)));
      const ylabel = function (p) {
        if (p >= 3 && p < 6) return AP.format.significant(Math.pow(10, p - 3)) + " kFLOPS";
        return q(Math.pow(10, p), y.unit === "none" ? "flops_per_s" : y.unit);
      };
      const widest = Math.max.apply(null, powers(range.y0, range.y1).map(function (p) { return ylabel(p).length; }));
      // Names of flat roofs stand beside the plot, where no mark lies; on a phone without their figures.
      const isNarrow = width < 560;
      const named = flat.map(function (l) { return { y: l.value, text: isNarrow ? l.label : l.label + " " + q(l.value, "flops_per_s"), whole: l.label + " " + q(l.value, "flops_per_s") }; })
        .sort(function (a, b) { return b.y - a.y; });
      const gutter = Math.max.apply(null, [0].concat(named.map(function (n) { return textWidth(n.text) + 12; })));
      const m = { l: 18 + widest * 6, r: Math.max(24, Math.min(width * 0.3, gutter)), t: 26, b: 44 };
      const px = function (v) { return m.l + (Math.log10(v) - range.x0) / (range.x1 - range.x0) * (width - m.l - m.r); };
      const py = function (v) { return height - m.b - (Math.log10(v) - range.y0) / (range.y1 - range.y0) * (height - m.t - m.b); };
      const root = s("svg", { width: width, height: height, role: "img", "aria-label": AP.t("chart.roofline") });
      const crowded = (width - m.l - m.r) / (range.x1 - range.x0) < 46;
      powers(range.x0, range.x1).forEach(function (p, i) {
        const at = px(Math.pow(10, p));
        root.append(s("line", { class: "grid", x1: at, x2: at, y1: m.t, y2: height - m.b }));
        if (crowded && i % 2) return;
        root.append(s("text", { class: "tick", x: at, y: height - m.b + 16, "text-anchor": "middle" }, AP.format.significant(Math.pow(10, p))));
      });
      powers(range.y0, range.y1).forEach(function (p) {
        const at = py(Math.pow(10, p));
        root.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: at, y2: at }),
          s("text", { class: "tick", x: m.l - 6, y: at + 4, "text-anchor": "end" }, ylabel(p)));
      });
      root.append(s("text", { class: "axis", x: (m.l + width - m.r) / 2, y: height - 6, "text-anchor": "middle" }, AP.t("chart.intensity")),
        s("text", { class: "axis", x: 2, y: 12 }, AP.t("chart.achieved")));
      flat.forEach(function (l) {
        const from = steep ? Math.max(Math.pow(10, range.x0), l.value / steep) : Math.pow(10, range.x0);
        root.append(s("line", { class: l.look, x1: px(from), x2: width - m.r, y1: py(l.value), y2: py(l.value) }));
      });
      let free = 24;
      named.forEach(function (n) {
        const at = Math.max(free, py(n.y) + 4);
        free = at + 13;
        // A name that had to move is led to its roof.
        if (at - py(n.y) - 4 > 1) root.append(s("path", { class: "leader", d: "M" + (width - m.r) + " " + py(n.y) + "L" + (width - m.r + 6) + " " + (at - 4) }));
        root.append(s("text", { class: "roof-label", x: width - m.r + 8, y: at }, s("title", null, n.whole), n.text));
      });
      const taken = [];
      slopes.forEach(function (l) {
        const low = Math.max(Math.pow(10, range.x0), Math.pow(10, range.y0) / l.value);
        const high = Math.min(Math.pow(10, range.x1), (peak || Math.pow(10, range.y1)) / l.value);
        if (high <= low) return;
        const tilt = Math.atan2(py(high * l.value) - py(low * l.value), px(high) - px(low)) * 180 / Math.PI;
        const text = l.label + " " + q(l.value, "bytes_per_s"), long = textWidth(text) + 4, angle = tilt * Math.PI / 180;
        const reach = px(high) - px(low) - long * Math.cos(angle);
        // Along the slope, where the fewest marks lie under the text.
        const at = function (share) {
          const x0 = px(low) + Math.max(0, reach) * share, y0 = py(low * l.value) + (x0 - px(low)) * Math.tan(angle) - 5;
          const points = [];
          for (let k = 0; k < long; k += 12) points.push({ x: x0 + k * Math.cos(angle), y: y0 + k * Math.sin(angle) - 4, w: 12 });
          const hit = inside.filter(function (mark) { return points.some(function (p) { return Math.hypot(p.x + 6 - px(mark.x), p.y - py(mark.y)) < 20; }); }).length;
          return { x: x0, y: y0, points: points, hit: hit + (points.some(function (p) { return taken.some(function (t) { return Math.hypot(t.x - p.x, t.y - p.y) < 14; }); }) ? 1000 : 0) };
        };
        const place = [0.3, 0.45, 0.6, 0.15, 0.75, 0.02, 0.9].map(at).reduce(function (best, one) { return one.hit < best.hit ? one : best; });
        taken.push.apply(taken, place.points);
        root.append(s("line", { class: l.look, x1: px(low), x2: px(high), y1: py(low * l.value), y2: py(high * l.value) }),
          s("text", { class: "roof-label", transform: "translate(" + place.x + " " + place.y + ") rotate(" + tilt + ")" }, text));
      });
      // Together the marks cover at most an eighth of the plot; one alone is never larger than 16 px.
      const area = (width - m.l - m.r) * (height - m.t - m.b) / 8;
      function radiusOf(mark) { return Math.max(2.5, Math.min(16, total ? Math.sqrt(area * mark.ns / total / Math.PI) : 4)); }
      inside.forEach(function (mark) {
        const lines = function () {
          return [mark.name || mark.type || "", mark.type && mark.name !== mark.type ? mark.type : null, q(mark.ns, "ns"), q(mark.y, "flops_per_s") + " · " + AP.format.significant(mark.x, 3) + " FLOP/B", mark.roof];
        };
        const radius = radiusOf(mark);
        const kind = mark.isVector ? " vector" : "";
        root.append(s("circle", { class: "kernel" + kind, cx: px(mark.x), cy: py(mark.y), r: radius, on: AP.tipped(lines) }));
      });
      // Names for the largest marks, where they do not sit on one another and on as few marks and roofs as can be.
      const said = new Set();
      function under(b, own) {
        const marks = inside.filter(function (mark) {
          const r = mark === own ? 0 : radiusOf(mark), x = px(mark.x), y = py(mark.y);
          return x + r > b.x && x - r < b.x + b.w && y + r > b.y - 6 && y - r < b.y + 6;
        }).length;
        return marks + flat.filter(function (l) { return Math.abs(py(l.value) - b.y) < 7; }).length;
      }
      inside.slice(0, 12).forEach(function (mark) {
        const text = briefly(String(mark.type || mark.name || ""));
        if (said.has(text)) return;
        const w = textWidth(text) + 4, cx = px(mark.x), cy = py(mark.y);
        const box = [[cx + 12, cy], [cx - 12 - w, cy], [cx - w / 2, cy + 24], [cx - w / 2, cy - 22]]
          .map(function (place) { return { x: place[0], y: place[1], w: w }; })
          .filter(function (b) {
            if (b.x < m.l || b.x + w > width - m.r || b.y < m.t + 8 || b.y > height - m.b - 8) return false;
            return !taken.some(function (t) { return Math.abs(t.y - b.y) < 13 && t.x < b.x + b.w && b.x < t.x + t.w; });
          })
          .map(function (b) { return Object.assign(b, { under: under(b, mark) }); })
          .reduce(function (best, b) { return !best || b.under < best.under ? b : best; }, null);
        if (!box) return;
        said.add(text);
        taken.push(box);
        root.append(s("text", { class: "mark-label", x: box.x, y: box.y + 4 }, text));
      });
      return root;
    }
    return h("figure", { class: "chart", "data-chart": "roofline" },
      h("figcaption", null, AP.t("chart.roofline"), h("span", { class: "muted" }, " · " + (device ? device + AP.t("ui.comma") : "") + AP.t("chart.coverage", { count: inside.length, time: q(inside.reduce(function (sum, m) { return sum + m.ns; }, 0), "ns") }))),
      AP.sized(h("div", { class: "draw" }), draw),
      outside ? h("p", { class: "note" }, AP.t("chart.outside", { count: AP.format.significant(outside, 12), share: AP.format.share(marks.reduce(function (sum, m) { return sum + (inside.indexOf(m) < 0 ? m.ns : 0); }, 0) / (total || 1)) })) : null);
  };

  // ---- memory ----------------------------------------------------------------------------------------------------

  AP.memoryView = function (table) {
    const time = AP.column(table, "time_ns");
    const component = AP.column(table, "component");
    const figures = ["allocated_bytes", "reserved_bytes"].map(function (n) { return AP.column(table, n); });
    if (!time || !(figures[0] || figures[1])) return null;
    const lines = {};
    let x0 = Infinity, x1 = -Infinity, top = 0;
    for (let row = 0; row < table.rows; row++) {
      const at = time.get(row);
      if (typeof at !== "number") continue;
      const name = component ? component.get(row) || "" : "";
      figures.forEach(function (figure, i) {
        const value = figure && figure.get(row);
        if (typeof value !== "number") return;
        const key = name + "/" + i;
        (lines[key] = lines[key] || { name: name, which: i, points: [] }).points.push([at, value]);
        x0 = Math.min(x0, at);
        x1 = Math.max(x1, at);
        top = Math.max(top, value);
      });
    }
    const list = Object.values(lines).filter(function (l) { return l.points.length > 1; });
    if (!list.length || x1 <= x0 || top <= 0) return null;
    list.forEach(function (l) { l.points.sort(function (a, b) { return a[0] - b[0]; }); });
    const names = Array.from(new Set(list.map(function (l) { return l.name; })));
    const title = function (l) { return (l.name ? l.name + AP.t("ui.comma") : "") + AP.t(l.which ? "chart.reserved" : "chart.allocated"); };

    function at(l, when) {
      let low = 0, high = l.points.length - 1;
      if (when < l.points[0][0]) return null;
      while (low < high) {
        const mid = (low + high + 1) >> 1;
        if (l.points[mid][0] <= when) low = mid;
        else high = mid - 1;
      }
      return l.points[low][1];
    }

    function draw(width) {
      const height = Math.round(Math.max(220, Math.min(320, width * 0.36)));
      const m = { l: 74, r: 12, t: 10, b: 42 };
      const px = function (v) { return m.l + (v - x0) / (x1 - x0) * (width - m.l - m.r); };
      const py = function (v) { return height - m.b - v / (top * 1.06) * (height - m.t - m.b); };
      const root = s("svg", { width: width, height: height, role: "img", "aria-label": AP.t("chart.memory") });
      const unit = AP.format.scaleOf(top, "bytes");
      niceTicks(0, top * 1.06 / unit[0], 4).forEach(function (t) {
        root.append(s("line", { class: "grid", x1: m.l, x2: width - m.r, y1: py(t * unit[0]), y2: py(t * unit[0]) }),
          s("text", { class: "tick", x: m.l - 6, y: py(t * unit[0]) + 4, "text-anchor": "end" }, AP.format.tick(t) + " " + unit[1]));
      });
      const scale = AP.format.scaleOf(Math.max(Math.abs(x0), Math.abs(x1)), "ns");
      niceTicks(x0 / scale[0], x1 / scale[0], width < 500 ? 4 : 8).forEach(function (t) {
        const text = AP.format.tick(t) + " " + scale[1], half = textWidth(text) / 2, x = px(t * scale[0]);
        root.append(s("text", { class: "tick", x: Math.min(x, width - half - 1), y: height - m.b + 16, "text-anchor": "middle" }, text));
      });
      root.append(s("text", { class: "axis", x: (m.l + width - m.r) / 2, y: height - 6, "text-anchor": "middle" }, AP.t("chart.time")));
      list.forEach(function (l) {
        // Allocators jump and stay: steps, not slopes.
        let d = "";
        l.points.forEach(function (p, i) { d += (i ? "H" + px(p[0]).toFixed(1) + "V" : "M" + px(p[0]).toFixed(1) + " ") + py(p[1]).toFixed(1); });
        root.append(s("path", { class: "line c" + (names.indexOf(l.name) % 6) + (l.which ? " reserved" : ""), d: d }));
      });
      const cross = s("line", { class: "cross", y1: m.t, y2: height - m.b, visibility: "hidden" });
      root.append(cross);
      root.addEventListener("pointermove", function (e) {
        const box = root.getBoundingClientRect();
        const when = x0 + (e.clientX - box.left - m.l) / (width - m.l - m.r) * (x1 - x0);
        if (when < x0 || when > x1) return AP.tip(null);
        cross.setAttribute("x1", px(when));
        cross.setAttribute("x2", px(when));
        cross.setAttribute("visibility", "visible");
        AP.tip([AP.format.offset(when)].concat(list.map(function (l) { return title(l) + AP.t("ui.colon") + q(at(l, when), "bytes"); })), e.clientX, e.clientY);
      });
      root.addEventListener("pointerleave", function () {
        cross.setAttribute("visibility", "hidden");
        AP.tip(null);
      });
      return root;
    }
    return h("figure", { class: "chart", "data-chart": "memory" },
      h("figcaption", null, AP.t("chart.memory")),
      h("div", { class: "keys" }, list.map(function (l) {
        return h("span", { class: "key" }, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { class: "line c" + (names.indexOf(l.name) % 6) + (l.which ? " reserved" : ""), d: "M1 5H25" })), title(l));
      })),
      AP.sized(h("div", { class: "draw" }), draw));
  };

  // ---- heat maps ---------------------------------------------------------------------------------------------------

  function sortedKeys(keys) {
    return Array.from(new Set(keys)).sort(function (a, b) { return String(a).localeCompare(String(b), undefined, { numeric: true }); });
  }

  const MOST_HEIGHT = 620; // px of the cells of a map
  const MOST_EMPTY = 400; // cells of a map up to which empty ones are drawn
  const FAINTEST = 6; // % of the colour in a cell of next to nothing: it must differ from one that is empty
  const SLOW = 0.9; // of the usual rate of its peers: below this a link is worth a map of very many
  const MOST_CELLS = 64;  // along an axis; more ranks are put together

  /** Neighbours put together where there are more keys than an axis shows: {keys, of: key -> place, label(place), each}. */
  function binned(sorted) {
    const each = Math.ceil(sorted.length / MOST_CELLS);
    const of = {};
    sorted.forEach(function (key, i) { of[key] = Math.floor(i / each); });
    const bins = [];
    for (let i = 0; i < sorted.length; i += each) bins.push([sorted[i], sorted[Math.min(i + each, sorted.length) - 1]]);
    return {
      keys: bins.map(function (b, i) { return i; }), of: of, each: each,
      label: function (i) { return bins[i][0] === bins[i][1] ? String(bins[i][0]) : bins[i][0] + "–" + bins[i][1]; },
    };
  }

  /** Two columns of ranks and a figure as a grid; several rows of one cell are added up or averaged, and so are ranks
      that are put together because there are many. */
  AP.heatView = function (table, rowName, columnName, figure, options) {
    const a = AP.column(table, rowName), b = AP.column(table, columnName);
    if (!a || !b || !figure) return null;
    const found = [];
    for (let i = 0; i < table.rows; i++) {
      const r = a.get(i), c = b.get(i), v = figure.get(i);
      // A rank's copy to itself is no link; its rate would drown the others.
      if (r === null || c === null || typeof v !== "number" || (options.mean && r === c)) continue;
      found.push([r, c, v]);
    }
    const pick = function (at) { return sortedKeys(found.map(function (f) { return f[at]; })); };
    // One axis for both: a rank stands at the same place in its row and in its column. Where most ranks were not
    // recorded, their rows would be empty: then only those that say something stand.
    const own = pick(0), both = options.square ? sortedKeys(own.concat(pick(1))) : null;
    const rows = binned(both && own.length > both.length / 2 ? both : own), columns = binned(both || pick(1));
    if (!found.length || rows.keys.length * columns.keys.length < 2) return null;
    const cells = {};
    found.forEach(function (f) {
      const key = rows.of[f[0]] + "|" + columns.of[f[1]];
      const cell = cells[key] = cells[key] || { sum: 0, n: 0, low: Infinity };
      cell.sum += f[2];
      cell.n++;
      cell.low = Math.min(cell.low, f[2]);
    });
    const value = function (r, c) {
      const cell = cells[r + "|" + c];
      return cell ? (options.lowest ? cell.low : options.mean ? cell.sum / cell.n : cell.sum) : null;
    };
    const lows = Object.values(cells);
    if (options.lowest && lows.length && rows.keys.length * columns.keys.length > MOST_EMPTY && lows.every(function (c) { return c.low >= SLOW; })) {
      return h("figure", { class: "chart", "data-chart": "heat" }, h("figcaption", null, options.title),
        h("p", { class: "note" }, AP.t("chart.links_alike", { count: AP.format.significant(found.length, 12), share: q(SLOW, "ratio"), low: q(Math.min.apply(null, lows.map(function (c) { return c.low; })), "ratio") })));
    }
    const each = Math.max(rows.each, columns.each);
    const note = each > 1 ? [options.note, AP.t("chart.binned", { count: each })].filter(Boolean).join(" · ") : options.note;
    return grid(rows.keys, columns.keys, value, Object.assign({}, options, {
      unit: figure.unit, name: rows.label, column: columns.label, note: note,
      tip: function (r, c) { return options.tip(rows.label(r), columns.label(c)); },
    }));
  };

  function grid(rowKeys, columnKeys, value, options) {
    let top = 0;
    rowKeys.forEach(function (r) { columnKeys.forEach(function (c) { top = Math.max(top, value(r, c) || 0); }); });
    function draw(width) {
      const left = options.left || 64;
      // A map of many ranks stays within one screen.
      const high = Math.max(9, Math.min(28, MOST_HEIGHT / rowKeys.length, (width - left - 8) / columnKeys.length));
      const size = Math.max(9, Math.min(options.cell || 72, (width - left - 8) / columnKeys.length, rowKeys.length > 16 ? high * 2 : Infinity));
      const sparse = rowKeys.length * columnKeys.length > MOST_EMPTY;
      // Figures stand in all cells or in none.
      const labelled = size >= 44 && rowKeys.every(function (r) {
        return columnKeys.every(function (c) {
          const v = value(r, c);
          return v === null || textWidth((options.marked && options.marked(r, c) ? "◆ " : "") + q(v, options.unitOf ? options.unitOf(c) : options.unit)) <= size - 5;
        });
      });
      const tilted = options.slanted && columnKeys.some(function (c) { return options.column(c).length * (AP.state.lang === "zh" ? 11 : 6.2) > size - 8; });
      const head = tilted ? 96 : 22;
      const longest = Math.max.apply(null, columnKeys.map(function (c) { return String(options.column ? options.column(c) : c).length; }));
      const root = s("svg", { width: Math.ceil(left + size * columnKeys.length + (tilted ? 80 : Math.max(8, 3.4 * longest - size / 2))), height: head + high * rowKeys.length + 4, role: "img", "aria-label": options.title });
      const every = function (n, room) { return Math.max(1, Math.ceil(room / n)); };
      const room = tilted ? 22 : Math.max(22, 6.5 * longest + 8);
      if (sparse) root.append(s("rect", { class: "cells", x: left, y: head, width: size * columnKeys.length, height: high * rowKeys.length }));
      columnKeys.forEach(function (c, j) {
        if (j % every(size, room)) return;
        const cx = left + size * (j + 0.5);
        root.append(s("text", tilted
          ? { class: "tick", transform: "translate(" + cx + " " + (head - 6) + ") rotate(-40)" }
          : { class: "tick", x: cx, y: head - 7, "text-anchor": "middle" }, options.column ? options.column(c) : c));
      });
      rowKeys.forEach(function (r, i) {
        if (i % every(high, 12) === 0) root.append(s("text", { class: "tick", x: left - 6, y: head + high * (i + 0.5) + 4, "text-anchor": "end" }, options.name(r)));
        columnKeys.forEach(function (c, j) {
          const v = value(r, c);
          if (v === null && sparse) return;
          const mark = options.marked && options.marked(r, c);
          const share = v === null ? null : (options.share ? options.share(r, c, v) : top ? v / top : 0);
          const lines = function () { return [options.tip(r, c), q(v, options.unitOf ? options.unitOf(c) : options.unit), mark ? AP.t("ui.outlier") : null]; };
          root.append(s("rect", {
            class: "cell " + (options.tone || "blue") + (v === null ? " none" : "") + (mark ? " marked" : ""), x: left + size * j + 0.5, y: head + high * i + 0.5, width: size - 1, height: high - 1,
            style: share === null ? {} : { "--share": (FAINTEST + (100 - FAINTEST) * Math.max(0, Math.min(1, share))).toFixed(0) + "%" }, on: AP.tipped(lines),
          }));
          if (labelled && v !== null) root.append(s("text", { class: "cell-text " + (options.tone || "blue") + (share > 0.78 ? " strong" : ""), x: left + size * (j + 0.5), y: head + high * (i + 0.5) + 4, "text-anchor": "middle" }, (mark ? "◆ " : "") + q(v, options.unitOf ? options.unitOf(c) : options.unit)));
        });
      });
      return root;
    }
    // Where no figures stand in the cells, how much the strongest colour is.
    const strongest = !options.share && !options.unitOf && rowKeys.length > 16 ? h("span", { class: "muted" }, " · " + AP.t("chart.strongest", { value: q(top, options.unit) })) : null;
    return h("figure", { class: "chart", "data-chart": "heat" },
      h("figcaption", null, options.title, options.note && h("span", { class: "muted" }, " · " + options.note), strongest),
      AP.sized(h("div", { class: "draw scroll" }), draw));
  }
})();
