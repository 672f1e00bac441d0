// A page of its own (comparison, estimates) made of the modules of the report page: head, navigation, theme, print.
(function () {
  const h = AP.h;
  const root = document.documentElement;
  const app = document.getElementById("app");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  function applyTheme() {
    const chosen = AP.state.theme === "auto" ? (dark.matches ? "dark" : "light") : AP.state.theme;
    root.setAttribute("data-theme", printing ? "light" : chosen);
  }

  function top() {
    return h("header", { class: "top" },
      h("a", { class: "brand", href: "#verdict" }, "ascend-perf"),
      h("span", { class: "label", title: AP.data.label }, AP.data.label),
      h("div", { class: "controls screen" },
        h("div", { class: "switch", role: "group", "aria-label": AP.t("ui.language") }, [["en", "English", "en"], ["zh", "中文", "zh-CN"]].map(function (v) {
          return h("button", { type: "button", "aria-pressed": v[0] === AP.state.lang ? "true" : "false", lang: v[2], "data-value": v[0], on: { click: function () {
            AP.state.lang = v[0];
            AP.save();
            AP.render();
            app.querySelector("[data-value='" + v[0] + "']").focus({ preventScroll: true });
          } } }, v[1]);
        })),
        h("label", { class: "theme" }, h("span", { class: "off" }, AP.t("ui.theme")),
          h("select", { id: "theme", on: { change: function (e) { AP.state.theme = e.target.value; AP.save(); applyTheme(); } } },
            ["auto", "light", "dark"].map(function (t) { return h("option", { value: t, selected: t === AP.state.theme }, AP.t("ui.theme_" + t)); })))));
  }

  function nav(entries) {
    return h("nav", { class: "side screen", "aria-label": AP.t("ui.sections") },
      h("label", { class: "jump" }, h("span", { class: "off" }, AP.t("ui.jump")),
        h("select", { on: { change: function (e) { location.hash = e.target.value; } } },
          entries.map(function (e) { return h("option", { value: e[0] }, e[1]); }))),
      h("ol", null, entries.map(function (e) { return h("li", null, h("a", { href: "#" + e[0] }, e[1])); })));
  }

  // title: of the window; entries() gives [id, text] of the navigation, parts() the nodes of the page.
  AP.sheet = function (title, entries, parts) {
    // Tables ask for a rank and for kernels of the report page, which these pages have not.
    AP.chooseRank = function () {};
    AP.render = function () {
      AP.tip(null);
      const y = window.scrollY;
      root.lang = AP.state.lang === "zh" ? "zh-CN" : "en";
      document.title = AP.t(title) + " · " + AP.data.label.slice(0, 200) + " · ascend-perf";
      app.replaceChildren(
        h("a", { class: "skip", href: "#verdict" }, AP.t("ui.skip")),
        AP.banner(),
        top(),
        h("div", { class: "frame" }, nav(entries()), h("main", { id: "main" }, parts())));
      window.scrollTo(0, y);
      applyTheme();
    };
    AP.render();
  };

  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("figure.table").forEach(function (f) { f.unfold(); });
    printing = true;
    applyTheme();
  });
  window.addEventListener("afterprint", function () {
    printing = false;
    document.querySelectorAll("figure.table").forEach(function (f) { f.fold(); });
    applyTheme();
  });
  dark.addEventListener("change", applyTheme);
  window.addEventListener("scroll", function () { AP.tip(null); }, { passive: true });
  window.addEventListener("keydown", function (e) { if (e.key === "Escape") AP.tip(null); });
})();
