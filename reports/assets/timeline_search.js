// Search in the timeline: intervals by a part of their name, one after another.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;

  /** The search box with its buttons (`parts`); `v` shows what was found: later() paints, pin(p), reveal(id). */
  AP.timelineSearch = function (model, v) {
    let found = null;
    const hits = h("output", { class: "count" });

    function search(text) {
      const wanted = text.trim().toLowerCase();
      found = null;
      if (wanted) {
        const flags = model.nameCode ? model.names.map(function (n) { return AP.w(n).toLowerCase().indexOf(wanted) >= 0; }) : null;
        const isHit = function (id) { return flags ? model.nameCode(id) >= 0 && flags[model.nameCode(id)] : model.name(id).toLowerCase().indexOf(wanted) >= 0; };
        found = { ids: [], at: -1, exact: 0, time: 0, runs: 0 };
        model.lanes.forEach(function (l) {
          l.rows.forEach(function (row) {
            row.hits = new Float64Array(row.s.length + 1);
            for (let i = 0; i < row.s.length; i++) {
              const id = row.ids[i], match = isHit(id);
              row.hits[i + 1] = row.hits[i] + (match ? 1 : 0);
              if (!match) continue;
              found.ids.push(id);
              if (model.count[id] > 1) found.runs++;
              else {
                found.exact++;
                found.time += model.e[id] - model.s[id];
              }
            }
          });
        });
        found.ids.sort(function (a, b) { return model.s[a] - model.s[b]; });
      }
      tell();
      v.later();
    }

    function tell() {
      hits.textContent = !found ? "" : (found.at >= 0 ? found.at + 1 + " / " : "")
        + AP.t("timeline.hits", { count: AP.format.significant(found.exact, 12), time: q(found.time, "ns") })
        + (found.runs ? " " + AP.t("timeline.hits_runs", { count: AP.format.significant(found.runs, 12) }) : "");
      before.disabled = next.disabled = !found || !found.ids.length;
    }

    /** To the next hit or (-1) the one before. */
    function step(by) {
      if (!found || !found.ids.length) return;
      const n = found.ids.length;
      if (found.at >= 0) found.at = (found.at + by + n) % n;
      else {
        // From what is in the window.
        const first = found.ids.findIndex(function (id) { return model.s[id] >= v.view.from; });
        found.at = by > 0 ? Math.max(0, first) : ((first < 0 ? n : first) - 1 + n) % n;
      }
      const id = found.ids[found.at];
      v.pin({ lane: model.lanes[model.lane[id]], id: id });
      v.reveal(id);
      tell();
    }

    const before = v.button("‹", "timeline.before", function () { step(-1); }), next = v.button("›", "timeline.next", function () { step(1); });
    const find = h("input", {
      type: "search", placeholder: AP.t("timeline.find"), "aria-label": AP.t("timeline.find"),
      on: {
        input: function (e) { search(e.target.value); },
        keydown: function (e) {
          if (e.key === "Enter") {
            e.preventDefault();
            step(e.shiftKey ? -1 : 1);
          }
        },
      },
    });
    tell();
    return { found: function () { return found; }, step: step, focus: function () { find.focus(); }, parts: [hits, find, before, next] };
  };
})();
