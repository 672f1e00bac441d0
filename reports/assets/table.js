// Tables: sort, search, sticky head, unit in the head, figures right-aligned with a bar behind, copy as CSV.
(function () {
  const h = AP.h;
  const FIRST_ROWS = 12;
  const PAPER_ROWS = 100; // on paper, which cannot be searched
  const MOST_ROWS = 2000; // More rows than this in the document make the browser slow; searching narrows them down.

  const MOST_BREAKABLE = 400;
  const SHAPES = /shapes$/;
  const LONG = 90; // Texts longer than this are cut to two lines; a click, Enter or the space bar shows all of them.

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    const x = AP.format.written(String(a));
    const y = x === null ? null : AP.format.written(String(b));
    if (y !== null) return x - y;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  /** Row numbers of a table after search and sort. Unknown comes last either way. */
  function arranged(columns, rows, state) {
    let order = [];
    const wanted = (state.query || "").toLowerCase();
    for (let row = 0; row < rows; row++) {
      const fits = !wanted || columns.some(function (c) {
        const value = c.reader.get(row);
        if (value === null || value === undefined) return false;
        return (typeof value === "string" ? value : c.style.text(value)).toLowerCase().indexOf(wanted) >= 0;
      });
      if (fits) order.push(row);
    }
    const by = columns.find(function (c) { return c.reader.name === state.sort; });
    if (by) {
      const sign = state.down ? -1 : 1;
      order.sort(function (a, b) {
        const x = by.reader.get(a);
        const y = by.reader.get(b);
        const noX = x === null || x === undefined;
        const noY = y === null || y === undefined;
        if (noX || noY) return noX - noY || a - b;
        return sign * compare(x, y) || a - b;
      });
    }
    return order;
  }

  /** Bars stand behind ratios (against 1) and behind the first amount of time (against the largest). */
  function barScale(columns, rows) {
    const scales = {};
    let timed = false;
    for (const c of columns) {
      if (!c.style.figures || c.reader.clock) continue;
      if (c.reader.unit === "ratio") scales[c.reader.name] = 1;
      else if (!timed && ["ns", "us", "ms", "s"].indexOf(c.reader.unit) >= 0) {
        timed = true;
        let top = 0;
        for (let row = 0; row < rows; row++) top = Math.max(top, c.reader.get(row) || 0);
        if (top > 0 && rows > 1) scales[c.reader.name] = top;
      }
    }
    return scales;
  }

  function csv(columns, order) {
    function cell(text) {
      // A spreadsheet would run a cell that starts like a formula.
      if (/^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+(e[-+]?\d+)?$/.test(text)) text = "'" + text;
      return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
    }
    const lines = [columns.map(function (c) { return cell(c.reader.name + (c.reader.mark ? " (" + AP.w(c.reader.mark) + ")" : "")); }).join(",")];
    for (const row of order) {
      lines.push(columns.map(function (c) {
        const value = c.reader.get(row);
        return value === null || value === undefined ? "" : cell(String(value));
      }).join(","));
    }
    return lines.join("\n") + "\n";
  }

  // A function of C++ with its namespaces and template arguments: [before, its own name, behind].
  const QUALIFIED = /^((?:void\s+)?(?:(?:\w+|\(anonymous namespace\))::)*)(\w+)([<(].*)?$/;

  /** A long name that breaks where its words end, so that few columns need a wide place; copied, it is as it was. */
  function breakable(text) {
    if (!text) return text;
    const found = /^void\s|</.test(text) && QUALIFIED.exec(text);
    if (!found) return broken(text);
    return [found[1], found[2], found[3]].map(function (part, i) { return part && (i === 1 ? broken(part) : h("span", { class: i ? "muted" : "muted before" }, broken(part))); });
  }

  // A part of a long word with what ends it; a point does, but for the one of a file's ending.
  const PIECE = /(?:[^_:;,</=|.-]|\.(?![A-Z_]))+(?:[_:;,/=|-]|\.(?=[A-Z_]))*|(?:[_:;,</=|-]|\.(?=[A-Z_]))+/g;

  function broken(text) {
    if (text.length > MOST_BREAKABLE) return [broken(text.slice(0, MOST_BREAKABLE)), text.slice(MOST_BREAKABLE)];
    return text.split(/(\s+)/).map(function (word) {
      if (word.length < 13) return word;
      return word.match(PIECE).map(function (part, i) { return [i ? h("wbr") : null, humps(part)]; });
    });
  }

  /** A long word of several (MaxPoolGradWithArgmax) breaks between them. */
  function humps(word) {
    if (word.length < 18) return word;
    return word.split(/([a-z0-9])(?=[A-Z][a-z])/).map(function (part, i) { return i && i % 2 === 0 ? [h("wbr"), part] : part; });
  }

  /** Shapes end with a semicolon for each argument that is no tensor. */
  function ofTensors(text) {
    return text.replace(/;+$/, "") || "–";
  }

  /** A long text, two lines of it until it is asked for. It stays text that can be marked and copied. */
  function clamped(text) {
    function turn(e) {
      if (e.type === "keydown" && e.key !== "Enter" && e.key !== " ") return;
      if (e.type === "click" && String(window.getSelection())) return;
      e.preventDefault();
      span.setAttribute("aria-expanded", span.classList.toggle("clamp") ? "false" : "true");
    }
    const span = h("span", { class: "cut clamp", role: "button", tabindex: "0", "aria-expanded": "false", title: AP.t("ui.show_whole"), on: { click: turn, keydown: turn } }, breakable(text));
    return span;
  }

  /** A short name for a link to a kernel: FNV-1a of its name. */
  AP.kernelId = function (name) {
    let hash = 0x811c9dc5;
    for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
    return "kernel-" + (hash >>> 0).toString(16);
  };

  /** Follow a link to a kernel: its row in the table of kernels, of this rank or another one. */
  AP.followKernel = function (id) {
    if (!/^kernel-[0-9a-f]{1,8}$/.test(id)) return false;
    const holds = AP.data.tables.filter(function (t) {
      const name = t.name === "top-kernels" && AP.column(t, "name");
      if (!name) return false;
      for (let row = 0; row < t.rows; row++) if (AP.kernelId(String(name.key(row))) === id) return true;
      return false;
    });
    if (!holds.length) return false;
    if (!holds.some(function (t) { return t.rank === AP.state.rank; })) AP.chooseRank(holds[0].rank);
    const figure = document.querySelector("figure[data-table='top-kernels']");
    if (!figure) return false;
    figure.showAll();
    const row = document.getElementById(id);
    if (!row) return false;
    AP.unfoldAround(row);
    row.classList.add("hit");
    row.scrollIntoView({ block: "center" });
    row.setAttribute("tabindex", "-1");
    row.focus({ preventScroll: true });
    return true;
  };

  function known(column) {
    return column.codes ? column.codes.some(function (c) { return c >= 0; }) : column.data.some(function (v) { return v !== null && v !== undefined; });
  }

  /** The element of an embedded table. `id` keeps its state; `onRow(row)` makes rows selectable; `above`, a drawing of the rows. */
  AP.tableView = function (table, id, options) {
    options = options || {};
    const state = AP.state.tables[id] || (AP.state.tables[id] = { sort: null, down: false, query: "", all: false });
    const hidden = options.hide || [];
    // A column without a single known cell is named below the table instead of filling it with dashes.
    const absent = table.columns.filter(function (c) { return table.rows > 0 && !known(c); });
    const readers = table.columns
      .filter(function (c) { return hidden.indexOf(c.name) < 0 && absent.indexOf(c) < 0; })
      .map(AP.reader);
    const styles = AP.format.columnStyles(readers, table.rows, table.name);
    const columns = readers.map(function (reader, i) { return { reader: reader, style: styles[i] }; });
    const bars = barScale(columns, table.rows);
    const named = table.name === "top-kernels" && columns.find(function (c) { return c.reader.name === "name"; });
    const kernels = named ? named.reader : null;
    let folded = new Set(); // numbers of columns that do not stand
    let isPaper = false; // which cannot be clicked: many rows are there, and no column beyond its edge
    const body = h("tbody");
    const headRow = h("tr");
    const scroll = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": AP.w(table.title) });
    const count = h("span", { class: "count", "aria-live": "polite" });
    const more = h("button", { class: "quiet more", type: "button" });
    const others = h("button", { class: "quiet more columns", type: "button" });
    const othersNamed = h("span", { class: "count" });
    const heads = columns.map(function (c) {
      const title = AP.w(c.reader.title);
      const label = [title, c.style.unit ? h("span", { class: "unit" }, " " + c.style.unit) : null];
      const button = h("button", {
        type: "button", class: "head", title: AP.t("ui.sort_hint"),
        on: {
          click: function () {
            const first = c.style.figures && !c.reader.clock;
            if (state.sort !== c.reader.name) Object.assign(state, { sort: c.reader.name, down: first });
            else state.down = !state.down;
            AP.save();
            draw();
          },
        },
      }, h("span", { class: "head-text" + (!c.style.figures && isWider(c, title.length) ? " line" : "") }, label), h("span", { class: "arrow", "aria-hidden": "true" }));
      return h("th", { scope: "col", class: c.style.figures ? "figure" : null }, button);
    });

    /** Whether a cell of a column is longer than its heading, which then stands on one line. */
    function isWider(c, length) {
      for (let row = 0; row < Math.min(table.rows, 40); row++) if (c.style.text(c.reader.get(row)).length > length) return true;
      return false;
    }

    function draw() {
      const order = arranged(columns, table.rows, state);
      const all = isPaper || state.all;
      const limit = isPaper ? PAPER_ROWS : all ? MOST_ROWS : FIRST_ROWS;
      const ids = new Set();
      const open = columns.map(function (c, i) { return i; }).filter(function (i) { return !folded.has(i); });
      heads.forEach(function (head, i) {
        const sorted = columns[i].reader.name === state.sort;
        head.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
      });
      headRow.replaceChildren.apply(headRow, open.map(function (i) { return heads[i]; }));
      body.replaceChildren.apply(body, order.slice(0, limit).map(function (row) {
        const id = kernels && AP.kernelId(String(kernels.key(row)));
        const first = id && !ids.has(id);
        if (first) ids.add(id);
        return h("tr", { id: first ? id : null }, open.map(function (i) { return cellOf(columns[i], row, i); }));
      }));
      if (!order.length) body.append(h("tr", null, h("td", { colspan: open.length, class: "empty" }, AP.t("ui.no_match"))));
      const shown = Math.min(limit, order.length);
      count.textContent = shown < table.rows ? AP.t("ui.rows", { shown: shown, count: AP.format.significant(table.rows, 12) }) : "";
      more.hidden = order.length <= FIRST_ROWS;
      scroll.classList.toggle("all", all && order.length > FIRST_ROWS);
      more.textContent = all ? AP.t("ui.fewer_rows") : AP.t("ui.all_rows", { count: AP.format.significant(Math.min(order.length, MOST_ROWS), 12) });
      others.hidden = !folded.size && !state.wide;
      others.textContent = state.wide && !isPaper ? AP.t("ui.fewer_columns") : AP.t("ui.more_columns");
      othersNamed.textContent = Array.from(folded).sort(function (a, b) { return a - b; }).map(function (i) { return AP.w(columns[i].reader.title); }).join(" · ");
    }

    function cellOf(c, row, i) {
      const value = c.reader.get(row);
      const unknown = value === null || value === undefined || value === "";
      const props = { class: (c.style.figures ? "figure" : "word") + (unknown ? " unknown" : "") };
      if (unknown) props.title = AP.t("ui.unknown");
      let content = c.style.text(value);
      if (!c.style.figures && SHAPES.test(c.reader.name)) content = ofTensors(content);
      if (!c.style.figures && content.length > 32) {
        props.class += " long";
        content = content.length > LONG ? clamped(content) : breakable(content);
      } else if (!c.style.figures && content.length > 14) {
        props.class += " phrase";
        content = breakable(content);
      }
      if (bars[c.reader.name] && typeof value === "number") {
        const share = Math.max(0, Math.min(1, value / bars[c.reader.name]));
        props.style = { "--fill": share.toFixed(3) };
        props.class += " filled";
      }
      if (i === 0 && options.onRow && options.selectable(row)) {
        content = h("button", { type: "button", class: "link", on: { click: function () { options.onRow(row); } } }, content);
      }
      const link = kernels && c.reader === kernels && !unknown && h("a", {
        class: "anchor screen", href: "#" + AP.kernelId(String(kernels.key(row))), "aria-label": AP.t("ui.link_to_kernel"), title: AP.t("ui.link_to_kernel"),
      }, "#");
      return h("td", props, content, link);
    }

    more.addEventListener("click", function () {
      state.all = !state.all;
      AP.save();
      draw();
    });
    others.addEventListener("click", function () {
      state.wide = !state.wide;
      AP.save();
      AP.fitTable(ruler);
    });
    const search = table.rows > FIRST_ROWS && h("input", {
      type: "search", placeholder: AP.t("ui.search"), "aria-label": AP.t("ui.search") + AP.t("ui.colon") + AP.w(table.title), value: state.query,
      on: { input: function (e) { state.query = e.target.value; AP.save(); draw(); } },
    });
    const copy = h("button", {
      type: "button", class: "quiet",
      on: { click: function (e) { AP.copy(csv(columns, arranged(columns, table.rows, state)), e.currentTarget); } },
    }, AP.t("ui.copy_csv"));
    const name = AP.w(table.title);
    const node = h("table", null, h("caption", { class: "off" }, name), h("thead", null, headRow), body);
    const ruler = AP.keepToWidth(table, columns, {
      scroll: scroll, table: node,
      show: function (out) { folded = out; draw(); },
      widths: function () { return heads.map(function (head) { return head.offsetWidth; }); },
      sorted: function () { return columns.findIndex(function (c) { return c.reader.name === state.sort; }); },
      wide: function () { return Boolean(state.wide) && !isPaper; },
      count: function () { return columns.length - folded.size; },
    });
    draw();
    scroll.append(node);
    const figure = h("figure", { class: "table", "data-table": table.name }, ruler,
      h("div", { class: "table-head" },
        h("h3", null, name, options.rank !== undefined ? h("span", { class: "of" }, " · " + AP.rankName(options.rank)) : null),
        h("div", { class: "tools" }, search, copy)),
      table.note ? h("p", { class: "note" }, AP.w(table.note)) : null,
      options.above,
      scroll,
      h("div", { class: "table-foot" }, count, more, others, othersNamed),
      absent.length && table.section !== "quality" ? h("p", { class: "note" }, AP.t("ui.not_in_data") + AP.t("ui.colon") + absent.map(function (c) { return AP.w(c.title); }).join(AP.t("ui.comma"))) : null);
    figure.unfold = function () {
      isPaper = true;
      draw();
    };
    figure.fold = function () {
      isPaper = false;
      draw();
    };
    figure.showAll = function () {
      Object.assign(state, { all: true, query: "" });
      if (search) search.value = "";
      draw();
    };
    return figure;
  };
})();
