// Timeline of one step on a canvas: lanes, zoom by drag, wheel and keyboard, hover, findings as bands.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const ROW = 16; // px of one row of intervals
  const GAP = 7; // px between lanes
  const HEAD = 22; // px of the time axis
  const MOST_DEPTH = 5; // rows of a lane; deeper nesting is drawn in the last one
  const SHORTEST_NS = 50; // narrowest window
  const ORDER = ["host", "computing", "wait", "transfer", "copy", "idle"];

  const KINDS = { compute: "computing", communication: "transfer", wait: "wait", copy: "copy", host: "host", sync: "host", dataloader: "host", gc: "host", idle: "idle" };

  /** Category of an interval, by its kind; kinds that we do not know by what they are called. */
  function kindOf(text) {
    const t = text.toLowerCase();
    if (KINDS[t]) return KINDS[t];
    if (/wait|notify|sync/.test(t) && !/host|runtime|api/.test(t)) return "wait";
    if (/comm|hccl|nccl|rccl|collective|transfer/.test(t)) return "transfer";
    if (/cop(y|ies)|memcpy|memset|h2d|d2h|d2d/.test(t)) return "copy";
    if (/host|cpu_op|python|runtime|api|queue|dataloader|thread|user|op$|optimizer|gc/.test(t)) return "host";
    if (/idle|free|gap/.test(t)) return "idle";
    return "computing";
  }

  AP.timelineOf = function (rank) {
    return AP.data.tables.find(function (t) { return t.name === "timeline" && (t.rank === rank || t.scope === "job"); }) || null;
  };

  let current = null;
  /** Show a window of a rank's timeline; a point gets a window around it. */
  AP.goTimeline = function (rank, start, end) {
    if (rank !== AP.state.rank && AP.data.ranks.indexOf(rank) >= 0) {
      AP.state.rank = rank;
      AP.save();
      AP.render();
    }
    document.getElementById("section-timeline").scrollIntoView();
    if (current) current.show(start, end);
  };

  function build(table) {
    const lane = AP.column(table, "lane"), kind = AP.column(table, "kind"), name = AP.column(table, "name");
    const start = AP.column(table, "start_ns"), dur = AP.column(table, "dur_ns");
    if (!lane || !start || !dur) return null;
    const lanes = new Map();
    let low = Infinity, high = -Infinity;
    for (let row = 0; row < table.rows; row++) {
      const s = start.get(row), d = dur.get(row);
      if (typeof s !== "number" || typeof d !== "number") continue;
      const key = lane.get(row) || "";
      if (!lanes.has(key)) lanes.set(key, { name: key, items: [], weight: {} });
      const type = kindOf((kind && kind.key(row)) || key);
      const l = lanes.get(key);
      l.items.push({ s: s, e: s + d, name: (name && name.get(row)) || "", raw: (kind && kind.get(row)) || "", type: type, depth: 0 });
      l.weight[type] = (l.weight[type] || 0) + d + 1;
      low = Math.min(low, s);
      high = Math.max(high, s + d);
    }
    if (!(high > low)) return null;
    const list = Array.from(lanes.values());
    list.forEach(function (l) {
      l.items.sort(function (a, b) { return a.s - b.s || b.e - a.e; });
      const ends = [];
      l.depth = 1;
      l.items.forEach(function (item) {
        let d = ends.findIndex(function (e) { return e <= item.s; });
        if (d < 0) d = Math.min(ends.length, MOST_DEPTH - 1);
        ends[d] = item.e;
        item.depth = d;
        l.depth = Math.max(l.depth, d + 1);
      });
      l.rows = [];
      for (let d = 0; d < l.depth; d++) l.rows.push(l.items.filter(function (i) { return i.depth === d; }));
      l.type = Object.keys(l.weight).sort(function (a, b) { return l.weight[b] - l.weight[a]; })[0];
    });
    list.sort(function (a, b) { return ORDER.indexOf(a.type) - ORDER.indexOf(b.type); });
    let y = HEAD;
    list.forEach(function (l) {
      l.y = y;
      y += l.depth * ROW + GAP;
    });
    return { lanes: list, low: low, high: high, height: y, events: table.rows };
  }

  function bandsOf(rank) {
    const bands = [];
    AP.data.findings.forEach(function (finding, i) {
      finding.bands.forEach(function (band) {
        if (band.rank === rank) bands.push({ s: band.start, e: band.end, n: i + 1, severity: finding.severity, title: finding.title });
      });
    });
    return bands;
  }

  function perfetto(model, from, to) {
    const events = [];
    model.lanes.forEach(function (l, tid) {
      events.push({ ph: "M", name: "thread_name", pid: 0, tid: tid, args: { name: l.name } });
      l.items.forEach(function (item) {
        if (item.e < from || item.s > to) return;
        events.push({ ph: "X", name: item.name, cat: item.raw || item.type, pid: 0, tid: tid, ts: item.s / 1000, dur: (item.e - item.s) / 1000 });
      });
    });
    return JSON.stringify({ displayTimeUnit: "ns", traceEvents: events });
  }

  AP.timelineView = function (table) {
    const model = build(table);
    if (!model) return null;
    const bands = bandsOf(table.rank);
    const view = { from: model.low, to: model.high };
    let width = 0, pick = null, drag = null, found = null;
    const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": AP.t("timeline.canvas") });
    const said = h("output", { class: "count" });
    const hits = h("output", { class: "count" });
    const pen = canvas.getContext("2d");

    function left() { return width < 560 ? 84 : 150; }
    function at(ns) { return left() + (ns - view.from) / (view.to - view.from) * (width - left()); }
    function ns(x) { return view.from + (x - left()) / (width - left()) * (view.to - view.from); }

    function colours() {
      const style = getComputedStyle(document.documentElement);
      const get = function (n) { return style.getPropertyValue(n).trim(); };
      const made = { text: get("--text"), muted: get("--muted"), line: get("--line"), page: get("--page"), accent: get("--accent") };
      ORDER.forEach(function (k) { made[k] = get("--k-" + k); made["on-" + k] = get("--on-" + k); });
      ["critical", "high", "medium", "low"].forEach(function (k) { made["sev-" + k] = get("--sev-" + k); });
      return made;
    }

    function hatch(colour, paper) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const p = tile.getContext("2d");
      p.fillStyle = paper;
      p.fillRect(0, 0, 6, 6);
      p.strokeStyle = colour;
      p.lineWidth = 2.2;
      p.beginPath();
      for (const x of [-6, 0, 6]) { p.moveTo(x - 1, 7); p.lineTo(x + 7, -1); }
      p.stroke();
      return pen.createPattern(tile, "repeat");
    }

    function draw() {
      if (!width) return;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = width * ratio;
      canvas.height = model.height * ratio;
      canvas.style.height = model.height + "px";
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      const c = colours();
      const wait = hatch(c.wait, c.page);
      pen.clearRect(0, 0, width, model.height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      axis(c);
      bands.forEach(function (b) {
        const x0 = Math.max(left(), at(b.s)), x1 = Math.min(width, Math.max(at(b.e), at(b.s) + 2));
        if (x1 <= left() || x0 >= width) return;
        pen.globalAlpha = 0.13;
        pen.fillStyle = c["sev-" + b.severity];
        pen.fillRect(x0, HEAD, x1 - x0, model.height - HEAD);
        pen.globalAlpha = 1;
        pen.fillRect(x0, HEAD - 3, x1 - x0, 3);
      });
      model.lanes.forEach(function (l) {
        pen.fillStyle = c.line;
        pen.fillRect(0, l.y - 4, width, 1);
        l.rows.forEach(function (items, d) { row(items, l.y + d * ROW, c, wait); });
        pen.fillStyle = c.page;
        pen.fillRect(0, l.y - 3, left() - 4, l.depth * ROW + GAP - 1);
        pen.fillStyle = c.muted;
        pen.fillText(fit(l.name, left() - 10), 2, l.y + ROW / 2);
      });
      if (pick) {
        pen.strokeStyle = c.text;
        pen.lineWidth = 1.5;
        const x0 = Math.max(left(), at(pick.item.s));
        pen.strokeRect(x0, pick.lane.y + pick.item.depth * ROW, Math.max(2, Math.min(width, at(pick.item.e)) - x0), ROW - 2);
      }
      if (drag && drag.zoom) {
        pen.globalAlpha = 0.18;
        pen.fillStyle = c.accent;
        pen.fillRect(Math.min(drag.x, drag.now), 0, Math.abs(drag.now - drag.x), model.height);
        pen.globalAlpha = 1;
      }
      said.textContent = AP.t("timeline.window", { from: AP.format.offset(view.from), to: AP.format.offset(view.to) }) + " (" + q(Math.round(view.to - view.from), "ns") + ")";
    }

    function fit(text, room) {
      if (pen.measureText(text).width <= room) return text;
      let n = Math.max(1, Math.floor(text.length * room / pen.measureText(text).width) - 1);
      return text.slice(0, n) + "…";
    }

    function axis(c) {
      const raw = (view.to - view.from) / Math.max(3, (width - left()) / 110);
      const power = Math.pow(10, Math.floor(Math.log10(raw)));
      const step = [1, 2, 5, 10].map(function (m) { return m * power; }).find(function (x) { return x >= raw; });
      const scale = AP.format.scaleOf(Math.max(Math.abs(view.from), Math.abs(view.to)), "ns");
      pen.fillStyle = c.muted;
      for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
        const x = at(t);
        pen.fillStyle = c.line;
        pen.fillRect(x, HEAD - 5, 1, model.height - HEAD);
        pen.fillStyle = c.muted;
        const places = Math.max(0, Math.ceil(-Math.log10(step / scale[0]) - 1e-9));
        pen.fillText((t / scale[0]).toFixed(places) + " " + scale[1], x + 3, 9);
      }
    }

    /** One row; intervals that fall on a pixel already painted are left out, so that any number of them stays smooth. */
    function row(items, y, c, wait) {
      let low = 0, high = items.length;
      while (low < high) {
        const mid = (low + high) >> 1;
        if (items[mid].e < view.from) low = mid + 1;
        else high = mid;
      }
      let painted = -1;
      for (let i = low; i < items.length && items[i].s <= view.to; i++) {
        const item = items[i];
        const x1 = Math.min(width, at(item.e));
        if (x1 <= painted + 0.5) continue;
        const x0 = Math.max(left(), at(item.s), painted);
        const w = Math.max(1, x1 - x0);
        pen.globalAlpha = found && !found(item) ? 0.18 : 1;
        pen.fillStyle = item.type === "wait" ? wait : c[item.type];
        pen.fillRect(x0, y, w > 3 ? w - 0.5 : w, ROW - 2);
        if (item.type === "wait" && w > 3) {
          pen.strokeStyle = c.wait;
          pen.lineWidth = 1;
          pen.strokeRect(x0 + 0.5, y + 0.5, w - 1.5, ROW - 3);
        }
        if (w > 34 && item.name) {
          const text = fit(item.name, w - 8);
          if (item.type === "wait") {
            pen.fillStyle = c.page;
            pen.fillRect(x0 + 2, y + 2, pen.measureText(text).width + 4, ROW - 6);
            pen.fillStyle = c.text;
          } else pen.fillStyle = c["on-" + item.type];
          pen.fillText(text, x0 + 4, y + ROW / 2 - 0.5);
        }
        painted = x0 + w;
      }
      pen.globalAlpha = 1;
    }

    function hit(x, y) {
      if (x < left()) return null;
      const lane = model.lanes.find(function (l) { return y >= l.y && y < l.y + l.depth * ROW; });
      if (!lane) return null;
      const items = lane.rows[Math.floor((y - lane.y) / ROW)] || [];
      const when = ns(x), slack = (view.to - view.from) / (width - left());
      let best = null;
      let low = 0, high = items.length;
      while (low < high) {
        const mid = (low + high) >> 1;
        if (items[mid].e < when - slack) low = mid + 1;
        else high = mid;
      }
      for (let i = low; i < items.length && items[i].s <= when + slack; i++) {
        if (!best || items[i].e - items[i].s > best.e - best.s) best = items[i];
      }
      return best && { lane: lane, item: best };
    }

    function tell(x, y, clientX, clientY) {
      const next = hit(x, y);
      if ((next && next.item) !== (pick && pick.item)) {
        pick = next;
        draw();
      }
      const band = x >= left() && bands.filter(function (b) { return ns(x) >= b.s && ns(x) < b.e; })[0];
      const about = band && AP.t("ui.finding_n", { n: band.n }) + AP.t("ui.colon") + AP.w(band.title);
      if (pick) AP.tip([pick.item.name || pick.item.raw, q(pick.item.e - pick.item.s, "ns") + " · " + AP.format.offset(pick.item.s), pick.lane.name + (pick.item.raw ? " · " + pick.item.raw : ""), about], clientX, clientY);
      else AP.tip(about ? [about] : null, clientX, clientY);
    }

    function set(from, to) {
      let span = Math.max(SHORTEST_NS, Math.min(to - from, model.high - model.low));
      const middle = (from + to) / 2;
      from = Math.max(model.low, Math.min(middle - span / 2, model.high - span));
      view.from = from;
      view.to = from + span;
      requestAnimationFrame(draw);
    }
    function zoom(factor, centre) {
      const c = centre === undefined ? (view.from + view.to) / 2 : centre;
      set(c - (c - view.from) * factor, c + (view.to - c) * factor);
    }
    function move(share) {
      const by = (view.to - view.from) * share;
      set(view.from + by, view.to + by);
    }
    function all() { set(model.low, model.high); }

    canvas.addEventListener("pointerdown", function (e) {
      if (e.button) return;
      const x = e.offsetX;
      drag = { x: x, now: x, zoom: e.pointerType !== "touch" && !e.shiftKey, from: view.from, to: view.to };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", function (e) {
      if (!drag) return tell(e.offsetX, e.offsetY, e.clientX, e.clientY);
      drag.now = e.offsetX;
      if (!drag.zoom) {
        const by = (drag.x - drag.now) / (width - left()) * (drag.to - drag.from);
        set(drag.from + by, drag.to + by);
      } else draw();
    });
    canvas.addEventListener("pointerup", function (e) {
      const done = drag;
      drag = null;
      if (done && done.zoom && Math.abs(done.now - done.x) > 4) {
        set(ns(Math.max(left(), Math.min(done.x, done.now))), ns(Math.max(done.x, done.now)));
      } else {
        tell(e.offsetX, e.offsetY, e.clientX, e.clientY);
        draw();
      }
    });
    canvas.addEventListener("pointercancel", function () { drag = null; draw(); });
    canvas.addEventListener("pointerleave", function () {
      AP.tip(null);
      if (pick) { pick = null; draw(); }
    });
    canvas.addEventListener("dblclick", all);
    canvas.addEventListener("wheel", function (e) {
      // The wheel scrolls the page until the reader has clicked into the timeline.
      if (document.activeElement !== canvas && !e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) move(e.deltaX / 800);
      else zoom(Math.pow(1.0015, e.deltaY), ns(Math.max(left(), e.offsetX)));
    }, { passive: false });
    canvas.addEventListener("keydown", function (e) {
      const acts = {
        "+": function () { zoom(0.6); }, "=": function () { zoom(0.6); }, "-": function () { zoom(1 / 0.6); },
        ArrowUp: function () { zoom(0.6); }, ArrowDown: function () { zoom(1 / 0.6); },
        ArrowLeft: function () { move(-0.2); }, ArrowRight: function () { move(0.2); },
        "0": all, Home: all, Escape: function () { canvas.blur(); },
      };
      if (!acts[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      acts[e.key]();
    });

    function button(text, key, act) {
      return h("button", { type: "button", class: "quiet", title: AP.t(key), "aria-label": AP.t(key), on: { click: act } }, text);
    }
    const find = h("input", {
      type: "search", placeholder: AP.t("timeline.find"), "aria-label": AP.t("timeline.find"),
      on: {
        input: function (e) {
          const wanted = e.target.value.toLowerCase();
          found = wanted ? function (item) { return item.name.toLowerCase().indexOf(wanted) >= 0; } : null;
          let n = 0;
          if (found) model.lanes.forEach(function (l) { n += l.items.filter(found).length; });
          hits.textContent = found ? AP.t("timeline.hits", { count: n }) : "";
          draw();
        },
      },
    });
    current = {
      show: function (start, end) {
        const room = Math.max((end - start) * 0.25, (model.high - model.low) * (start === end ? 0.01 : 0));
        set(start - room, end + room);
        const near = model.lanes.map(function (l) {
          return l.items.filter(function (i) { return i.s === start; }).map(function (i) { return { lane: l, item: i }; })[0];
        }).filter(Boolean);
        pick = near[0] || null;
        requestAnimationFrame(draw);
      },
      redraw: draw,
    };
    const box = h("div", { class: "draw" }, canvas);
    new ResizeObserver(function (entries) {
      const next = Math.floor(entries[0].contentRect.width);
      if (next && next !== width) {
        width = next;
        canvas.style.width = "100%";
        requestAnimationFrame(draw);
      }
    }).observe(box);
    return h("figure", { class: "chart timeline", "data-chart": "timeline" },
      h("div", { class: "table-head screen" },
        h("div", { class: "tools" },
          button("+", "timeline.zoom_in", function () { zoom(0.6); }), button("−", "timeline.zoom_out", function () { zoom(1 / 0.6); }),
          button("←", "timeline.left", function () { move(-0.3); }), button("→", "timeline.right", function () { move(0.3); }),
          h("button", { type: "button", class: "quiet", on: { click: all } }, AP.t("timeline.reset"))),
        h("div", { class: "tools" }, hits, find,
          h("button", {
            type: "button", class: "quiet",
            on: { click: function () { AP.offer("timeline.json", perfetto(model, view.from, view.to), "application/json"); } },
          }, AP.t("timeline.save")))),
      box,
      h("div", { class: "table-foot" }, said, h("span", { class: "count" }, AP.t("timeline.lanes", { lanes: model.lanes.length, events: AP.format.significant(model.events, 12) }))),
      h("div", { class: "keys" }, ORDER.filter(function (k) { return model.lanes.some(function (l) { return l.weight[k]; }); }).map(function (k) {
        return h("span", { class: "key" }, h("span", { class: "swatch k-" + k + " s0", "aria-hidden": "true" }), AP.t("kind." + k));
      }), bands.length ? h("span", { class: "key" }, h("span", { class: "swatch band", "aria-hidden": "true" }), AP.t("timeline.bands")) : null),
      h("p", { class: "note screen" }, AP.t("timeline.help")));
  };

  AP.redrawTimeline = function () {
    if (current) current.redraw();
  };
  AP.forgetTimeline = function () {
    current = null;
  };
})();
