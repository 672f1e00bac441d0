// Pointer, wheel, fingers and keys on the canvas of the timeline.
(function () {
  /** Turns what happens on `canvas` into calls of `v`; `drag()` tells of a drag in progress. */
  AP.timelineInput = function (canvas, v) {
    const fingers = new Map();
    let drag = null;

    canvas.addEventListener("pointerdown", function (e) {
      if (e.button) return;
      const x = e.offsetX, y = e.offsetY;
      fingers.set(e.pointerId, { x: x, y: y });
      canvas.setPointerCapture(e.pointerId);
      AP.tip(null);
      if (fingers.size === 2) {
        const two = Array.from(fingers.values());
        drag = { mode: "pinch", width: Math.max(20, Math.abs(two[0].x - two[1].x)), centre: v.ns((two[0].x + two[1].x) / 2), span: v.view.to - v.view.from };
        return;
      }
      drag = { mode: e.shiftKey ? "select" : e.pointerType === "touch" || y < AP.timelinePaint.AXIS ? "pan" : "zoom", x: x, y: y, now: x, nowY: y, from: v.view.from, to: v.view.to, moved: false };
    });
    canvas.addEventListener("pointermove", function (e) {
      if (!drag) return e.pointerType === "touch" ? undefined : v.tell(e.offsetX, e.offsetY, e.clientX, e.clientY);
      if (fingers.has(e.pointerId)) fingers.set(e.pointerId, { x: e.offsetX, y: e.offsetY });
      if (drag.mode === "pinch") {
        const two = Array.from(fingers.values());
        if (two.length < 2) return;
        const span = drag.span * drag.width / Math.max(20, Math.abs(two[0].x - two[1].x));
        const share = ((two[0].x + two[1].x) / 2 - v.left()) / (v.width() - v.left());
        return v.set(drag.centre - span * share, drag.centre + span * (1 - share));
      }
      drag.now = e.offsetX;
      drag.nowY = e.offsetY;
      drag.moved = drag.moved || Math.abs(drag.now - drag.x) > 4;
      if (drag.mode === "pan") {
        const by = (drag.x - drag.now) / (v.width() - v.left()) * (drag.to - drag.from);
        v.set(drag.from + by, drag.to + by);
      } else v.later();
    });
    canvas.addEventListener("pointerup", function (e) {
      const done = drag;
      fingers.delete(e.pointerId);
      drag = null;
      v.later();
      if (!done || done.mode === "pinch") return;
      const x0 = Math.max(v.left(), Math.min(done.x, done.now)), x1 = Math.max(done.x, done.now);
      if (!done.moved) return v.click(e.offsetX, e.offsetY, e);
      if (done.mode === "zoom" && x1 > v.left()) v.set(v.ns(x0), v.ns(x1));
      if (done.mode === "select" && x1 > v.left()) v.select(x0, Math.min(done.y, done.nowY), x1, Math.max(done.y, done.nowY));
    });
    canvas.addEventListener("pointercancel", function (e) {
      fingers.delete(e.pointerId);
      drag = null;
      v.later();
    });
    canvas.addEventListener("pointerleave", function () {
      AP.tip(null);
      v.leave();
    });

    canvas.addEventListener("dblclick", v.all);
    canvas.addEventListener("wheel", function (e) {
      // The wheel scrolls the page until the reader has clicked into the timeline.
      if (document.activeElement !== canvas && !e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      AP.tip(null);
      const delta = e.deltaMode === 1 ? 30 : 1;
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) v.move((e.deltaX || e.deltaY) * delta / 800);
      else v.zoom(Math.pow(1.0015, Math.max(-600, Math.min(600, e.deltaY * delta))), v.ns(Math.max(v.left(), e.offsetX)));
    }, { passive: false });
    canvas.addEventListener("keydown", function (e) {
      if (!v.acts[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      AP.tip(null);
      v.acts[e.key]();
    });

    return { drag: function () { return drag; } };
  };
})();
