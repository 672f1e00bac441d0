// The job of several ranks: what was seen of it, the strip, stages and groups; and the way from a rank to its details,
// in this page or in one of its own (see rank_pages.py).
(function () {
  const h = AP.h;
  const TABLES = ["job-stages", "job-groups"];
  const pages = AP.data.pages;
  const linked = new Set(pages ? pages.ranks : []);
  const chosen = new Map(AP.data.chosen.map(function (c) { return [c.rank, c]; }));

  AP.hasDetails = function (rank) { return chosen.has(rank); };

  AP.whyOf = function (rank) {
    const found = chosen.get(rank);
    return found && found.why ? AP.w(found.why) : null;
  };

  /** Where a rank's own page lies, relative to this one; null when it has none. */
  AP.pageOf = function (rank) {
    if (!linked.has(rank)) return null;
    const digits = rank === null ? "unknown" : (rank < 0 ? "-" : "") + String(Math.abs(rank)).padStart(rank < 0 ? 4 : 5, "0");
    return (pages.is_rank ? "" : "ranks/") + "rank-" + digits + ".html";
  };

  /** To the details of a rank: below in this page, in its own page, or nowhere. */
  AP.goRank = function (rank) {
    if (AP.hasDetails(rank)) {
      AP.chooseRank(rank);
      // The steps of all ranks are one table: the sections that switch come behind it.
      const section = AP.data.sections.find(function (s) {
        return s.key !== "steps" && AP.data.tables.some(function (t) { return t.section === s.key && t.scope === "rank" && t.rank === rank; });
      });
      const node = section && document.getElementById("section-" + section.key);
      if (!node) return;
      node.setAttribute("tabindex", "-1");
      node.scrollIntoView();
      node.focus({ preventScroll: true });
    } else if (AP.pageOf(rank)) location.href = AP.pageOf(rank);
  };

  /** `#rank-17`: that rank's details when they are here, else its place in the strip. */
  AP.followRank = function (id) {
    const named = /^rank-(\d+)$/.exec(id);
    if (!named || !AP.data.job) return false;
    const rank = Number(named[1]);
    if (AP.hasDetails(rank)) AP.chooseRank(rank);
    if (AP.pinRank) AP.pinRank(rank);
    document.getElementById("job").scrollIntoView();
    return true;
  };

  // ---- the choice of a rank ------------------------------------------------------------------------------------------

  function named(rank) {
    const why = AP.whyOf(rank);
    return AP.rankName(rank) + (why ? " · " + why : "");
  }

  function option(rank, text, value) {
    return h("option", { value: value, selected: rank === AP.state.rank && value.charAt(0) === "#" }, text);
  }

  /** In the side navigation: switches every section to a rank, or opens its page. */
  AP.rankNav = function () {
    if (pages && pages.is_rank) {
      const select = h("select", { id: "rank-choice", on: { change: function (e) { location.href = e.target.value; } } },
        pages.ranks.map(function (rank) { return h("option", { value: AP.pageOf(rank), selected: rank === pages.of }, AP.rankName(rank)); }));
      return h("div", { class: "rank-nav" }, h("label", { for: "rank-choice" }, AP.t("ui.rank")), select, back());
    }
    if (AP.data.ranks.length < 2) return null;
    const inside = AP.data.chosen.map(function (c) { return c.rank; });
    const others = pages ? pages.ranks.filter(function (rank) { return !AP.hasDetails(rank); }) : [];
    const select = h("select", {
      id: "rank-choice",
      on: {
        change: function (e) {
          const value = e.target.value;
          if (value.charAt(0) !== "#") {
            location.href = value;
            return;
          }
          AP.chooseRank(inside[Number(value.slice(1))]);
          document.getElementById("rank-choice").focus({ preventScroll: true });
        },
      },
    }, h("optgroup", { label: AP.t("job.in_page") }, inside.map(function (rank, i) { return option(rank, named(rank), "#" + i); })),
    others.length ? h("optgroup", { label: AP.t("job.own_pages") }, others.map(function (rank) { return option(rank, AP.rankName(rank), AP.pageOf(rank)); })) : null);
    const why = AP.whyOf(AP.state.rank);
    const page = AP.pageOf(AP.state.rank);
    return h("div", { class: "rank-nav" }, h("label", { for: "rank-choice" }, AP.t("job.details")), select,
      why && h("p", { class: "muted" }, why),
      page && h("a", { href: page }, AP.t("job.open_page", { rank: AP.state.rank === null ? "?" : AP.state.rank })));
  };

  function back() {
    return h("a", { href: "../report.html" + (pages.of === null ? "" : "#rank-" + pages.of) }, "← " + AP.t("job.back"));
  }

  /** On a rank's own page: which rank of how many, and the way back. */
  AP.rankPageNote = function () {
    if (!pages || !pages.is_rank) return null;
    return h("span", { class: "rank-note" }, AP.t("job.rank_page", { rank: pages.of === null ? "?" : pages.of, seen: AP.format.significant(pages.ranks.length, 12) }), " · ", back());
  };

  // ---- the job -------------------------------------------------------------------------------------------------------

  /** Tables of the job that stand with it and not in their section. */
  AP.isOfJob = function (table) {
    return Boolean(AP.data.job) && TABLES.indexOf(table.name) >= 0;
  };

  AP.jobView = function () {
    const job = AP.data.job;
    if (!job) return null;
    AP.pinRank = null;
    return h("section", { id: "job", class: "part" },
      h("h2", null, AP.t("job.title")),
      h("dl", { class: "facts job-facts" }, job.facts.map(function (f) { return h("div", null, h("dt", null, AP.w(f[0])), h("dd", null, AP.w(f[1]))); })),
      h("p", { class: "job-waits" }, h("strong", null, AP.t("job.waits_title") + AP.t("ui.colon")), job.waits ? AP.w(job.waits) : h("span", { class: "muted" }, AP.t("job.waits_unknown"))),
      job.strip && AP.rankStrip(job.strip),
      TABLES.map(AP.table).filter(Boolean).map(function (t) { return AP.tableView(t, "job/" + t.name); }));
  };
})();
