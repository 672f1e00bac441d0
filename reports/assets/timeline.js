// Timeline of one step on a canvas: zoom by drag, wheel, pinch and keyboard, search, statistics, findings as bands.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const ROW = AP.timelinePaint.ROW, AXIS = AP.timelinePaint.AXIS, AREA = AP.timelinePaint.AREA;
  const GAP = 7; // px between lanes
  const TITLE = 20; // px of the title of a group
  const MOST_SAID = 8; // findings that are said below the timeline
  const STRIP = 16; // px of the marks of findings below it
  const SHORTEST_NS = 50; // narrowest window
  const MANY_PLANES = 6; // more of them start closed
  const TYPES = AP.lanes.TYPES;

  AP.timelineOf = function (rank) {
    return AP.data.tables.find(function (t) { return t.name === "timeline" && (t.rank === rank || t.scope === "job"); }) || null;
  };

  let current = null;
  function reach(rank) {
    if (rank !== AP.state.rank && AP.data.ranks.indexOf(rank) >= 0) {
      AP.state.rank = rank;
      AP.save();
      AP.render();
    }
    document.getElementById("section-timeline").scrollIntoView();
  }
  /** Show a window of a rank's timeline; a point gets a window around it. */
  AP.goTimeline = function (rank, start, end) {
    reach(rank);
    if (current) current.show(start, end);
  };
  /** Follow a link `#timeline=rank,start,end` (ns from the start of the step); false when it is none. */
  AP.followTimeline = function (id) {
    const found = /^timeline=(\d+|-),(-?\d+),(-?\d+)$/.exec(id);
    if (!found || !document.getElementById("section-timeline")) return false;
    const rank = found[1] === "-" ? null : Number(found[1]);
    if (!AP.timelineOf(rank)) return false;
    reach(rank);
    if (current) current.window(Number(found[2]), Number(found[3]));
    return true;
  };

  AP.timelineView = function (table) {
    const started = performance.now();
    const model = AP.lanes.build(table, AP.table("timeline-window"), AP.table("counter-timeline"));
    if (!model) return null;
    const bands = AP.timelineBands.of(table.rank);
    const HEAD = AXIS + (bands.length ? STRIP : 4);
    const memory = AP.state.timeline = AP.state.timeline || {};
    const kept = memory["at" + table.rank];
    const view = kept && kept[0] < kept[1] ? { from: Math.max(model.low, kept[0]), to: Math.min(model.high, kept[1]) } : { from: model.low, to: model.high };
    if (!(view.to > view.from)) Object.assign(view, { from: model.low, to: model.high });
    const closed = memory.closed = memory.closed || {};
    let width = 0, height = 0, hover = null, pinned = null, chosen = null, groups = [], ink = null, waiting = false;
    const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": AP.t("timeline.canvas") });
    const pen = canvas.getContext("2d");
    const brush = AP.timelinePaint(pen, {
      model: model, view: view, left: left, at: at, ns: ns,
      width: function () { return width; }, height: function () { return height; }, found: function () { return searched.found(); },
    });
    const over = AP.timelineMarks(pen, {
      model: model, left: left, at: at, head: HEAD, closed: closed,
      width: function () { return width; }, height: function () { return height; },
    });
    const said = h("output", { class: "count" });
    const detail = h("span", { class: "count" });
    const panel = h("div", { class: "timeline-panel", "aria-live": "polite" });
    const marks = h("ul", { class: "timeline-bands" });
    const titles = h("div", { class: "timeline-groups" });

    function left() { return width < 560 ? 92 : width < 900 ? 150 : 196; }
    function at(ns) { return left() + (ns - view.from) / (view.to - view.from) * (width - left()); }
    function ns(x) { return view.from + (x - left()) / (width - left()) * (view.to - view.from); }

    // ---- layout -------------------------------------------------------------------------------------------------------

    /** Places of groups and lanes; a closed group is one row. */
    function layout() {
      groups = AP.lanes.GROUPS.map(function (key) {
        return { key: key, lanes: model.lanes.filter(function (l) { return l.group === key && !l.hidden; }), counters: key === "counters" ? model.counters : [] };
      }).filter(function (g) { return g.lanes.length || g.counters.length; });
      let y = HEAD;
      groups.forEach(function (g) {
        if (closed[g.key] === undefined && g.key === "planes") closed[g.key] = g.lanes.length > MANY_PLANES;
        g.y = y;
        y += TITLE;
        if (closed[g.key] && g.lanes.length) {
          g.row = g.row || AP.lanes.summary(model, g.lanes);
          y += GAP - 3;
        } else if (!closed[g.key]) {
          g.lanes.forEach(function (l) {
            l.y = y;
            l.height = l.rows.length * ROW;
            y += l.height + GAP;
          });
          g.counters.forEach(function (c) {
            c.y = y;
            y += AREA + GAP;
          });
        }
      });
      height = y;
      titles.replaceChildren.apply(titles, groups.map(function (g) {
        const button = h("button", {
          type: "button", class: "timeline-group", "aria-expanded": closed[g.key] ? "false" : "true", "data-group": g.key, style: { top: g.y + "px" },
          on: {
            click: function () {
              closed[g.key] = !closed[g.key];
              AP.save();
              layout();
              draw();
              titles.querySelector("[data-group='" + g.key + "']").focus({ preventScroll: true });
            },
          },
        }, h("span", { "aria-hidden": "true" }, closed[g.key] ? "▸ " : "▾ "), AP.t("timeline.group_" + g.key), closed[g.key] ? " (" + (g.lanes.length + g.counters.length) + ")" : "");
        return button;
      }));
    }

    function openLanes() {
      return [].concat.apply([], groups.map(function (g) { return closed[g.key] ? [] : g.lanes; }));
    }

    // ---- drawing ------------------------------------------------------------------------------------------------------

    function later() {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(function () {
        waiting = false;
        draw();
      });
    }

    function draw() {
      if (!width) return;
      const began = performance.now();
      if (!height) layout();
      const ratio = window.devicePixelRatio || 1;
      const w = Math.round(width * ratio), tall = Math.round(height * ratio);
      if (canvas.width !== w || canvas.height !== tall) {
        canvas.width = w;
        canvas.height = tall;
        canvas.style.height = height + "px";
      }
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      const c = ink = ink || brush.colours();
      pen.clearRect(0, 0, width, height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      brush.axis(c);
      if (model.exact) {
        pen.fillStyle = c.accent;
        model.exact.parts.forEach(function (p) {
          const x0 = Math.max(left(), at(p[0])), x1 = Math.min(width, at(p[1]));
          if (x1 - x0 > 0.5) pen.fillRect(x0, AXIS - 3, x1 - x0, 2);
        });
      }
      bands.forEach(function (b) {
        const x0 = Math.max(left(), at(b.s)), x1 = Math.min(width, Math.max(at(b.e), at(b.s) + 2));
        if (x1 <= left() || x0 >= width) return;
        pen.globalAlpha = 0.1;
        pen.fillStyle = c["sev-" + b.severity];
        pen.fillRect(x0, HEAD, x1 - x0, height - HEAD);
        pen.globalAlpha = 1;
        pen.fillRect(x0, HEAD - 3, x1 - x0, 3);
      });
      const tally = { exact: 0, all: 0, runs: 0 };
      groups.forEach(function (g) {
        pen.fillStyle = c.line;
        pen.fillRect(0, g.y, width, 1);
        if (closed[g.key]) {
          if (g.row) brush.paint(g.row, g.y + 3, ROW - 2, c, null);
          return;
        }
        g.lanes.forEach(function (l) {
          l.rows.forEach(function (row, d) { brush.paint(row, l.y + d * ROW, ROW - 2, c, tally); });
          if (l.waits) l.waits.rows.forEach(function (row) { brush.paint(row, l.y, l.height - 2, c, null); });
        });
        g.counters.forEach(function (counter) { brush.area(counter, c); });
      });
      pen.fillStyle = c.page;
      pen.fillRect(0, 0, left() - 4, height);
      groups.forEach(function (g) {
        pen.fillStyle = c.line;
        pen.fillRect(0, g.y, left() - 4, 1);
        pen.fillStyle = c.muted;
        if (closed[g.key]) return;
        g.lanes.forEach(function (l) { pen.fillText(brush.fit(l.title, left() - 16, 5), 8, l.y + ROW / 2); });
        g.counters.forEach(function (counter) {
          pen.fillText(brush.fit(counter.name, left() - 16), 8, counter.y + 7);
          pen.fillText(brush.fit("≤ " + q(counter.top, counter.unit), left() - 16), 8, counter.y + 21);
        });
      });
      over.bands(c, bands);
      over.selection(c, hover, pinned, input.drag(), chosen);
      over.arrows(c, pinned);
      const share = tally.all ? tally.exact / tally.all : 1;
      said.textContent = AP.t("timeline.window", { from: AP.format.offset(view.from), to: AP.format.offset(view.to) }) + " · " + q(Math.round(view.to - view.from), "ns");
      detail.textContent = !model.runs ? AP.t("timeline.all_exact") : tally.exact === tally.all ? AP.t("timeline.exact_here")
        : AP.t("timeline.merged_here", { exact: AP.format.significant(tally.exact, 12), all: AP.format.significant(tally.all, 12), share: q(share, "ratio") });
      tellBands();
      canvas.drawMs = performance.now() - began;
    }

    // ---- what lies under the pointer ----------------------------------------------------------------------------------

    function laneAt(y) {
      return openLanes().find(function (l) { return y >= l.y - 2 && y < l.y + l.height + 2; }) || null;
    }

    /** The longest of a row near an instant; where intervals lie in others, the innermost that holds it. */
    function longest(row, when, slack) {
      let best = -1, inner = -1;
      for (let i = AP.lanes.after(row.e, when - slack, 0, row.s.length); i < row.s.length && row.s[i] <= when + slack; i++) {
        const id = row.ids[i];
        if (model.e[id] < when - slack) continue;
        if (model.s[id] <= when && model.e[id] > when && model.e[id] - model.s[id] > slack) inner = id;
        if (best < 0 || model.e[id] - model.s[id] > model.e[best] - model.s[best]) best = id;
      }
      return inner >= 0 ? inner : best;
    }

    function hit(x, y) {
      if (x < left()) return null;
      const lane = laneAt(y);
      if (!lane) return null;
      const slack = (view.to - view.from) / (width - left());
      const wait = lane.waits ? longest(lane.waits.rows[0], ns(x), slack / 2) : -1;
      if (wait >= 0) return { lane: lane.waits, id: wait };
      const row = lane.rows[Math.min(lane.rows.length - 1, Math.max(0, Math.floor((y - lane.y) / ROW)))];
      const id = longest(row, ns(x), slack);
      return id < 0 ? null : { lane: lane, id: id };
    }

    function bandsAt(x) { return x < left() ? [] : bands.filter(function (b) { return ns(x) >= b.s && ns(x) < b.e; }); }

    function counterAt(x, y) {
      const group = groups.find(function (g) { return g.key === "counters"; });
      if (!group || closed.counters || x < left()) return null;
      const counter = group.counters.find(function (c) { return y >= c.y && y < c.y + AREA; });
      const i = counter ? AP.lanes.after(counter.t, ns(x), 0, counter.t.length) - 1 : -1;
      return i < 0 ? null : [counter.name, q(counter.v[i], counter.unit), AP.format.offset(counter.t[i])];
    }

    function tell(x, y, clientX, clientY) {
      const next = hit(x, y);
      if ((next && next.id) !== (hover && hover.id)) {
        hover = next;
        later();
      }
      const about = bandsAt(x).slice(0, 2).map(function (b) { return AP.timelineBands.MARK[b.severity] + " " + AP.t("ui.finding_n", { n: b.n }) + AP.t("ui.colon") + AP.w(b.title); });
      const mark = y >= AXIS && y < HEAD && bands.find(function (b) { return b.x && x >= b.x[0] && x <= b.x[1]; });
      canvas.style.cursor = mark ? "pointer" : y < AXIS ? "grab" : "crosshair";
      const parts = (hover ? AP.timelineSays.lines(model, hover) : counterAt(x, y) || []).concat(about);
      AP.tip(parts.length ? parts : null, clientX, clientY);
    }

    // ---- the window ---------------------------------------------------------------------------------------------------

    let remembered = 0;
    function set(start, end) {
      const span = Math.max(SHORTEST_NS, Math.min(end - start, model.high - model.low));
      const middle = (start + end) / 2;
      start = Math.max(model.low, Math.min(middle - span / 2, model.high - span));
      view.from = start;
      view.to = start + span;
      clearTimeout(remembered);
      remembered = setTimeout(function () {
        memory["at" + table.rank] = view.from === model.low && view.to === model.high ? null : [view.from, view.to];
        AP.save();
      }, 200);
      later();
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

    /** Bring an interval into the window, without changing the zoom where it can be seen. */
    function reveal(id) {
      const length = model.e[id] - model.s[id], span = view.to - view.from, px = length / span * (width - left());
      if (px > (width - left()) * 0.9 || px < 3) set(model.s[id] - Math.max(length, 100) * 5, model.e[id] + Math.max(length, 100) * 5);
      else if (model.s[id] < view.from || model.e[id] > view.to) set((model.s[id] + model.e[id] - span) / 2, (model.s[id] + model.e[id] + span) / 2);
    }

    // ---- pinned interval, statistics ----------------------------------------------------------------------------------

    function pin(p) {
      pinned = p;
      chosen = null;
      if (p) {
        p.links = AP.lanes.links(model, p);
        if (closed[p.lane.group]) {
          closed[p.lane.group] = false;
          layout();
        }
      }
      tellPinned();
      later();
    }

    function closing() { return h("button", { type: "button", class: "quiet", on: { click: function () { pin(null); canvas.focus({ preventScroll: true }); } } }, AP.t("timeline.close")); }

    function tellPinned() {
      if (!pinned) return panel.replaceChildren();
      const id = pinned.id, about = bands.filter(function (b) { return b.s < model.e[id] && b.e > model.s[id]; });
      const said = AP.timelineSays.lines(model, pinned);
      panel.replaceChildren.apply(panel, [
        h("div", { class: "timeline-pin" },
          h("strong", null, said[0]), h("span", null, said.slice(1).join(" · ")),
          pinned.links.length ? h("span", null, isNaN(model.launch[id]) ? AP.t("timeline.launches", { count: pinned.links.length + (pinned.links.length === AP.lanes.MOST_ARROWS ? "+" : "") })
            : AP.t("timeline.launched_by", { name: model.name(pinned.links[0].host.id) })) : null),
        h("div", { class: "tools screen" },
          h("button", { type: "button", class: "quiet", on: { click: function () { set(model.s[id] - (model.e[id] - model.s[id]) * 0.3, model.e[id] + (model.e[id] - model.s[id]) * 0.3); } } }, AP.t("timeline.zoom_to")),
          !isNaN(model.launch[id]) ? h("button", { type: "button", class: "quiet", on: { click: function () { const room = (model.e[id] - model.launch[id]) * 0.15; set(model.launch[id] - room, model.e[id] + room); } } }, AP.t("timeline.zoom_launch")) : null,
          closing()),
        about.length ? h("ul", { class: "timeline-bands" }, AP.timelineBands.distinct(about).map(AP.timelineBands.chip)) : null,
      ].filter(Boolean));
    }

    let bandsSaid = null;
    /** The findings of the window below it, said again only when they change. */
    function tellBands() {
      const seen = AP.timelineBands.distinct(bands.filter(function (b) { return b.s < view.to && b.e > view.from; }));
      const key = seen.map(function (b) { return b.n; }).join();
      if (key === bandsSaid) return;
      bandsSaid = key;
      const said = seen.length > MOST_SAID + 1 ? MOST_SAID : seen.length;
      const more = said < seen.length ? h("li", null, h("a", { href: "#findings" }, AP.t("ui.more_findings", { count: seen.length - said }))) : [];
      marks.replaceChildren.apply(marks, seen.slice(0, said).map(AP.timelineBands.chip).concat(more));
    }

    function choose(start, end, lanes, top, bottom) {
      start = Math.max(model.low, Math.round(start));
      end = Math.min(model.high, Math.round(end));
      if (!(end > start) || !lanes.length) return;
      pinned = null;
      chosen = AP.lanes.statistics(model, lanes, start, end);
      chosen.top = top;
      chosen.bottom = bottom;
      chosen.lanes = lanes.length;
      panel.replaceChildren.apply(panel, AP.timelineSays.statistics(chosen, [
        h("button", { type: "button", class: "quiet", on: { click: function () { set(chosen.start, chosen.end); } } }, AP.t("timeline.zoom_to")), closing(),
      ]).filter(Boolean));
      later();
    }

    /** The lanes between two heights, from one place to another. */
    function select(x0, y0, x1, y1) {
      const lanes = openLanes().filter(function (l) { return l.y < y1 + 1 && l.y + l.height > y0 - 1; });
      const last = lanes[lanes.length - 1];
      if (lanes.length) choose(ns(x0), ns(x1), lanes, function () { return lanes[0].y - 2; }, function () { return last.y + last.height; });
    }

    function chooseWindow() {
      choose(view.from, view.to, openLanes(), function () { return HEAD; }, function () { return height; });
    }

    /** The interval before or after the pinned one on its lane, or the first of the window. */
    function beside(by) {
      if (!pinned) {
        const lane = openLanes().find(function (l) { return l.group === "device"; }) || openLanes()[0];
        const id = lane && lane.ids.find(function (i) { return model.s[i] >= view.from; });
        if (id === undefined) return;
        pin({ lane: lane, id: id });
        return reveal(id);
      }
      const ids = pinned.lane.ids, id = ids[ids.indexOf(pinned.id) + by];
      if (id === undefined) return;
      pin({ lane: pinned.lane, id: id });
      reveal(id);
    }

    // ---- input --------------------------------------------------------------------------------------------------------

    function click(x, y, e) {
      const mark = y >= AXIS && y < HEAD && bands.find(function (b) { return b.x && x >= b.x[0] && x <= b.x[1]; });
      if (mark) {
        location.hash = "finding-" + mark.n;
        return;
      }
      const p = hit(x, y);
      pin(p && pinned && p.id === pinned.id ? null : p);
      if (e.pointerType !== "touch") tell(x, y, e.clientX, e.clientY);
    }

    const ACTS = {
      "+": function () { zoom(0.6); }, "=": function () { zoom(0.6); }, "-": function () { zoom(1 / 0.6); },
      ArrowUp: function () { zoom(0.6); }, ArrowDown: function () { zoom(1 / 0.6); }, w: function () { zoom(0.6); },
      ArrowLeft: function () { move(-0.2); }, ArrowRight: function () { move(0.2); }, a: function () { move(-0.2); }, d: function () { move(0.2); },
      PageUp: function () { move(-0.9); }, PageDown: function () { move(0.9); }, "0": all, Home: all,
      s: chooseWindow, ",": function () { beside(-1); }, ".": function () { beside(1); }, n: function () { searched.step(1); }, N: function () { searched.step(-1); },
      "/": function () { searched.focus(); },
      f: function () { if (pinned) set(model.s[pinned.id] - 3 * (model.e[pinned.id] - model.s[pinned.id]), model.e[pinned.id] + 3 * (model.e[pinned.id] - model.s[pinned.id])); },
      Escape: function () { if (pinned || chosen) pin(null); else canvas.blur(); },
    };
    const input = AP.timelineInput(canvas, {
      view: view, left: left, width: function () { return width; }, ns: ns, acts: ACTS,
      set: set, zoom: zoom, move: move, all: all, later: later, tell: tell, click: click, select: select,
      leave: function () {
        hover = null;
        later();
      },
    });

    // ---- around the canvas --------------------------------------------------------------------------------------------

    function button(text, key, act) {
      return h("button", { type: "button", class: "quiet", title: AP.t(key), "aria-label": AP.t(key), on: { click: act } }, text);
    }
    const searched = AP.timelineSearch(model, { view: view, button: button, later: later, pin: pin, reveal: reveal });
    current = {
      model: model, view: view, draw: draw, window: set, pin: pin, left: left, chosen: function () { return chosen; },
      statistics: function (start, end) { return AP.lanes.statistics(model, openLanes(), start, end); },
      place: function (id) {
        const lane = model.lanes[model.lane[id]];
        return { x: at((model.s[id] + model.e[id]) / 2), y: lane.y + model.depth[id] * ROW + ROW / 2 };
      },
      show: function (start, end) {
        const room = Math.max((end - start) * 0.25, (model.high - model.low) * (start === end ? 0.01 : 0));
        set(start - room, end + room);
        for (const l of model.lanes) {
          const i = AP.lanes.from(l.rows[0].s, start, 0, l.rows[0].s.length);
          if (i < l.rows[0].s.length && l.rows[0].s[i] === start && !l.hidden) return pin({ lane: l, id: l.rows[0].ids[i] });
        }
      },
      redraw: function () {
        ink = null;
        draw();
      },
    };
    const box_ = h("div", { class: "draw timeline-box" }, canvas, titles);
    new ResizeObserver(function (entries) {
      const wide = Math.floor(entries[0].contentRect.width);
      if (wide && wide !== width) {
        width = wide;
        later();
      }
    }).observe(box_);
    const rows = h("div", null);
    const figure = h("figure", { class: "chart timeline", "data-chart": "timeline" },
      h("div", { class: "table-head screen" },
        h("div", { class: "tools" },
          button("+", "timeline.zoom_in", function () { zoom(0.6); }), button("−", "timeline.zoom_out", function () { zoom(1 / 0.6); }),
          button("←", "timeline.left", function () { move(-0.3); }), button("→", "timeline.right", function () { move(0.3); }),
          h("button", { type: "button", class: "quiet", on: { click: all } }, AP.t("timeline.reset")),
          h("button", { type: "button", class: "quiet", title: AP.t("timeline.statistics_hint"), on: { click: chooseWindow } }, AP.t("timeline.statistics")),
          h("button", {
            type: "button", class: "quiet", title: AP.t("timeline.link_hint"),
            on: {
              click: function (e) {
                const place = "#timeline=" + (table.rank === null ? "-" : table.rank) + "," + Math.round(view.from) + "," + Math.round(view.to);
                AP.copy(location.href.split("#")[0] + place, e.currentTarget);
              },
            },
          }, AP.t("timeline.link")),
          h("button", {
            type: "button", class: "quiet", title: AP.t("timeline.save_hint"), "data-value": "save",
            on: { click: function () { AP.offer("timeline" + (table.rank === null ? "" : "-rank" + table.rank) + ".json", AP.lanes.trace(model, view.from, view.to), "application/json"); } },
          }, AP.t("timeline.save"))),
        h("div", { class: "tools" }, searched.parts)),
      box_,
      h("div", { class: "table-foot" }, said, detail, model.exact && model.exact.longest ? h("button", { type: "button", class: "link count screen", "data-value": "exact", on: { click: function () { set(model.exact.longest[0], model.exact.longest[1]); } } }, AP.t("timeline.to_exact", { time: q(model.exact.longest[1] - model.exact.longest[0], "ns") })) : null, h("span", { class: "count" }, AP.t("timeline.lanes", { lanes: model.lanes.filter(function (l) { return !l.hidden; }).length, events: AP.format.significant(model.total, 12) }))),
      panel,
      h("div", { class: "keys" }, TYPES.filter(function (t, i) { return model.lanes.some(function (l) { return l.weight[i]; }); }).map(function (t) {
        return h("span", { class: "key" }, h("span", { class: "swatch k-" + (t === "sync" ? "host s3" : t + " s0"), "aria-hidden": "true" }), AP.t(t === "sync" ? "timeline.sync" : "kind." + t));
      }), h("span", { class: "key" }, h("span", { class: "swatch partly", "aria-hidden": "true" }), AP.t("timeline.partly")),
      model.exact ? h("span", { class: "key" }, h("span", { class: "swatch exact", "aria-hidden": "true" }), AP.t("timeline.exact")) : null,
      bands.length ? h("span", { class: "key" }, h("span", { class: "swatch band", "aria-hidden": "true" }), AP.t("timeline.bands")) : null),
      bands.length ? marks : null,
      table.note ? h("p", { class: "note" }, AP.w(table.note)) : null,
      h("p", { class: "note screen" }, AP.t("timeline.help")),
      h("details", { class: "frames screen", on: { toggle: function (e) { if (e.target.open && !rows.firstChild) rows.append(AP.tableView(AP.timelineSays.longest(model), "timeline-longest/" + table.rank, {})); } } },
        h("summary", null, AP.t("timeline.longest")), rows));
    canvas.builtMs = performance.now() - started;
    return figure;
  };

  AP.timelineNow = function () { return current; };
  AP.redrawTimeline = function () {
    if (current) current.redraw();
  };
  AP.forgetTimeline = function () {
    current = null;
  };
})();
