// The page as a whole: head, navigation, verdict, tiles, and what happens on a key, a hash or a print.
(function () {
  const h = AP.h;
  const root = document.documentElement;
  const app = document.getElementById("app");

  AP.onTheme(function () {
    AP.redrawTimeline();
    AP.redrawFlames();
    AP.redrawStrip();
  });

  function entries() {
    return [["verdict", AP.t("ui.top"), null], ["job", AP.t("job.title"), null], ["where", AP.t("ui.where"), null], ["findings", AP.t("ui.first"), null]]
      .filter(function (e) { return e[0] !== "where" || AP.data.bars.length; })
      .filter(function (e) { return e[0] !== "job" || AP.data.job; })
      .concat(AP.data.sections.map(function (s) { return ["section-" + s.key, AP.t("section." + s.key), s]; }));
  }

  function nav() {
    const list = entries();
    return h("nav", { class: "side screen", "aria-label": AP.t("ui.sections") },
      AP.rankNav(),
      h("label", { class: "jump" }, h("span", { class: "off" }, AP.t("ui.jump")),
        h("select", { on: { change: function (e) { location.hash = e.target.value; } } },
          list.map(function (e) {
            const mark = e[2] ? { finding: "● ", clean: "✓ ", no_data: "– ", left_out: "– ", failed: "! ", info: "" }[e[2].standing] : "";
            return h("option", { value: e[0] }, mark + e[1]);
          }))),
      h("ol", null, list.map(function (e) {
        return h("li", { class: e[2] ? null : "lead" }, h("a", { href: "#" + e[0] }, e[2] ? AP.standing(e[2]) : null, e[1]));
      })));
  }

  function verdict() {
    const v = AP.data.verdict;
    const first = AP.data.findings[0];
    return h("section", { id: "verdict", class: "verdict" + (first ? " sev-" + first.severity : v.clean ? " clean" : "") },
      h("p", { class: "badges" },
        h("span", { class: "badge " + AP.data.origin }, AP.t("origin." + AP.data.origin)),
        h("span", { class: "muted" }, AP.data.generator), AP.rankPageNote(),
        AP.data.doubts && h("a", { class: "doubt", href: "#section-quality" }, h("span", { "aria-hidden": "true" }, "◆ "), AP.w(AP.data.doubts))),
      h("h1", null, AP.w(v.lead), " ", h("strong", null, AP.w(v.main))),
      v.gain ? h("p", { class: "gain" }, h("strong", null, AP.w(v.gain)), first ? [" — ", h("a", { href: "#finding-1" }, AP.t("ui.why") + " · " + AP.t("ui.remedy"))] : null) : null,
      h("dl", { class: "facts" }, AP.data.facts.map(function (f) { return h("div", null, h("dt", null, AP.w(f[0])), h("dd", null, AP.w(f[1]))); })));
  }

  function tile(t) {
    const state = AP.has("tile.state_" + t.state) ? AP.t("tile.state_" + t.state) : null;
    const range = t.healthy ? AP.t("tile.healthy", { low: AP.format.quantity(t.healthy[0], "ratio"), high: AP.format.quantity(t.healthy[1], "ratio") }) : null;
    return h("div", { class: "tile t-" + t.state, tabindex: "0", on: AP.tipped(function () { return [AP.w(t.label), AP.w(t.hint), range, state]; }) },
      h("div", { class: "tile-label" }, AP.w(t.label)),
      h("div", { class: "tile-value" + (/\d/.test(AP.w(t.value)) ? "" : " words") }, AP.w(t.value)),
      t.share !== null ? h("div", { class: "gauge", role: "img", "aria-label": [AP.w(t.label) + AP.t("ui.colon") + AP.format.quantity(t.share, "ratio"), range, state].filter(Boolean).join("; ") },
        t.healthy && h("span", { class: "healthy", style: { left: t.healthy[0] * 100 + "%", width: (t.healthy[1] - t.healthy[0]) * 100 + "%" } }),
        h("span", { class: "level", style: { width: (t.share * 100).toFixed(1) + "%" } })) : null,
      // A range in brackets stays on one line.
      h("div", { class: "tile-note" }, AP.w(t.note).replace(/[（(][^（()）]{1,16}[)）]/g, function (range) { return "\u200b" + range.replace(/ /g, "\u00a0"); })),
      h("p", { class: "off" }, AP.w(t.hint)));
  }

  AP.chooseRank = function (rank) {
    AP.state.rank = rank;
    if (AP.state.strip) AP.state.strip.rank = rank;
    AP.save();
    AP.render();
  };

  /** A text for places that hold one line. */
  function short(text) {
    return text.length > 200 ? text.slice(0, 200) + "…" : text;
  }

  let watcher = null;
  AP.render = function () {
    AP.tip(null);
    AP.forgetTimeline();
    AP.forgetFlames();
    AP.forgetStrip();
    const y = window.scrollY;
    const held = app.offsetHeight;
    root.lang = AP.state.lang === "zh" ? "zh-CN" : "en";
    document.title = short(AP.w(AP.data.verdict.main)) + (AP.data.label ? " · " + short(AP.data.label) : "") + " · ascend-perf";
    // Charts get their height a frame later; holding it keeps the reader's place.
    app.style.minHeight = held + "px";
    app.replaceChildren(
      h("a", { class: "skip", href: "#verdict" }, AP.t("ui.skip")),
      AP.banner(),
      AP.head("#verdict", AP.data.label),
      h("div", { class: "frame" }, nav(),
        h("main", { id: "main" },
          verdict(),
          h("section", { id: "tiles", class: "tiles" }, AP.data.tiles.map(tile)),
          AP.jobView(),
          AP.barsView(),
          AP.findingsView(),
          AP.data.sections.map(AP.sectionView))));
    window.scrollTo(0, y);
    setTimeout(function () { app.style.minHeight = ""; }, 400);
    AP.applyTheme();
    watch();
  };

  /** Mark the section being read in the navigation. */
  function watch() {
    if (watcher) watcher.disconnect();
    const links = {};
    app.querySelectorAll("nav.side a").forEach(function (a) { links[a.getAttribute("href").slice(1)] = a; });
    const jump = app.querySelector(".jump select");
    const seen = new Set();
    watcher = new IntersectionObserver(function (list) {
      list.forEach(function (e) { if (e.isIntersecting) seen.add(e.target.id); else seen.delete(e.target.id); });
      const now = Object.keys(links).find(function (id) { return seen.has(id); });
      if (!now) return;
      Object.keys(links).forEach(function (id) {
        if (id === now) links[id].setAttribute("aria-current", "true");
        else links[id].removeAttribute("aria-current");
      });
      jump.value = now;
    }, { rootMargin: "-90px 0px -60% 0px" });
    Object.keys(links).forEach(function (id) {
      const node = document.getElementById(id);
      if (node) watcher.observe(node);
    });
  }

  /** Open a fold and every fold around it. */
  AP.unfoldAround = function (node) {
    for (let at = node; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };

  function follow() {
    let id = location.hash.slice(1);
    try {
      id = decodeURIComponent(id);
    } catch (error) {
      // A stray percent sign: the text as it is leads nowhere, or where it says.
    }
    if (AP.followRank(id)) return;
    if (AP.followTimeline(id)) return;
    if (AP.followKernel(id)) return;
    const node = id && document.getElementById(id);
    if (!node) return;
    AP.unfoldAround(node);
    node.scrollIntoView();
    if (!node.hasAttribute("tabindex")) node.setAttribute("tabindex", "-1");
    node.focus({ preventScroll: true });
  }

  const PAPER = { width: 1020, height: 620 }; // px of a landscape page for a drawing

  /** How much drawings on a canvas must shrink to keep to a page. */
  function shrink() {
    document.querySelectorAll(".timeline-box, .strip-box, .flame canvas").forEach(function (node) {
      if (!node.offsetWidth) return;
      node.style.setProperty("--drawn", node.offsetWidth + "px");
      node.style.setProperty("--shrink", Math.min(1, PAPER.width / node.offsetWidth, PAPER.height / node.offsetHeight).toFixed(3));
    });
  }

  let folded = null;
  window.addEventListener("beforeprint", function () {
    shrink();
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (d) { d.open = true; });
    AP.print(true);
  });
  window.addEventListener("afterprint", function () {
    (folded || []).forEach(function (d) { d.open = false; });
    folded = null;
    AP.print(false);
  });
  window.addEventListener("hashchange", follow);

  AP.render();
  if (location.hash) requestAnimationFrame(function () { requestAnimationFrame(follow); });
})();
