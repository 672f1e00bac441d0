// What lies over the intervals of the timeline: findings as bands, the chosen part, what is pinned, who launched what.
(function () {
  const h = AP.h;
  const ROW = AP.timelinePaint.ROW, AXIS = AP.timelinePaint.AXIS;
  const MARK = { critical: "▲▲", high: "▲", medium: "◆", low: "●" };

  /** Windows of the findings on a rank in order of their start: {s, e, n: number of the finding, severity, title}. */
  function bandsOf(rank) {
    const bands = [];
    AP.data.findings.forEach(function (finding, i) {
      finding.bands.forEach(function (band) {
        if (band.rank === rank) bands.push({ s: band.start, e: band.end, n: i + 1, severity: finding.severity, title: finding.title });
      });
    });
    return bands.sort(function (a, b) { return a.s - b.s; });
  }

  /** One band of each finding, in order of their numbers. */
  function distinct(bands) {
    return bands.filter(function (b, i) { return bands.findIndex(function (o) { return o.n === b.n; }) === i; }).sort(function (a, b) { return a.n - b.n; });
  }

  function chip(b) {
    return h("li", null, h("a", { href: "#finding-" + b.n, class: "sev-" + b.severity }, h("span", { class: "n" }, MARK[b.severity] + " " + b.n), h("span", null, AP.w(b.title))));
  }

  AP.timelineBands = { MARK: MARK, of: bandsOf, distinct: distinct, chip: chip };

  /** Functions that paint with `pen`; `v` tells the model, the places and which groups are closed. */
  AP.timelineMarks = function (pen, v) {
    const model = v.model, left = v.left, at = v.at, closed = v.closed;

    /** Marks of severity and numbers of the findings above their bands, as far as there is room. */
    function bands(c, list) {
      // The first findings first, wherever they are.
      const taken = [];
      pen.font = "600 11px system-ui, sans-serif";
      list.slice().sort(function (x, y) { return x.n - y.n || x.s - y.s; }).forEach(function (b) {
        b.x = null;
        const x0 = Math.max(left(), at(b.s)), x1 = at(b.e);
        if (x1 < left() || x0 > v.width() - 24) return;
        const text = MARK[b.severity] + " " + b.n, until = x0 + pen.measureText(text).width + 4;
        if (taken.some(function (t) { return x0 < t[1] + 4 && until > t[0] - 4; })) return;
        pen.fillStyle = c["sev-" + b.severity];
        pen.fillText(text, x0 + 1, AXIS + 6);
        b.x = [x0, until];
        taken.push(b.x);
      });
      pen.font = "11px system-ui, sans-serif";
    }

    /** The part that is dragged or chosen, and frames around the interval under the pointer and the pinned one. */
    function selection(c, hover, pinned, drag, chosen) {
      [hover, pinned].forEach(function (p) {
        if (!p || !p.lane || closed[p.lane.group]) return;
        const home = p.lane.hidden ? model.lanes.find(function (l) { return l.waits === p.lane; }) : p.lane;
        const x0 = Math.max(left(), at(model.s[p.id])), x1 = Math.min(v.width(), at(model.e[p.id]));
        if (x1 < left() || x0 > v.width()) return;
        pen.strokeStyle = c.page;
        pen.lineWidth = 3.5;
        const y = home.y + (p.lane.hidden ? 0 : model.depth[p.id] * ROW);
        pen.strokeRect(x0 - 0.5, y - 0.5, Math.max(2, x1 - x0) + 1, ROW - 1);
        pen.strokeStyle = c.text;
        pen.lineWidth = p === pinned ? 2 : 1.2;
        pen.strokeRect(x0 - 0.5, y - 0.5, Math.max(2, x1 - x0) + 1, ROW - 1);
      });
      const shown = drag && drag.mode === "zoom" ? { x0: drag.x, x1: drag.now, y0: 0, y1: v.height() }
        : drag && drag.mode === "select" ? { x0: drag.x, x1: drag.now, y0: drag.y, y1: drag.nowY }
          : chosen ? { x0: at(chosen.start), x1: at(chosen.end), y0: chosen.top(), y1: chosen.bottom() } : null;
      if (!shown) return;
      const x0 = Math.max(left(), Math.min(shown.x0, shown.x1)), x1 = Math.min(v.width(), Math.max(shown.x0, shown.x1));
      if (x1 <= x0) return;
      const y0 = Math.min(shown.y0, shown.y1), y1 = Math.max(shown.y0, shown.y1);
      pen.globalAlpha = 0.14;
      pen.fillStyle = c.accent;
      pen.fillRect(x0, y0, x1 - x0, y1 - y0);
      pen.globalAlpha = 1;
      pen.strokeStyle = c.accent;
      pen.lineWidth = 1;
      pen.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
    }

    /** From the call on the host to the task that it launched. */
    function arrows(c, pinned) {
      if (!pinned || !pinned.links) return;
      pinned.links.forEach(function (link) {
        if (closed[link.host.lane.group] || closed[link.task.lane.group]) return;
        const x0 = at(link.when), x1 = at(model.s[link.task.id]);
        if (Math.max(x0, x1) < left() || Math.min(x0, x1) > v.width()) return;
        const y0 = link.host.lane.y + model.depth[link.host.id] * ROW + ROW - 2, y1 = link.task.lane.y + model.depth[link.task.id] * ROW;
        pen.save();
        pen.beginPath();
        pen.rect(left(), v.head, v.width() - left(), v.height() - v.head);
        pen.clip();
        [[c.page, 4], [c.text, 1.6]].forEach(function (style) {
          pen.strokeStyle = pen.fillStyle = style[0];
          pen.lineWidth = style[1];
          pen.beginPath();
          pen.moveTo(x0, y0);
          pen.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1 - 4);
          pen.stroke();
        });
        pen.beginPath();
        pen.moveTo(x1, y1);
        pen.lineTo(x1 - 4, y1 - 7);
        pen.lineTo(x1 + 4, y1 - 7);
        pen.fill();
        pen.restore();
      });
    }

    return { bands: bands, selection: selection, arrows: arrows };
  };
})();
