// What the timeline says in words: about one interval, about a part of it, and its longest intervals as a table.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const NAMES = 10;

  const CLASS = { compute: "kind.computing", communication: "timeline.collective", wait: "kind.wait", copy: "kind.copy", host: "kind.host", sync: "timeline.sync" };
  function kindOf(model, p) {
    const key = p.lane.group === "planes" && model.rawKind(p.id) === "communication" ? "kind.transfer" : CLASS[model.rawKind(p.id)];
    return key ? AP.t(key) : model.kind(p.id);
  }

  /** What is known of an interval, its name first. */
  function lines(model, p) {
    const id = p.id, made = [];
    const length = q(model.e[id] - model.s[id], "ns");
    if (model.count[id] > 1) {
      made.push(AP.t("timeline.intervals_in", { count: AP.format.significant(model.count[id], 12), time: length }));
      made.push(AP.t("timeline.mostly", { name: model.name(id) || model.kind(id), share: q(model.busy[id] / Math.max(1, model.e[id] - model.s[id]), "ratio") }));
      made.push(AP.format.offset(model.s[id]));
    } else {
      made.push(model.name(id) || model.kind(id));
      made.push(length + " · " + AP.format.offset(model.s[id]));
    }
    const exact = function (ns) { return AP.glued(AP.format.significant(ns, 16) + " ns"); };
    made.push(AP.t("timeline.exactly", { time: exact(model.e[id] - model.s[id]), start: (model.s[id] < 0 ? "−" : "+") + exact(Math.abs(model.s[id])) }));
    made.push(p.lane.name + (kindOf(model, p) ? " · " + kindOf(model, p) : ""));
    if (model.shape(id)) made.push(model.shape(id));
    if (!isNaN(model.launch[id])) made.push(AP.t("timeline.launched", { time: q(model.s[id] - model.launch[id], "ns") }));
    return made;
  }

  function className(chosen, c) { return AP.t(chosen.onlyPlanes || c === "host" || c === "computing" || c === "copy" || c === "idle" ? "kind." + c : "timeline.class_" + c); }

  /** Numbers of a part of the timeline; `buttons` are shown beside. */
  function statistics(chosen, buttons) {
    const approx = chosen.runs ? "≈ " : "";
    const most = chosen.runs ? "≤ " : "", least = chosen.runs ? "≥ " : "";
    function cells(name, count, sum, union, gap) {
      return h("tr", null, h("th", { scope: "row" }, name), h("td", { class: "figure" }, count), h("td", { class: "figure" }, sum),
        h("td", { class: "figure" }, most + q(union, "ns")), h("td", { class: "figure" }, least + q(gap, "ns")));
    }
    // Calls of the host lie in one another, so that their sums would push all others away.
    const onDevice = chosen.names.filter(function (n) { return n.type !== "host"; }).slice(0, NAMES - 3);
    const named = onDevice.concat(chosen.names.filter(function (n) { return n.type === "host"; }).slice(0, NAMES - onDevice.length));
    const head = function (key) { return h("th", { scope: "col" }, AP.t("timeline." + key)); };
    return [
      h("div", { class: "timeline-pin" },
        h("strong", null, AP.t("timeline.chosen", { time: q(chosen.end - chosen.start, "ns"), lanes: chosen.lanes })),
        h("span", null, AP.t("timeline.window", { from: AP.format.offset(chosen.start), to: AP.format.offset(chosen.end) }) + " · " + approx + AP.t("timeline.intervals", { count: AP.format.significant(chosen.count, 12) }))),
      h("div", { class: "tools screen" }, buttons),
      h("div", { class: "timeline-stats" },
        h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": AP.t("timeline.by_class") }, h("table", { class: "stats", "data-stats": "classes" }, h("caption", { class: "off" }, AP.t("timeline.by_class")),
          h("thead", null, h("tr", null, head("class"), head("count"), head("sum"), head("union"), head("gap"))),
          h("tbody", null, chosen.classes.map(function (c) { return cells([h("span", { class: "swatch k-" + c.type + " s0", "aria-hidden": "true" }), className(chosen, c.type)], approx + AP.format.significant(c.count, 12), approx + q(c.sum, "ns"), c.union, c.gap); }),
            chosen.device && cells(AP.t("timeline.device"), "", "", chosen.device.union, chosen.device.gap)))),
        h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": AP.t("timeline.by_name") }, h("table", { class: "stats", "data-stats": "names" }, h("caption", { class: "off" }, AP.t("timeline.by_name")),
          h("thead", null, h("tr", null, head("name"), head("count"), head("sum"), head("mean"))),
          h("tbody", null, named.map(function (item) {
            return h("tr", null, h("th", { scope: "row" }, h("span", { class: "swatch k-" + item.type + " s0", "aria-hidden": "true" }), item.name || AP.t("kind." + item.type)),
              h("td", { class: "figure" }, (item.isRun ? "≈ " : "") + AP.format.significant(item.count, 12)), h("td", { class: "figure" }, (item.isRun ? "≈ " : "") + q(item.sum, "ns")), h("td", { class: "figure" }, q(item.sum / item.count, "ns")));
          }))))),
      chosen.names.length > named.length || chosen.runs ? h("p", { class: "note" },
        chosen.names.length > named.length ? AP.t("timeline.more_names", { count: chosen.names.length - named.length }) + " " : "",
        chosen.runs ? AP.t("timeline.with_runs", { count: AP.format.significant(chosen.inRuns, 12), runs: AP.format.significant(chosen.runs, 12) }) : "") : null,
    ];
  }

  /** The longest intervals as a table. */
  function longest(model) {
    const ids = [].concat.apply([], model.lanes.map(function (l) { return l.ids; }))
      .sort(function (a, b) { return model.e[b] - model.s[b] - model.e[a] + model.s[a]; }).slice(0, 200);
    function text(of) {
      const texts = Array.from(new Set(ids.map(of)));
      return { texts: texts, codes: ids.map(function (id) { return texts.indexOf(of(id)); }) };
    }
    function data(of) { return { data: ids.map(of) }; }
    return {
      name: "timeline-longest", title: AP.t("timeline.longest"), note: null, rows: ids.length, scope: "job", rank: null, section: "",
      columns: [
        Object.assign({ name: "name", title: AP.t("timeline.name"), unit: "none" }, text(function (id) { return model.name(id) || model.kind(id) || "—"; })),
        Object.assign({ name: "lane", title: AP.t("timeline.lane"), unit: "none" }, text(function (id) { return model.lanes[model.lane[id]].name || "—"; })),
        Object.assign({ name: "start", title: AP.t("timeline.start"), unit: "ns", clock: true }, data(function (id) { return model.s[id]; })),
        Object.assign({ name: "dur", title: AP.t("timeline.duration"), unit: "ns" }, data(function (id) { return model.e[id] - model.s[id]; })),
        Object.assign({ name: "count", title: AP.t("timeline.count"), unit: "count" }, data(function (id) { return model.count[id]; })),
      ],
    };
  }

  AP.timelineSays = { lines: lines, statistics: statistics, longest: longest };
})();
