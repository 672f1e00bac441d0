// The sections below the cards: which charts and tables each one shows.
(function () {
  const h = AP.h;

  function byUnit(table, unit) {
    const column = table && table.columns.find(function (c) { return c.unit === unit; });
    return column ? AP.reader(column) : null;
  }

  /** Links of all ranks against their peers: the slowest of a cell counts, and the slower the darker. */
  function linkMatrix(table) {
    const ratio = table && AP.column(table, "ratio");
    if (!ratio) return null;
    return AP.heatView(table, "src", "dst", ratio, {
      title: AP.t("chart.link_matrix"), note: AP.t("chart.link_matrix_axis"), tone: "orange", square: true, lowest: true,
      tip: function (r, c) { return r + " → " + c; },
      share: function (r, c, v) { return Math.max(0, 1 - v) / 0.5; },
    });
  }

  const CHARTS = {
    timeline: function () {
      const counters = AP.table("counter-timeline");
      return [AP.table("timeline") && AP.timelineView(AP.table("timeline")), counters && AP.countersView(counters)];
    },
    operators: function () { return [AP.flameView(["device-module", "device-stack", "device-op"], ["flame-host", "section-host", "flame.to_host"])]; },
    host: function () { return [AP.flameView(["host"], ["flame-device-op", "section-operators", "flame.to_device"])]; },
    mac: function () { return [AP.table("roofline") && AP.rooflineView(AP.table("roofline"), AP.table("roofs"))]; },
    memory: function () { return [AP.table("memory-timeline") && AP.memoryView(AP.table("memory-timeline"))]; },
    communication: function () {
      const waits = AP.table("comm-waits");
      const links = AP.table("comm-links");
      return [
        waits && AP.heatView(waits, "waiter", "peer", AP.column(waits, "wait_ns") || byUnit(waits, "ns"), {
          title: AP.t("chart.waits"), note: AP.t("chart.waits_axis"), tone: "orange",
          tip: function (r, c) { return r + " ← " + c; },
        }),
        links && AP.heatView(links, "src", "dst", byUnit(links, "bytes_per_s"), {
          title: AP.t("chart.links"), note: AP.t("chart.links_axis"), tone: "teal", mean: true,
          tip: function (r, c) { return r + " → " + c; },
        }),
        linkMatrix(AP.table("link-matrix")),
        AP.table("size-bandwidth") && AP.sizesView(AP.table("size-bandwidth")),
      ];
    },
    more: function () { return AP.table("training-series") ? AP.seriesView(AP.table("training-series")) : []; },
    ranks: function () {
      const waits = AP.table("rank-waits");
      return [
        waits && AP.heatView(waits, "waiter", "late", AP.column(waits, "exposed_ns") || AP.column(waits, "wait_ns"), {
          title: AP.t("chart.rank_waits"), note: AP.t("chart.rank_waits_axis"), tone: "orange", square: true,
          tip: function (r, c) { return r + " ← " + c; },
        }),
      ];
    },
  };

  // Drawn as charts alone; their rows say nothing beside the picture.
  const NOT_AS_TABLE = [
    "timeline", "timeline-window", "counter-timeline", "memory-timeline", "training-series",
    "flame-host", "flame-device-module", "flame-device-stack", "flame-device-op",
  ];

  // What a reader wants first in each section; tables that are not named here follow in the order of their analyzers.
  const FIRST = {
    steps: ["steps", "step-classes", "critical-path", "critical-path-what-if", "critical-path-elements", "critical-path-slack", "critical-path-steps"],
    operators: ["top-kernels", "fusion-candidates", "op-types"],
    mac: ["mac", "roofline-classes", "roofline"],
    communication: ["comm-ops", "comm-groups", "comm-hotspots", "comm-waits"],
    host: ["decode-steps", "idle-causes", "host-ops", "idle-gaps"],
    memory: ["stage-memory", "memory-peaks", "peak-blocks"],
    ranks: ["rank-clusters", "job-stages", "collectives", "job-critical-path", "job-critical-path-ranks", "job-critical-path-what-if"],
    quality: ["warnings", "missing", "dropped", "sources", "checks"],
  };
  const OPEN_PARTS = 3; // Charts and tables that stand open in a section; what is more lies in a fold below them.

  function inOrder(section, tables) {
    const first = FIRST[section] || [];
    function place(table) {
      const at = first.indexOf(table.name);
      return at < 0 ? first.length : at;
    }
    return tables.map(function (t, i) { return [place(t), i, t]; })
      .sort(function (a, b) { return a[0] - b[0] || a[1] - b[1]; })
      .map(function (x) { return x[2]; });
  }

  /** The further tables of a section, folded; what they are says the line that opens them. */
  function fold(section, tables, view) {
    const id = "more-" + section.key;
    return h("details", {
      class: "more-tables", id: id, open: Boolean(AP.state.open[id]),
      on: { toggle: function (e) { AP.state.open[id] = e.target.open; AP.save(); } },
    },
    h("summary", null, h("strong", null, AP.t("ui.more_tables", { count: tables.length })), AP.t("ui.colon"),
      tables.map(function (t) { return AP.w(t.title); }).join(" · ")),
    tables.map(view));
  }

  /** Roofs hold two quantities in one column; the table shows each with its own unit. */
  function shown(table) {
    if (table.name !== "roofs") return table;
    const kind = AP.column(table, "kind");
    const value = AP.column(table, "value");
    if (!kind || !value) return table;
    const texts = [];
    for (let row = 0; row < table.rows; row++) texts.push(AP.format.quantity(value.get(row), kind.key(row) === "bandwidth" ? "bytes_per_s" : "flops_per_s"));
    return Object.assign({}, table, {
      columns: table.columns.map(function (c) {
        return c.name === "value" ? { name: "value", title: c.title, unit: "none", texts: texts, codes: texts.map(function (t, i) { return i; }) } : c;
      }),
    });
  }

  function stepsTable(tables) {
    // One table over all ranks: the rank becomes its first column.
    const all = tables.filter(function (t) { return t.name === "steps"; });
    if (all.length < 2) return null;
    const names = all[0].columns.map(function (c) { return c.name; });
    if (!all.every(function (t) { return t.columns.map(function (c) { return c.name; }).join() === names.join(); })) return null;
    const merged = { name: "steps", title: all[0].title, note: all[0].note, rows: 0, rank: null, scope: "job", columns: [] };
    const ranks = [];
    all.forEach(function (t) {
      merged.rows += t.rows;
      for (let i = 0; i < t.rows; i++) ranks.push(t.rank);
    });
    merged.columns.push({ name: "rank", title: AP.t("ui.rank"), unit: "none", data: ranks });
    all[0].columns.forEach(function (column, i) {
      const made = { name: column.name, title: column.title, unit: column.unit };
      if (all.some(function (t) { return t.columns[i].codes; })) {
        made.texts = [];
        made.codes = [];
        all.forEach(function (t) {
          const reader = AP.reader(t.columns[i]);
          for (let r = 0; r < t.rows; r++) {
            const value = reader.get(r);
            const text = value === null || value === undefined ? null : String(value);
            if (text !== null && made.texts.indexOf(text) < 0) made.texts.push(text);
            made.codes.push(text === null ? -1 : made.texts.indexOf(text));
          }
        });
      } else made.data = [].concat.apply([], all.map(function (t) { return t.columns[i].data; }));
      merged.columns.push(made);
    });
    return merged;
  }

  function standing(section) {
    return h("span", { class: "dot d-" + section.standing, role: "img", "aria-label": AP.t("standing." + section.standing), title: AP.t("standing." + section.standing) });
  }
  AP.standing = standing;

  /** What a profile lacks, in words of ours where a reason names tables; the head of the box says the rest already. */
  function lack(reason) {
    const tables = (Array.isArray(reason) ? reason[0] : String(reason)).replace(/^not in this data: /i, "").split(", ");
    if (tables.every(function (t) { return AP.has("needed." + t); })) return tables.map(function (t) { return AP.t("needed." + t); }).join(AP.t("ui.comma"));
    return AP.w(reason).replace(/^(not in this data: |数据中没有[：\s]?)/i, "");
  }

  function reasons(section) {
    if (!section.reasons.length) return null;
    const failed = section.reasons.some(function (r) { return r.status === "failed"; });
    const chosen = section.reasons.every(function (r) { return r.status === "left_out"; });
    // What is missing comes first and once, then which analyzers it keeps from judging, and on which ranks.
    const seen = new Map();
    section.reasons.forEach(function (r) {
      const known = r.ranks.filter(function (rank) { return rank !== null; }), every = !known.length || known.length === AP.data.ranks.length;
      const text = r.status === "no_data" ? lack(r.text) : AP.w(r.text), key = text + "|" + (every ? "" : known);
      if (!seen.has(key)) seen.set(key, { text: text, names: [], ranks: [] });
      const found = seen.get(key);
      if (r.analyzer && found.names.indexOf(r.analyzer) < 0) found.names.push(r.analyzer);
      found.ranks = found.ranks.concat(r.ranks);
    });
    return h("div", { class: "reason" + (failed ? " failed" : "") },
      h("strong", null, AP.t(failed ? "ui.failed" : chosen ? "ui.left_out" : "ui.not_in_data")),
      h("ul", null, Array.from(seen.values()).map(function (found) {
        const ranks = Array.from(new Set(found.ranks.filter(function (r) { return r !== null; })));
        const some = ranks.length && ranks.length < AP.data.ranks.length;
        const notes = [found.names.join(AP.t("ui.comma")), some && AP.t("ui.rank_n", { rank: AP.ranges(ranks) })].filter(Boolean);
        return h("li", null, found.text, notes.length ? h("span", { class: "muted" }, " · " + notes.join(" · ")) : null);
      })));
  }

  function rankChoice(tables) {
    const ranks = AP.data.ranks.filter(function (rank) { return tables.some(function (t) { return t.scope === "rank" && t.rank === rank; }); });
    if (ranks.length < 2) return null;
    return h("label", { class: "choice screen" }, AP.t("ui.rank") + " ",
      h("select", { on: { change: function (e) { AP.chooseRank(ranks[e.target.selectedIndex]); } } },
        ranks.map(function (rank) { return h("option", { selected: rank === AP.state.rank }, rank === null ? AP.t("ui.rank_unknown") : rank); })));
  }

  function method() {
    return ["steps", "bounds", "severity", "waits", "roofline", "unknown", "origin", "privacy"].map(function (name) {
      return [h("h3", null, AP.t("method." + name + "_title")), h("p", null, AP.t("method." + name))];
    });
  }

  function cuts(section) {
    const cut = AP.data.cut.filter(function (c) { return c.section === section.key; });
    if (cut.length === 1) return h("p", { class: "note" }, AP.w(cut[0].text));
    return cut.length ? h("ul", { class: "note" }, cut.slice(0, 20).map(function (c) { return h("li", null, AP.w(c.text)); })) : null;
  }

  AP.sectionView = function (section) {
    const mine = AP.data.tables.filter(function (t) { return t.section === section.key; });
    const merged = section.key === "steps" ? stepsTable(mine) : null;
    const seen = mine.filter(function (t) { return t.scope === "job" || t.rank === AP.state.rank; });
    const charts = CHARTS[section.key] ? CHARTS[section.key]().filter(Boolean) : [];
    const drawn = charts.length > 0;
    const several = AP.data.ranks.length > 1;
    const tables = inOrder(section.key, (merged ? [merged] : []).concat(seen.filter(function (t) {
      if (AP.isOfJob(t) || (merged && t.name === "steps")) return false;
      return !(drawn && NOT_AS_TABLE.indexOf(t.name) >= 0) && t.name !== "step-bar";
    })));
    // One single table is not worth a fold.
    const room = Math.max(1, OPEN_PARTS - charts.length);
    const open = tables.length === room + 1 ? tables.length : room;
    function view(t) {
      const id = section.key + "/" + t.name + "/" + (t.scope === "job" ? "job" : t.rank);
      return AP.tableView(shown(t), id, Object.assign({ above: AP.compositionView(t) }, several && t.scope === "rank" ? { rank: t.rank } : {}));
    }
    const shifting = mine.filter(function (t) { return !(merged && t.name === "steps") && t.name !== "step-bar"; });
    return h("section", { id: "section-" + section.key, class: "part", "data-section": section.key },
      h("div", { class: "section-head" }, h("h2", null, standing(section), AP.t("section." + section.key)), rankChoice(shifting)),
      section.findings.length ? h("ul", { class: "refs" }, section.findings.map(function (n) {
        const finding = AP.data.findings[n - 1];
        return h("li", null, h("a", { href: "#finding-" + n, class: "sev-" + finding.severity }, h("span", { class: "n" }, n), h("span", null, AP.w(finding.title))));
      })) : null,
      reasons(section),
      charts,
      tables.slice(0, open).map(view),
      tables.length > open ? fold(section, tables.slice(open), view) : null,
      section.standing === "clean" && !tables.length && !drawn ? h("p", { class: "muted" }, AP.t(section.reasons.length ? "ui.nothing_else" : "ui.nothing_to_report")) : null,
      cuts(section),
      section.key === "method" ? method() : null);
  };
})();
