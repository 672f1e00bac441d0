// The head of every page with its choices of language and theme, what ends a tip, and how a page goes on paper.
(function () {
  const h = AP.h;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  let redraw = function () {};

  AP.applyTheme = function () {
    const chosen = AP.state.theme === "auto" ? (dark.matches ? "dark" : "light") : AP.state.theme;
    document.documentElement.setAttribute("data-theme", printing ? "light" : chosen);
    redraw();
  };

  /** `draw()` is called with each change of theme: pixels on a canvas know no style sheet. */
  AP.onTheme = function (draw) { redraw = draw; };

  /** `href`: where the name leads. */
  AP.head = function (href, label) {
    return h("header", { class: "top" },
      h("a", { class: "brand", href: href }, "ascend-perf"),
      h("span", { class: "label", title: label }, label),
      h("div", { class: "controls screen" },
        h("div", { class: "switch", role: "group", "aria-label": AP.t("ui.language") }, [["en", "English", "en"], ["zh", "中文", "zh-CN"]].map(function (v) {
          return h("button", { type: "button", "aria-pressed": v[0] === AP.state.lang ? "true" : "false", lang: v[2], "data-value": v[0], on: { click: function () {
            AP.state.lang = v[0];
            AP.save();
            AP.render();
            document.querySelector("header [data-value='" + v[0] + "']").focus({ preventScroll: true });
          } } }, v[1]);
        })),
        h("label", { class: "theme" }, h("span", { class: "off" }, AP.t("ui.theme")),
          h("select", { id: "theme", on: { change: function (e) { AP.state.theme = e.target.value; AP.save(); AP.applyTheme(); } } },
            ["auto", "light", "dark"].map(function (t) { return h("option", { value: t, selected: t === AP.state.theme }, AP.t("ui.theme_" + t)); })))));
  };

  /** Paper is light and shows all rows of a table. */
  AP.print = function (on) {
    document.querySelectorAll("figure.table").forEach(function (f) { if (on) f.unfold(); else f.fold(); });
    if (AP.fitTables) AP.fitTables(on); // a page without tables has not their module
    printing = on;
    AP.applyTheme();
  };

  dark.addEventListener("change", function () { AP.applyTheme(); });
  window.addEventListener("scroll", function () { AP.tip(null); }, { passive: true });
  window.addEventListener("keydown", function (e) { if (e.key === "Escape") AP.tip(null); });
})();
