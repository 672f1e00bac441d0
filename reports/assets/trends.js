// Pages of a history: the overview of all trends, and the trends of one benchmark.
(function () {
  const h = AP.h;
  const f = AP.format;
  const root = document.documentElement;
  const app = document.getElementById("app");

  function head() {
    return h("section", { id: "verdict", class: "verdict" + (AP.data.state === "worse" ? " sev-critical" : AP.data.state === "clean" ? " clean" : "") },
      h("p", { class: "badges" },
        AP.data.simulated && h("span", { class: "badge simulated" }, AP.t(AP.data.partly ? "trends.partly_simulated" : "trends.simulated")),
        h("span", { class: "muted" }, AP.data.generator)),
      h("h1", null, AP.data.kind === "index" ? AP.w(AP.data.main) : h("strong", null, AP.w(AP.data.main))),
      h("dl", { class: "facts" }, AP.data.facts.map(function (x) { return h("div", null, h("dt", null, AP.w(x[0])), h("dd", null, AP.w(x[1]))); })));
  }

  function word(c) {
    return h("span", { class: "word" }, AP.t("trends." + (c.state === "open" ? c.direction : c.state)));
  }

  /** What differed beside the figures, and what somebody said. */
  function circumstances(c) {
    const said = c.owner ? AP.t("trends.said_by", { owner: c.owner, day: c.decided }) + (c.note ? AP.t("ui.colon") + c.note : "") : null;
    return [
      c.facts.length ? h("p", null, AP.t("trends.facts_changed")) : null,
      c.facts.length ? h("ul", { class: "facts-changed" }, c.facts.map(function (x) { return h("li", null, x[0], AP.t("ui.colon"), x[1], " → ", x[2]); })) : null,
      said && h("p", null, said)];
  }

  function changeView(c, number) {
    return h("article", { class: "change " + c.direction + " " + c.state, "data-change": c.id },
      h("h3", null, number + ". ", word(c), " · ", AP.w(c.title)),
      h("p", null, c.day, " · ", AP.w(c.between)),
      circumstances(c),
      c.state === "open" ? h("p", null, AP.t("trends.accept_with"), " ", h("code", null, "ascend-perf history accept " + c.id + " --owner NAME --note TEXT")) : null);
  }

  /** Changes that begin with the same result, as one: they have one cause more often than not. */
  function commitView(list) {
    const c = list[0];
    return h("article", { class: "change " + c.direction },
      h("h3", null, AP.t("trends.since", { commit: AP.w(c.commit) }), h("span", { class: "muted" }, " · " + [c.day].concat(c.group.slice(0, 2)).filter(Boolean).join(" · "))),
      h("ul", { class: "changes" }, list.map(function (x) {
        return h("li", { class: x.direction, "data-change": x.id }, word(x), " · ", h("a", { href: x.page + "#series-" + x.series }, AP.w(x.short)), " ", h("code", { class: "muted" }, x.id));
      })),
      h("p", null, AP.w(c.between)),
      circumstances(c));
  }

  // ---- overview ----------------------------------------------------------------------------------------------------

  function rowView(r) {
    const kind = r.state === "open" && r.direction !== "changed" ? r.direction + "-text" : "quiet-text";
    return h("tr", { "data-series": r.series },
      h("td", { class: "name" }, h("a", { href: r.page + "#series-" + r.series }, r.benchmark), r.simulated ? h("span", { class: "muted" }, " " + AP.t("trends.simulated")) : null),
      h("td", { class: "metric" }, r.metric),
      h("td", null, AP.spark(r.spark, r.marks, r.metric + " " + AP.t("trends.last_values", { count: r.spark.length }))),
      h("td", { class: "figure" }, f.quantity(r.value, r.unit), r.unusual ? h("span", { class: "worse-text", title: AP.t("trends.unusual") }, " ◆", h("span", { class: "off" }, AP.t("trends.unusual"))) : null),
      h("td", { class: "figure last " + kind }, r.change ? AP.w(r.change) : "—", r.change ? h("span", { class: "quiet-text" }, " " + AP.t("trends." + (r.state === "open" ? r.direction : r.state))) : null),
      h("td", { class: "figure count" }, String(r.count)));
  }

  function overview() {
    const groups = new Map();
    AP.data.rows.forEach(function (r) {
      const key = JSON.stringify([r.suite, r.branch, r.machine]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(r);
    });
    const made = [];
    groups.forEach(function (rows) {
      const r = rows[0];
      const body = h("tbody", null, rows.map(rowView));
      made.push({ rows: rows, body: body, node: h("section", { class: "group" },
        h("h3", null, [r.suite, r.branch, AP.data.machines[r.machine] + " (" + r.machine + ")"].filter(Boolean).join(" · ")),
        h("table", { class: "overview" },
          h("thead", null, h("tr", null, h("th", null, AP.t("trends.benchmark")), h("th", null, AP.t("trends.metric")), h("th", null, AP.t("trends.trend")),
            h("th", { class: "figure" }, AP.t("trends.newest_value")), h("th", { class: "figure" }, AP.t("trends.last_change")), h("th", { class: "figure" }, AP.t("trends.values")))),
          body)) });
    });
    const none = h("p", { class: "note", hidden: true }, AP.t("ui.no_match"));
    function filter() {
      let shown = 0;
      const word = (AP.state.search || "").toLowerCase();
      made.forEach(function (g) {
        let here = 0;
        g.rows.forEach(function (r, i) {
          const fits = (r.benchmark + " " + r.metric).toLowerCase().includes(word) && (!AP.state.onlyOpen || r.unusual || (r.state === "open" && r.direction === "worse"));
          g.body.children[i].hidden = !fits;
          if (fits) here++;
        });
        g.node.hidden = !here;
        shown += here;
      });
      none.hidden = shown > 0;
    }
    const search = h("input", { type: "search", placeholder: AP.t("ui.search"), "aria-label": AP.t("trends.search"), on: { input: function (e) { AP.state.search = e.target.value; AP.save(); filter(); } } });
    search.value = AP.state.search || "";
    const only = h("input", { type: "checkbox", on: { change: function (e) { AP.state.onlyOpen = e.target.checked; AP.save(); filter(); } } });
    only.checked = Boolean(AP.state.onlyOpen);
    filter();
    return [h("div", { class: "filter screen" }, search, h("label", null, only, AP.t("trends.only_open"))), made.map(function (g) { return g.node; }), none];
  }

  const FEW = 8;

  function indexView() {
    const byResult = new Map();
    AP.data.changes.forEach(function (c) {
      const key = JSON.stringify([c.result, c.group]);
      if (!byResult.has(key)) byResult.set(key, []);
      byResult.get(key).push(c);
    });
    const lists = Array.from(byResult.values());
    return [
      lists.length ? h("section", { class: "part", id: "changes" }, h("h2", null, AP.t("trends.open_changes")),
        lists.slice(0, FEW).map(commitView),
        lists.length > FEW ? h("details", null, h("summary", null, AP.t("trends.more_changes", { count: lists.length - FEW })), lists.slice(FEW).map(commitView)) : null,
        h("p", { class: "note" }, AP.t("trends.accept_one"), " ", h("code", null, "ascend-perf history accept SERIES@RESULT --owner NAME --note TEXT"))) : null,
      AP.data.rows.length ? h("section", { class: "part", id: "trends" }, h("h2", null, AP.t("trends.all")), overview()) : null,
    ];
  }

  // ---- one benchmark -----------------------------------------------------------------------------------------------

  function trendView(trend) {
    return h("section", { class: "trend", id: "series-" + trend.series },
      h("h3", null, trend.metric, h("span", { class: "muted" }, f.quantity(trend.value[trend.value.length - 1], trend.unit)),
        h("span", { class: "muted" }, AP.t("trends.better_" + trend.better)), trend.exact ? h("span", { class: "muted" }, AP.t("trends.exact")) : null,
        AP.data.simulated ? h("span", { class: "muted" }, AP.t("trends.simulated")) : null),
      trend.unusual ? h("p", { class: "note" }, "◆ ", AP.t("trends.unusual")) : null,
      trend.not_judged ? h("p", { class: "note" }, AP.t("trends.not_judged", { count: trend.not_judged })) : null,
      AP.trendChart(trend),
      trend.changes.map(function (c, i) { return changeView(c, i + 1); }));
  }

  const NEWEST = 40;

  function results() {
    const list = AP.data.results.slice(-NEWEST).reverse();
    return h("section", { class: "part", id: "results" }, h("h2", null, AP.t("trends.newest_results", { count: list.length })),
      h("table", { class: "overview results" },
        h("thead", null, h("tr", null, h("th", null, AP.t("trends.result")), h("th", null, AP.t("trends.day")), h("th", null, AP.t("trends.commit")), h("th", { class: "figure" }, AP.t("trends.runs")), h("th", { class: "figure" }, AP.t("trends.failed")), h("th", null, AP.t("trends.report")))),
        h("tbody", null, list.map(function (r) {
          return h("tr", null, h("td", null, String(r.id)), h("td", null, r.day), h("td", { class: "commit" }, r.commit || "—"),
            h("td", { class: "figure count" }, String(r.launches)), h("td", { class: "figure count" }, String(r.failed)),
            h("td", null, r.report ? h("a", { href: r.report }, AP.t("trends.report")) : null, r.report && r.url ? " · " : null,
              r.url ? h("a", { href: r.url, rel: "noopener noreferrer" }, AP.t("trends.elsewhere")) : null, !r.report && !r.url ? "—" : null));
        }))));
  }

  function benchmarkView() {
    return [h("section", { class: "part", id: "trends" }, h("h2", null, AP.t("trends.all")), h("p", { class: "note" }, AP.t("trends.how")), AP.data.trends.map(trendView)), results()];
  }

  AP.render = function () {
    AP.tip(null);
    const y = window.scrollY, held = app.offsetHeight;
    root.lang = AP.state.lang === "zh" ? "zh-CN" : "en";
    document.title = AP.w(AP.data.main).slice(0, 200) + " · ascend-perf";
    app.style.minHeight = held + "px";
    app.replaceChildren(
      h("a", { class: "skip", href: "#main" }, AP.t("ui.skip")), AP.head(AP.data.back || "#main", AP.t("trends.title")),
      h("main", { id: "main", class: "sheet" }, AP.data.back && h("a", { class: "back", href: AP.data.back }, "← " + AP.t("trends.back")), head(),
        AP.data.kind === "index" ? indexView() : benchmarkView()));
    window.scrollTo(0, y);
    setTimeout(function () { app.style.minHeight = ""; }, 400);
    AP.applyTheme();
  };

  window.addEventListener("beforeprint", function () { AP.print(true); });
  window.addEventListener("afterprint", function () { AP.print(false); });
  AP.render();
  if (location.hash) requestAnimationFrame(function () { requestAnimationFrame(function () {
    const node = document.getElementById(location.hash.slice(1));
    if (node) node.scrollIntoView();
  }); });
})();
