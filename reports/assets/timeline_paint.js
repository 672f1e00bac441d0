// How the timeline paints rows of intervals, counters and the time axis: the work is bounded by pixels, not by intervals.
(function () {
  const ROW = 16; // px of one row of intervals
  const AXIS = 20; // px of the time axis
  const AREA = 30; // px of a counter
  const BOX = 1.5; // px from which an interval is drawn by itself; shorter ones share columns of a pixel
  const FILL = { host: "host", sync: "host-3", computing: "computing", transfer: "transfer", wait: "wait", copy: "copy", idle: "idle" };
  const INK = { sync: "on-pale" };
  const TYPES = AP.lanes.TYPES;

  /** Functions that paint with `pen`; `v` tells the model, the window and the places: at(ns) in px, ns(px), left(), width() ... */
  AP.timelinePaint = function (pen, v) {
    const model = v.model, view = v.view, left = v.left, at = v.at, ns = v.ns;

    /** What a task is called on its box: without what all kernels of a library begin with. */
    function brief(name) {
      return name.replace(/^void /, "").replace(/^(?:\w+::|\(anonymous namespace\)::)+(?=\w)/, "");
    }

    function colours() {
      const style = getComputedStyle(document.documentElement);
      const get = function (n) { return style.getPropertyValue(n).trim(); };
      const made = { text: get("--text"), muted: get("--muted"), line: get("--line"), page: get("--page"), accent: get("--accent"), paper: get("--wait-paper") };
      TYPES.forEach(function (t) {
        made[t] = get("--k-" + FILL[t]);
        made["on-" + t] = get("--" + (INK[t] || "on-" + t));
      });
      ["critical", "high", "medium", "low"].forEach(function (k) { made["sev-" + k] = get("--sev-" + k); });
      made.hatch = hatch(made.wait, made.paper);
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

    /** A text cut to its room: at its end, or in the middle where what tells it from others is at the end. */
    function fit(text, room, tail) {
      const full = pen.measureText(text).width;
      if (full <= room) return text;
      const end = tail ? text.slice(-tail) : "";
      let n = Math.floor(text.length * room / full) - 1 - end.length;
      while (n > 1 && pen.measureText(text.slice(0, n) + "…" + end).width > room) n--;
      return n < 1 ? "" : text.slice(0, n) + "…" + end;
    }

    function axis(c) {
      const raw = (view.to - view.from) / Math.max(3, (v.width() - left()) / 110);
      const power = Math.pow(10, Math.floor(Math.log10(raw)));
      const step = [1, 2, 5, 10].map(function (m) { return m * power; }).find(function (x) { return x >= raw; });
      const scale = AP.format.scaleOf(Math.max(Math.abs(view.from), Math.abs(view.to)), "ns");
      for (let i = Math.ceil(view.from / step); i * step <= view.to; i++) {
        const t = i * step, x = at(t);
        pen.fillStyle = c.line;
        pen.fillRect(x, AXIS - 5, 1, v.height() - AXIS + 5);
        pen.fillStyle = c.muted;
        const places = Math.max(0, Math.ceil(-Math.log10(step / scale[0]) - 1e-9));
        const text = (t / scale[0]).toFixed(places) + " " + scale[1];
        if (x + 3 + pen.measureText(text).width <= v.width()) pen.fillText(text, x + 3, 9);
      }
    }

    /** One row. What is long gets a box; shorter intervals share columns of a pixel, filled as high as they are busy. */
    function paint(row, y, tall, c, tally) {
      const n = row.s.length, x_ = left(), right = v.width(), ppn = (right - x_) / (view.to - view.from), zero = x_ - view.from * ppn;
      const first = AP.lanes.after(row.e, view.from, 0, n);
      const model_ = row.of || model, shortest = BOX / ppn;
      let i = first, pend = null, drawn = -Infinity;
      function flush() {
        if (!pend) return;
        column(pend, y, tall, c);
        pend = null;
      }
      while (i < n && row.s[i] < view.to) {
        const x0 = zero + row.s[i] * ppn, x1 = zero + model_.e[row.ids[i]] * ppn;
        if (x1 < x_ && x1 - x0 >= BOX) {
          i++;
          continue;
        }
        if (x1 - x0 >= BOX) {
          flush();
          box(row, i, Math.max(x_, x0), Math.min(right, x1), y, tall, c, model_, x0 < drawn - 1, i + 1 < n ? zero + row.s[i + 1] * ppn : right);
          drawn = Math.max(drawn, x1);
          i++;
          continue;
        }
        const px = Math.max(x_, Math.floor(x0)), until = (px + 1 - zero) / ppn;
        // Up to the next pixel, or to an interval that gets a box of its own.
        let j = i + 1;
        while (j < n && row.s[j] < until && model_.e[row.ids[j]] - row.s[j] < shortest) j++;
        let best = row.type[i], most = -1, all = 0;
        for (const type in row.sums) {
          const sum = row.sums[type][j] - row.sums[type][i];
          all += sum;
          if (sum > most) {
            most = sum;
            best = Number(type);
          }
        }
        const level = Math.max(1, Math.ceil(Math.min(1, all * ppn) * 8));
        const hit = !v.found() || !row.hits || row.hits[j] > row.hits[i];
        if (pend && pend.x1 === px && pend.type === best && pend.level === level && pend.hit === hit) pend.x1 = px + 1;
        else {
          flush();
          pend = { x0: px, x1: px + 1, type: best, level: level, hit: hit };
        }
        i = j;
      }
      flush();
      if (tally) {
        tally.all += row.count[i] - row.count[first];
        tally.exact += row.exact[i] - row.exact[first];
      }
    }

    function column(p, y, tall, c) {
      const type = TYPES[p.type], full = p.level / 8 * tall;
      pen.fillStyle = type === "wait" ? c.hatch : c[type];
      pen.globalAlpha = p.hit ? 0.3 : 0.1;
      if (p.level < 8) pen.fillRect(p.x0, y, p.x1 - p.x0, tall - full);
      pen.globalAlpha = p.hit ? 1 : 0.18;
      pen.fillRect(p.x0, y + tall - full, p.x1 - p.x0, full);
      pen.globalAlpha = 1;
    }

    /** One interval; `inner` where it lies in another one of its row, `until` is where the next one begins. */
    function box(row, i, x0, x1, y, tall, c, model_, inner, until) {
      const id = row.ids[i], type = TYPES[row.type[i]], w = Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 0.5 : 0));
      const isRun = model_ === model && model.count[id] > 1;
      const share = isRun || model_ !== model ? Math.min(1, model_.busy[id] / Math.max(1, model_.e[id] - model_.s[id])) : 1;
      const full = Math.max(2, share * tall), isHit = !v.found() || !row.hits || row.hits[i + 1] > row.hits[i];
      if (inner) {
        pen.fillStyle = c.page;
        pen.fillRect(x0 - 1, y, w + 1.5, tall);
      }
      pen.fillStyle = type === "wait" ? c.hatch : c[type];
      if (share < 0.999) {
        pen.globalAlpha = isHit ? 0.3 : 0.1;
        pen.fillRect(x0, y, w, tall - full);
      }
      pen.globalAlpha = isHit ? 1 : 0.18;
      pen.fillRect(x0, y + tall - full, w, full);
      if (type === "wait" && w > 3) {
        pen.strokeStyle = c.wait;
        pen.lineWidth = 1;
        pen.strokeRect(x0 + 0.5, y + 0.5, w - 1, tall - 1);
      }
      const room = Math.min(w, Math.max(0, until - x0));
      if (room > 34 && model_ === model) {
        const name = type === "computing" ? brief(model.name(id)) : model.name(id);
        const text = fit(isRun ? AP.t("timeline.run", { count: AP.format.significant(model.count[id], 12), name: name }) : name, room - 8);
        if (text) {
          if (type === "wait" || isRun) {
            pen.globalAlpha = 0.9;
            pen.fillStyle = c.page;
            pen.fillRect(x0 + 2, y + 1, pen.measureText(text).width + 4, Math.min(tall, ROW - 2) - 2);
            pen.globalAlpha = 1;
            pen.fillStyle = c.text;
          } else pen.fillStyle = isHit ? c["on-" + type] : c.text;
          pen.fillText(text, x0 + 4, y + ROW / 2 - 1);
        }
      }
      pen.globalAlpha = 1;
    }

    /** A counter as an area in steps, at most one point per pixel: the highest value in it. */
    function area(counter, c) {
      const t = counter.t, n = t.length, base = counter.y + AREA, span = counter.top - counter.low || 1;
      function up(v) { return base - 1 - (v - counter.low) / span * (AREA - 4); }
      let i = Math.max(0, AP.lanes.after(t, view.from, 0, n) - 1);
      pen.beginPath();
      let x = Math.max(left(), at(t[i])), last = counter.v[i];
      if (x > v.width()) return;
      pen.moveTo(x, base);
      pen.lineTo(x, up(last));
      for (i++; i < n && t[i] <= view.to;) {
        const px = Math.max(left(), at(t[i]));
        const j = Math.max(i + 1, AP.lanes.from(t, ns(Math.floor(px) + 1), i + 1, n));
        let top = -Infinity;
        for (let k = i; k < j; k++) top = Math.max(top, counter.v[k]);
        pen.lineTo(px, up(last));
        pen.lineTo(px, up(top));
        last = counter.v[j - 1];
        i = j;
        x = px;
      }
      const until = i < n ? v.width() : Math.min(v.width(), Math.max(x, at(model.high)));
      pen.lineTo(until, up(last));
      pen.lineTo(until, base);
      pen.closePath();
      pen.globalAlpha = 0.25;
      pen.fillStyle = c.muted;
      pen.fill();
      pen.globalAlpha = 1;
      pen.strokeStyle = c.muted;
      pen.lineWidth = 1;
      pen.stroke();
    }

    return { colours: colours, fit: fit, axis: axis, paint: paint, area: area };
  };

  Object.assign(AP.timelinePaint, { ROW: ROW, AXIS: AXIS, AREA: AREA });
})();
