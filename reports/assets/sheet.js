// A page of its own (comparison, estimates) made of the modules of the report page: navigation and parts.
(function () {
  const h = AP.h;
  const root = document.documentElement;
  const app = document.getElementById("app");

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
        AP.head("#verdict", AP.data.label),
        h("div", { class: "frame" }, nav(entries()), h("main", { id: "main" }, parts())));
      window.scrollTo(0, y);
      AP.applyTheme();
    };
    AP.render();
  };

  window.addEventListener("beforeprint", function () { AP.print(true); });
  window.addEventListener("afterprint", function () { AP.print(false); });
})();
