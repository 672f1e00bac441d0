"use strict";
// Page of ascend-perf, drawn from the embedded document. Every module adds to AP. Text from a trace only ever becomes a
// text node or an attribute value; there is no innerHTML in these files (a test looks for it).
const AP = {};

(function () {
  AP.data = JSON.parse(document.getElementById("data").textContent);

  // What the reader chose; kept for this report in this tab, so that a reload shows the same.
  const key = "ascend-perf-" + AP.data.id;
  const fresh = { lang: AP.data.lang, theme: "auto", rank: AP.data.focus, tables: {}, open: {} };
  AP.state = fresh;
  try {
    AP.state = Object.assign(fresh, JSON.parse(sessionStorage.getItem(key) || "{}"));
  } catch (error) {
    // Storage can be switched off for files; the page then just forgets.
  }
  if (!AP.data.words[AP.state.lang]) AP.state.lang = "en";
  AP.save = function () {
    try {
      sessionStorage.setItem(key, JSON.stringify(AP.state));
    } catch (error) {
      // See above.
    }
  };

  /** A text of the catalogue with its {placeholders} filled. */
  AP.t = function (name, values) {
    const text = AP.data.words[AP.state.lang][name];
    if (text === undefined) throw new Error("no text " + name);
    return text.replace(/\{(\w+)\}/g, function (whole, key) {
      return values && key in values ? String(values[key]) : whole;
    });
  };

  AP.has = function (name) {
    return name in AP.data.words[AP.state.lang];
  };

  /** The band over a page of simulated data: it stays in view, and stands on every printed page. */
  AP.banner = function () {
    if (AP.data.origin !== "simulated") return document.createDocumentFragment();
    return AP.h("aside", { class: "simulated-banner", "aria-label": AP.t("origin.simulated") },
      AP.h("strong", null, AP.data.mark ? AP.w(AP.data.mark) : AP.t("origin.simulated")), AP.h("span", null, AP.t("ui.colon") + AP.t("origin.banner")));
  };

  /** A text of the document: a string, or [English, Chinese]. */
  AP.w = function (text) {
    if (text === null || text === undefined) return "";
    return AP.glued(Array.isArray(text) ? text[AP.state.lang === "zh" ? 1 : 0] : String(text));
  };

  /** A figure and its unit stay on one line. */
  AP.glued = function (text) {
    return text.replace(/\u2009/g, "\u202f").replace(/(\d) (?=(?:%|[kMGT]?i?B(?:\/s)?|[mun]?s|[TGM]?FLOPS?|[MG]?Hz|W|°C)(?![A-Za-z]))/g, "$1\u00a0");
  };

  // Letters of scripts that are written from right to left, and what may stand between two words of them.
  const RTL = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
  const RTL_RUNS = /([\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]+(?:[ _.-]+[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]+)*)/u;

  const ROWS = /(\b[A-Z]-\d\d\b)/;

  /** Nodes of a text. Words written from right to left are isolated: they must not reorder the figures around them. */
  function texts(text, isHtml) {
    // The number of a row (N-05) does not break at its hyphen.
    if (isHtml && text.length < 4000 && ROWS.test(text)) {
      return text.split(ROWS).filter(Boolean).map(function (part) { return ROWS.test(part) ? AP.h("span", { class: "whole" }, document.createTextNode(part)) : texts(part, true); }).flat();
    }
    if (!isHtml || !RTL.test(text)) return [document.createTextNode(text)];
    return text.split(RTL_RUNS).filter(Boolean).map(function (run) {
      if (!RTL.test(run)) return document.createTextNode(run);
      const isolated = document.createElement("bdi");
      isolated.textContent = run;
      return isolated;
    });
  }

  function fill(node, props, children) {
    for (const name in props || {}) {
      const value = props[name];
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") for (const type in value) node.addEventListener(type, value[type]);
      else if (name === "style") for (const rule in value) node.style.setProperty(rule, value[rule]);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      if (child instanceof Node) node.append(child);
      else node.append.apply(node, texts(String(child), node instanceof HTMLElement && node.tagName !== "OPTION"));
    }
    return node;
  }

  /** An HTML element: AP.h("p", {class: "note"}, "text", element, [more]). */
  AP.h = function (tag, props) {
    return fill(document.createElement(tag), props, Array.prototype.slice.call(arguments, 2));
  };

  /** An SVG element. */
  AP.s = function (tag, props) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    return fill(node, props, Array.prototype.slice.call(arguments, 2));
  };

  /** Draw into `box` at its width, and again when the width changes. `draw(width)` returns the nodes. */
  AP.sized = function (box, draw) {
    let last = 0;
    const observer = new ResizeObserver(function (entries) {
      const width = Math.floor(entries[0].contentRect.width);
      if (width < 50 || Math.abs(width - last) < 2) return;
      last = width;
      // In the next frame: drawing inside the callback changes sizes that are still being observed.
      requestAnimationFrame(function () {
        const made = [].concat(draw(width));
        // On paper a drawing that was made for a wider window shrinks.
        made.forEach(function (node) { if (node.tagName === "svg") node.setAttribute("viewBox", "0 0 " + node.getAttribute("width") + " " + node.getAttribute("height")); });
        box.replaceChildren.apply(box, made);
      });
    });
    observer.observe(box);
    return box;
  };

  const tip = AP.h("div", { class: "tip", hidden: true, role: "presentation" });
  /** Show lines beside the pointer or the element; null hides. */
  AP.tip = function (lines, x, y) {
    if (!tip.isConnected) document.body.append(tip);
    if (!lines) {
      tip.hidden = true;
      return;
    }
    tip.replaceChildren.apply(tip, lines.filter(Boolean).map(function (line, i) {
      return AP.h("div", { class: i === 0 ? "tip-head" : null }, line);
    }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, x + 14), window.innerWidth - box.width - 8);
    const top = y + 18 + box.height > window.innerHeight ? y - box.height - 10 : y + 18;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  };

  /** Handlers that show a tip on hover and on focus. */
  AP.tipped = function (lines) {
    return {
      pointerenter: function (e) { AP.tip(lines(), e.clientX, e.clientY); },
      pointermove: function (e) { AP.tip(lines(), e.clientX, e.clientY); },
      pointerleave: function () { AP.tip(null); },
      focus: function (e) {
        const box = e.target.getBoundingClientRect();
        AP.tip(lines(), box.left, box.bottom - 12);
      },
      blur: function () { AP.tip(null); },
    };
  };

  /** Copy text; pages opened from a file may lack the clipboard API. */
  AP.copy = function (text, button) {
    function done() {
      const before = button.textContent;
      button.textContent = AP.t("ui.copied");
      setTimeout(function () { button.textContent = before; }, 1200);
    }
    function byHand() {
      const area = AP.h("textarea", { class: "off", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
      done();
    }
    if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(done, byHand);
    else byHand();
  };

  /** Offer text as a file. */
  AP.offer = function (name, text, type) {
    const url = URL.createObjectURL(new Blob([text], { type: type }));
    AP.h("a", { href: url, download: name }).click();
    setTimeout(function () { URL.revokeObjectURL(url); }, 10000);
  };

  AP.rankName = function (rank) {
    return rank === null || rank === undefined ? AP.t("ui.rank_unknown") : AP.t("ui.rank_n", { rank: rank });
  };

  /** A column of an embedded table: {get(row) -> number | string | boolean | null, ...}. */
  AP.column = function (table, name) {
    const column = table && table.columns.find(function (c) { return c.name === name; });
    return column ? AP.reader(column) : null;
  };

  /** Numbers of a packed column (see packed.py), null for unknown. */
  function unpacked(column) {
    const rows = column.packed.rows, bytes = atob(column.packed.bytes), made = new Array(rows);
    let at = 0;
    function next() {
      let value = 0, unit = 1, byte;
      do {
        byte = bytes.charCodeAt(at++);
        value += (byte & 127) * unit;
        unit *= 128;
      } while (byte > 127);
      return value;
    }
    function number(code) { return code === 0 ? null : code % 2 ? (code - 1) / 2 : -code / 2; }
    if (column.packed.as === "runs") {
      for (let row = 0; row < rows;) {
        const value = number(next()), end = row + next();
        while (row < end) made[row++] = value;
      }
      return made;
    }
    let last = 0;
    for (let row = 0; row < rows; row++) {
      const value = number(next());
      made[row] = value === null || column.packed.as === "plain" ? value : last += value;
    }
    return made;
  }

  AP.reader = function (column) {
    if (column.packed && !column.data && !column.codes) column[column.texts ? "codes" : "data"] = unpacked(column);
    const isText = column.codes !== undefined;
    return {
      name: column.name,
      unit: column.unit,
      title: column.title,
      clock: Boolean(column.clock),
      mark: column.mark || null,
      isText: isText,
      codes: column.codes,
      texts: column.texts,
      get: isText
        ? function (row) { return column.codes[row] < 0 ? null : AP.w(column.texts[column.codes[row]]); }
        : function (row) { return column.data[row]; },
      // The text as the analyzer wrote it, whatever the language: what charts decide by.
      key: function (row) {
        if (!isText) return column.data[row];
        const text = column.codes[row] < 0 ? null : column.texts[column.codes[row]];
        return Array.isArray(text) ? text[0] : text;
      },
    };
  };

  /** Embedded tables of a name; of the chosen rank when they differ by rank. */
  AP.tables = function (name) {
    return AP.data.tables.filter(function (table) {
      return table.name === name && (table.scope === "job" || table.rank === AP.state.rank);
    });
  };

  AP.table = function (name) {
    return AP.tables(name)[0] || null;
  };
})();
