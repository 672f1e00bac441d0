// The ranks of a job at a glance: one row per component, one column per rank, on a canvas. Neighbours share a column
// where there are more ranks than the width shows; the pointer, the keys and the table reach every single one.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const ROW = 30, GAP = 2, AXIS = 18;
  const LEAST = 2; // px of a column
  const MOST = 110;
  const TEXT = 56; // px from which a cell holds its figure
  const FLAT_RATIO = 0.05; // a row whose spread is below this share of the step is not blown up to full colour
  const COLOUR = { computing: "--k-computing", wait: "--k-wait", transfer: "--k-transfer", copy: "--k-copy", idle: "--k-idle", other: "--muted" };

  let redraw = null;
  AP.redrawStrip = function () { if (redraw) redraw(); };
  AP.forgetStrip = function () { redraw = null; };

  function median(values) {
    const sorted = values.slice().sort(function (a, b) { return a - b; });
    const n = sorted.length;
    return n ? (sorted[(n - 1) >> 1] + sorted[n >> 1]) / 2 : 0;
  }

  function channels(hex) {
    const n = parseInt(hex.slice(1), 16);
    return [n >> 16, n >> 8 & 255, n & 255];
  }

  /** Relative luminance (WCAG 2). */
  function luminance(rgb) {
    const c = rgb.map(function (v) { return v / 255 <= 0.04045 ? v / 255 / 12.92 : Math.pow((v / 255 + 0.055) / 1.055, 2.4); });
    return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
  }

  /** Of two inks the one that is read better on a colour that lies over a ground. */
  function ink(colour, alpha, ground, inks) {
    const over = channels(colour), under = channels(ground);
    const paper = luminance(over.map(function (v, i) { return alpha * v + (1 - alpha) * under[i]; }));
    function contrast(hex) {
      const l = luminance(channels(hex));
      return (Math.max(l, paper) + 0.05) / (Math.min(l, paper) + 0.05);
    }
    return contrast(inks[0]) >= contrast(inks[1]) ? inks[0] : inks[1];
  }

  function known(values) { return values.filter(function (v) { return v !== null; }); }

  /** What drawing needs of a row: its scale, the medians of its stages, its odd places. */
  function prepared(strip) {
    const step = median(known(strip.rows[0].ns));
    return strip.rows.map(function (row) {
      const all = known(row.ns);
      const low = Math.min.apply(null, all), high = Math.max.apply(null, all);
      const stages = {};
      row.ns.forEach(function (v, i) { if (v !== null) (stages[strip.stages[i]] = stages[strip.stages[i]] || []).push(v); });
      Object.keys(stages).forEach(function (s) { stages[s] = median(stages[s]); });
      return {
        row: row, odd: new Set(row.odd), low: low, span: Math.max(high - low, FLAT_RATIO * step) || 1,
        usual: function (i) { return stages[strip.stages[i]]; },
      };
    });
  }

  function arranged(strip, sort) {
    const order = strip.ranks.map(function (r, i) { return i; });
    const row = strip.rows.find(function (r) { return r.key === sort; });
    if (row) order.sort(function (a, b) { return (row.ns[a] === null) - (row.ns[b] === null) || row.ns[b] - row.ns[a] || a - b; });
    return order;
  }

  AP.rankStrip = function (strip) {
    const rows = prepared(strip);
    const state = AP.state.strip = AP.state.strip || { sort: "rank", rank: AP.state.rank };
    if (strip.ranks.indexOf(state.rank) < 0) state.rank = strip.ranks.indexOf(AP.state.rank) < 0 ? strip.ranks[0] : AP.state.rank;
    let order = arranged(strip, state.sort);
    let line = 0; // the row that the keys are in
    let layout = null;
    let focused = false;
    const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": AP.t("strip.title") + AP.t("ui.colon") + AP.t("strip.help"), "aria-describedby": "strip-says" });
    const binned = h("span");
    const says = h("div", { class: "strip-says", id: "strip-says", "aria-live": "polite" });

    function sortButton(key, label) {
      const button = h("button", { type: "button", class: "strip-row", "data-sort": key, title: AP.t("strip.sort") + AP.t("ui.colon") + AP.w(label) }, AP.w(label));
      button.addEventListener("click", function () {
        state.sort = key;
        order = arranged(strip, key);
        AP.save();
        marked();
        paint();
      });
      return button;
    }
    const buttons = rows.map(function (r) { return sortButton(r.row.key, r.row.label); }).concat([sortButton("rank", AP.t("strip.by_rank"))]);
    function marked() {
      buttons.forEach(function (b) { b.setAttribute("aria-pressed", b.getAttribute("data-sort") === state.sort ? "true" : "false"); });
    }

    function stageOf(i) {
      return strip.stages[i] === null || strip.stages[i] === undefined ? null : AP.t("strip.of_stage", { stage: strip.stages[i] });
    }

    /** One figure of one rank in words. */
    function figure(r, i) {
      const v = r.row.ns[i];
      if (v === null) return AP.t("ui.unknown");
      const notes = [AP.t("strip.usual", { time: q(r.usual(i), "ns") }), r.row.z[i] !== null && AP.t("strip.score", { z: scoreText(r.row.z[i]) })];
      return AP.t("strip.noted", { figure: q(v, "ns"), notes: notes.filter(Boolean).join(AP.t("ui.comma")) }) + (r.odd.has(i) ? " ◆ " + AP.t("strip.mark") : "");
    }

    function scoreText(z) { return (z < 0 ? "−" : "+") + (Math.abs(z) >= 99 ? "≥ 99" : Math.abs(z).toFixed(1)); }

    function link(rank) {
      if (AP.hasDetails(rank)) return h("button", { type: "button", class: "link", on: { click: function () { AP.goRank(rank); } } }, AP.t("job.open", { rank: rank }));
      const page = AP.pageOf(rank);
      if (page) return h("a", { href: page }, AP.t("job.open_page", { rank: rank }));
      return h("span", { class: "muted" }, AP.t("job.no_details", { rank: rank }));
    }

    function tell() {
      const i = strip.ranks.indexOf(state.rank);
      const why = AP.whyOf(state.rank);
      says.replaceChildren(
        h("p", null, h("strong", null, AP.rankName(state.rank)), [stageOf(i), why].filter(Boolean).map(function (t) { return " · " + t; }), " · ", link(state.rank)),
        h("dl", null, rows.map(function (r) {
          return h("div", { class: r.odd.has(i) ? "odd" : null }, h("dt", null, AP.w(r.row.label)), h("dd", null, figure(r, i)));
        })));
    }

    /** Of ranks that share a column, the one that stands out or is farthest from its equals speaks. */
    function speaker(r, from, to) {
      let far = order[from], most = -1;
      for (let at = from; at < to; at++) {
        const i = order[at];
        if (r.row.ns[i] === null) continue;
        const off = Math.abs(r.row.ns[i] - r.usual(i)) + (r.odd.has(i) ? 1e18 : 0);
        if (off > most) { most = off; far = i; }
      }
      return far;
    }

    function paint() {
      const width = canvas.clientWidth;
      if (width < 20) return;
      const n = order.length;
      const each = Math.max(1, Math.ceil(n * LEAST / width));
      const columns = Math.ceil(n / each);
      const wide = Math.min(MOST, width / columns);
      const scale = window.devicePixelRatio || 1;
      // Columns begin at whole pixels: edges between would be blurred into stripes.
      const left = function (c) { return Math.round(c * wide * scale) / scale; };
      layout = { each: each, columns: columns, wide: wide };
      binned.textContent = each > 1 ? " " + AP.t("strip.binned", { count: each }) : "";
      const height = rows.length * (ROW + GAP) + AXIS;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = height + "px";
      const pen = canvas.getContext("2d");
      const css = getComputedStyle(canvas);
      const v = function (name) { return css.getPropertyValue(name).trim(); };
      pen.scale(scale, scale);
      pen.font = "11px " + css.fontFamily;
      pen.textBaseline = "middle";
      rows.forEach(function (r, y) {
        const top = y * (ROW + GAP);
        const colour = v(COLOUR[r.row.kind]), inks = [v("--text"), v("--page")];
        pen.fillStyle = v("--panel");
        pen.fillRect(0, top, wide * columns, ROW);
        const late = [];
        const said = [];
        for (let c = 0; c < columns; c++) {
          const to = Math.min(n, (c + 1) * each), i = speaker(r, c * each, to), value = r.row.ns[i];
          const x = left(c), w = left(c + 1) - x - (wide > 5 ? 1 : 0);
          if (value === null) {
            pen.fillStyle = v("--line");
            pen.fillRect(x, top + ROW / 2, w, 1);
            continue;
          }
          const share = Math.max(0, Math.min(1, (value - r.low) / r.span));
          pen.globalAlpha = 0.1 + 0.9 * share;
          pen.fillStyle = colour;
          pen.fillRect(x, top, w, ROW);
          pen.globalAlpha = 1;
          if (r.odd.has(i)) late.push(c);
          if (wide >= TEXT) said.push({ x: x + w / 2, text: q(value, "ns"), ink: ink(colour, 0.1 + 0.9 * share, v("--panel"), inks) });
        }
        if (r.row.kind === "wait") hatch(pen, 0, top, wide * columns, v("--page"));
        said.forEach(function (one) {
          const plate = r.row.kind === "wait" ? pen.measureText(one.text).width + 8 : 0;
          // A figure over hatching stands on a ground of its own.
          pen.fillStyle = v("--page");
          if (plate) pen.fillRect(one.x - plate / 2, top + ROW / 2 - 8, plate, 16);
          pen.fillStyle = plate ? v("--text") : one.ink;
          pen.textAlign = "center";
          pen.fillText(one.text, one.x, top + ROW / 2 + 1);
        });
        late.forEach(function (c) { mark(pen, c * wide + Math.max(1, wide - (wide > 5 ? 1 : 0)) / 2, top, wide, v("--sev-critical"), v("--page")); });
      });
      axis(pen, v("--muted"), rows.length * (ROW + GAP), width);
      cursor(pen, v("--text"), v("--accent"));
    }

    /** Waiting is hatched everywhere. */
    function hatch(pen, x, y, w, colour) {
      pen.save();
      pen.beginPath();
      pen.rect(x, y, w, ROW);
      pen.clip();
      pen.globalAlpha = 0.35;
      pen.strokeStyle = colour;
      pen.lineWidth = 1.5;
      pen.beginPath();
      for (let at = x - ROW; at < x + w; at += 7) { pen.moveTo(at, y + ROW); pen.lineTo(at + ROW, y); }
      pen.stroke();
      pen.restore();
    }

    /** A diamond where there is room, else a tick above the column. */
    function mark(pen, x, top, wide, colour, edge) {
      pen.fillStyle = colour;
      if (wide < 9) {
        pen.fillRect(x - Math.max(1.5, wide / 2), top, Math.max(3, wide), 7);
        return;
      }
      pen.strokeStyle = edge;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x, top); pen.lineTo(x + 4.5, top + 4.5); pen.lineTo(x, top + 9); pen.lineTo(x - 4.5, top + 4.5);
      pen.closePath();
      pen.stroke();
      pen.fill();
    }

    function axis(pen, colour, top, width) {
      pen.fillStyle = colour;
      const room = 8 + 6.5 * Math.max.apply(null, [strip.ranks[0], strip.ranks[strip.ranks.length - 1]].map(function (r) { return String(r).length; }));
      // Sorted by a component, numbers stand only where each column has its own.
      if (state.sort !== "rank" && layout.wide < room) return;
      const one = layout.wide / layout.each;
      let every = 1; // a power of two, as ranks come
      while (every * one < room && every < order.length) every *= 2;
      for (let at = 0; at < order.length; at += every) {
        const text = String(strip.ranks[order[at]]);
        const x = (Math.floor(at / layout.each) + 0.5) * layout.wide, half = pen.measureText(text).width / 2;
        if (x + half > width) break;
        pen.textAlign = x - half < 0 ? "left" : "center";
        pen.fillText(text, Math.max(x - half < 0 ? 0 : x, 0), top + AXIS / 2 + 1);
      }
    }

    function cursor(pen, colour, accent) {
      const c = Math.floor(order.indexOf(strip.ranks.indexOf(state.rank)) / layout.each);
      pen.strokeStyle = colour;
      pen.lineWidth = 1.5;
      pen.strokeRect(c * layout.wide - 0.25, 0.75, Math.max(3, layout.wide), rows.length * (ROW + GAP) - GAP - 1.5);
      if (focused) {
        pen.strokeStyle = accent;
        pen.lineWidth = 3;
        pen.strokeRect(c * layout.wide, line * (ROW + GAP) + 1.5, Math.max(4, layout.wide), ROW - 3);
      }
    }

    function place(e) {
      const box = canvas.getBoundingClientRect();
      const c = Math.floor((e.clientX - box.left) / layout.wide), y = Math.floor((e.clientY - box.top) / (ROW + GAP));
      if (!layout || c < 0 || c >= layout.columns || y < 0 || y >= rows.length) return null;
      const from = c * layout.each, to = Math.min(order.length, from + layout.each);
      return { from: from, to: to, row: rows[y], line: y, i: speaker(rows[y], from, to) };
    }

    function pin(rank) {
      state.rank = rank;
      AP.save();
      tell();
      paint();
    }
    AP.pinRank = function (rank) {
      if (strip.ranks.indexOf(rank) < 0) return false;
      pin(rank);
      return true;
    };

    canvas.addEventListener("pointermove", function (e) {
      const at = layout && place(e);
      if (!at) return AP.tip(null);
      canvas.style.cursor = "pointer";
      const shared = at.to - at.from > 1 && AP.t("ui.rank_n", { rank: AP.ranges(order.slice(at.from, at.to).map(function (i) { return strip.ranks[i]; })) });
      AP.tip([[AP.rankName(strip.ranks[at.i]), stageOf(at.i)].filter(Boolean).join(" · "), AP.w(at.row.row.label) + AP.t("ui.colon") + figure(at.row, at.i), AP.whyOf(strip.ranks[at.i]), shared], e.clientX, e.clientY);
    });
    canvas.addEventListener("pointerleave", function () { AP.tip(null); });
    canvas.addEventListener("click", function (e) {
      const at = layout && place(e);
      if (!at) return;
      line = at.line;
      pin(strip.ranks[at.i]);
      AP.goRank(strip.ranks[at.i]);
    });
    canvas.addEventListener("focus", function () { focused = canvas.matches(":focus-visible"); paint(); });
    canvas.addEventListener("blur", function () { focused = false; paint(); });
    canvas.addEventListener("keydown", function (e) {
      let at = order.indexOf(strip.ranks.indexOf(state.rank));
      const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 16, PageDown: at + 16, Home: 0, End: order.length - 1 };
      if (e.key in moves) at = Math.max(0, Math.min(order.length - 1, moves[e.key]));
      else if (e.key === "ArrowUp") line = Math.max(0, line - 1);
      else if (e.key === "ArrowDown") line = Math.min(rows.length - 1, line + 1);
      else if (e.key === "Enter") { e.preventDefault(); return AP.goRank(state.rank); }
      else return;
      e.preventDefault();
      focused = true;
      pin(strip.ranks[order[at]]);
    });

    marked();
    tell();
    redraw = paint;
    const box = h("div", { class: "strip-canvas" }, canvas);
    new ResizeObserver(function () { requestAnimationFrame(paint); }).observe(box);
    return h("figure", { class: "chart strip", "data-chart": "strip" },
      h("figcaption", null, AP.t("strip.title"), h("span", { class: "muted" }, " · " + AP.t("strip.help"))),
      h("div", { class: "strip-box" }, h("div", { class: "strip-rows", role: "group", "aria-label": AP.t("strip.sort") }, buttons), box),
      says,
      h("p", { class: "note" }, AP.t("strip.note"), binned),
      asTable(strip, rows));
  };

  function asTable(strip, rows) {
    const id = "strip-table";
    const staged = strip.stages.some(function (s) { return s !== null && s !== undefined; });
    const table = {
      name: "strip", section: "quality", title: AP.t("strip.title"), note: null, rows: strip.ranks.length,
      columns: [{ name: "rank", title: AP.t("ui.rank"), unit: "none", data: strip.ranks }].concat(
        staged ? [{ name: "stage", title: AP.t("strip.stage"), unit: "none", data: strip.stages }] : [],
        rows.map(function (r) { return { name: r.row.key + "_ns", title: r.row.label, unit: "ns", data: r.row.ns }; }),
        rows.filter(function (r) { return r.row.z.some(function (z) { return z !== null; }); }).map(function (r) {
          return { name: r.row.key + "_z", title: "z: " + AP.w(r.row.label), unit: "none", data: r.row.z };
        })),
    };
    return h("details", { class: "frames", id: id, open: Boolean(AP.state.open[id]), on: { toggle: function (e) { AP.state.open[id] = e.target.open; AP.save(); } } },
      h("summary", null, AP.t("ui.as_table")),
      AP.tableView(table, "job/strip", {
        onRow: function (row) { AP.goRank(strip.ranks[row]); },
        selectable: function (row) { return AP.hasDetails(strip.ranks[row]) || Boolean(AP.pageOf(strip.ranks[row])); },
      }));
  }
})();
