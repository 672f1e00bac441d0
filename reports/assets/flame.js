// Flame graphs as icicles on a canvas: zoom by click and keyboard, search with the summed share, folded stacks.
(function () {
  const h = AP.h;
  const q = AP.format.quantity;
  const ROW = 20; // px of one level
  const MOST_LEVELS = 32; // levels that are drawn; the others are there after a click
  const STRAIGHT = 0.99; // share of its caller from which a single frame below it is drawn with it
  const NARROWEST = 0.6; // px; narrower frames are not drawn
  const WORDS = { "device-module": "module", "device-stack": "stack", "device-op": "op", host: "host" };

  // Colours of the report; frames of the host differ in shade by what they are.
  const FILL = {
    thread: "host-4", python: "host-2", module: "host", range: "host-4", op: "host-1", runtime: "host-3", backward: "host-4",
    kernel: "computing", communication: "transfer", copy: "copy", not_attributed: "idle", rest: "idle-3", all: "panel",
  };
  const ORDER = ["module", "python", "range", "op", "runtime", "thread", "backward", "kernel", "communication", "copy", "not_attributed", "rest"];
  const HOST = ["thread", "python", "module", "range", "op", "backward"];

  let shown = [];
  AP.redrawFlames = function () { shown.forEach(function (f) { f(); }); };
  AP.forgetFlames = function () { shown = []; };

  function view(table) { return table.name.slice("flame-".length); }

  /** Nodes of a table as a tree; rows come largest first, parents before children. */
  function build(table) {
    const parent = AP.column(table, "parent"), name = AP.column(table, "name"), kind = AP.column(table, "class");
    const self = AP.column(table, "self_ns"), total = AP.column(table, "total_ns"), count = AP.column(table, "count");
    const root = { name: AP.t("flame.all"), kind: "all", self: 0, total: 0, count: 0, kids: [], up: null };
    const nodes = [];
    for (let row = 0; row < table.rows; row++) {
      const above = parent.get(row);
      const up = above === null ? root : nodes[above];
      const type = kind.key(row);
      let text = name.key(row);
      if (type === "rest") text = AP.t("flame.smaller", { count: count.get(row) });
      else if (type === "not_attributed") text = AP.t("flame.not_attributed");
      else if (type === "backward") text = AP.t("flame.backward");
      else if (type === "thread") text = text.replace(/^thread /, AP.t("flame.thread") + " ");
      const node = { name: text, raw: name.key(row), kind: type, self: self.get(row), total: total.get(row), count: count.get(row), kids: [], up: up };
      nodes.push(node);
      up.kids.push(node);
    }
    root.kids.forEach(function (k) { root.total += k.total; });
    return root;
  }

  /** Modules that differ in their number only (Block_0, Block_1 ...) as one frame, and all that lies below them. */
  function merged(root) {
    function join(list, up) {
      const groups = new Map();
      list.forEach(function (n) {
        const base = n.kind === "module" ? n.name.replace(/_\d+$/, "") : n.name;
        const key = n.kind + "\n" + (n.kind === "rest" ? "" : base);
        if (!groups.has(key)) groups.set(key, { base: base, of: [] });
        groups.get(key).of.push(n);
      });
      return Array.from(groups.values()).map(function (g) {
        const made = { name: g.base, raw: g.base, kind: g.of[0].kind, self: 0, total: 0, count: 0, kids: [], up: up };
        g.of.forEach(function (n) {
          made.self += n.self;
          made.total += n.total;
          made.count += n.count;
        });
        if (made.kind === "rest") made.name = AP.t("flame.smaller", { count: made.count });
        else if (made.kind === "module" && g.of.length > 1) made.name = g.base + " ×" + g.of.length;
        made.kids = join([].concat.apply([], g.of.map(function (n) { return n.kids; })), made);
        return made;
      }).sort(function (a, b) { return b.total - a.total; });
    }
    const top = { name: root.name, kind: "all", self: 0, total: root.total, count: 0, kids: [], up: null };
    top.kids = join(root.kids, top);
    return top;
  }

  function each(node, act) {
    const open = [node];
    while (open.length) {
      const next = open.pop();
      act(next);
      for (const kid of next.kids) open.push(kid);
    }
  }

  /** A frame and those straight below it that take (nearly) all of its time: drawn as one. */
  function chainOf(node, fold) {
    const chain = [node];
    let at = node;
    while (fold && HOST.indexOf(at.kind) >= 0 && at.kids.length) {
      const next = at.kids[0];
      const alone = at.kids.length === 1 || (at.kids.length === 2 && at.kids[1].kind === "rest");
      if (!alone || next.total < at.total * STRAIGHT || HOST.indexOf(next.kind) < 0 || (next.kind === "op") !== (at.kind === "op")) break;
      at = next;
      chain.push(at);
    }
    return chain;
  }

  /** What a frame is called on its strip: the function before its file, since strips are cut at their end. */
  function brief(node) {
    if (node.kind === "kernel") return node.name.replace(/^void /, "").replace(/^(?:\w+::|\(anonymous namespace\)::)+(?=\w)/, "");
    if (node.kind === "op") return node.name.replace(/^autograd::engine::evaluate_function: (?:torch::autograd::)?/, "");
    const parts = node.kind === "python" ? /^(.*\(\d+\)): (.+)$/.exec(node.name) : null;
    return parts ? parts[2] + " · " + parts[1] : node.name;
  }

  function fileOf(text) {
    return text.replace(/;/g, ":").replace(/\s+/g, " ").trim() || "?";
  }

  /** Folded stacks as `ascend-perf export --format folded` writes them: whole microseconds. */
  function folded(root) {
    const lines = [];
    each(root, function (node) {
      const us = Math.floor(node.self / 1000 + 0.5);
      if (!us) return;
      const path = [];
      for (let at = node; at.up; at = at.up) path.unshift(fileOf(at.raw || at.name));
      lines.push(path.join(";") + " " + us);
    });
    return lines.sort().join("\n") + "\n";
  }

  /** Frames by name over the whole graph: own time, and the time of the outermost of a name. */
  function byName(root) {
    const sums = new Map();
    (function walk(node, above) {
      let key = null;
      if (node.up) {
        key = node.kind + "\n" + node.name;
        if (!sums.has(key)) sums.set(key, { name: node.name, kind: node.kind, self: 0, total: 0, count: 0 });
        const sum = sums.get(key);
        sum.self += node.self;
        sum.count += node.count;
        if (!above.has(key)) sum.total += node.total;
      }
      const fresh = key !== null && !above.has(key);
      if (fresh) above.add(key);
      node.kids.forEach(function (k) { walk(k, above); });
      if (fresh) above.delete(key);
    })(root, new Set());
    return Array.from(sums.values());
  }

  function asTable(root, title) {
    const list = byName(root).sort(function (a, b) { return b.self - a.self || b.total - a.total; });
    function text(of) {
      const texts = [], seen = new Map();
      const codes = list.map(function (item) {
        const value = of(item);
        if (!seen.has(value)) {
          seen.set(value, texts.length);
          texts.push(value);
        }
        return seen.get(value);
      });
      return { texts: texts, codes: codes };
    }
    function data(of) { return { data: list.map(of) }; }
    return {
      name: "flame-frames", title: title, note: null, rows: list.length, scope: "job", rank: null, section: "",
      columns: [
        Object.assign({ name: "frame", title: AP.t("flame.frame"), unit: "none" }, text(function (i) { return i.name; })),
        Object.assign({ name: "class", title: AP.t("flame.class"), unit: "none" }, text(function (i) { return AP.t("flame.kind_" + i.kind); })),
        Object.assign({ name: "self", title: AP.t("flame.self"), unit: "ns" }, data(function (i) { return i.self; })),
        Object.assign({ name: "self_share", title: AP.t("flame.self_share"), unit: "ratio" }, data(function (i) { return root.total ? i.self / root.total : null; })),
        Object.assign({ name: "total", title: AP.t("flame.total"), unit: "ns" }, data(function (i) { return i.total; })),
        Object.assign({ name: "count", title: AP.t("flame.count"), unit: "count" }, data(function (i) { return i.count; })),
      ],
    };
  }

  /** The graphs of one section: `names` in the order of the switch; the first that is there is shown. */
  AP.flameView = function (names, elsewhere) {
    const tables = names.map(function (n) { return AP.table("flame-" + n); }).filter(Boolean);
    if (!tables.length) return null;
    const memory = AP.state.flame = AP.state.flame || {};
    const place = names.join();
    const fold = memory.fold !== false;
    const table = tables.find(function (t) { return view(t) === memory[place]; }) || tables[0];
    const plain = build(table);
    const hasTwins = plain.total > 0 && (function () {
      let found = false;
      each(plain, function (n) {
        const seen = new Set();
        n.kids.forEach(function (k) {
          if (k.kind !== "module") return;
          const base = k.name.replace(/_\d+$/, "");
          found = found || seen.has(base);
          seen.add(base);
        });
      });
      return found;
    })();
    const root = memory.merge && hasTwins ? merged(plain) : plain;
    let zoom = root, pick = null, width = 0, cells = [], wanted = "", matches = null;

    const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": AP.t("flame.canvas", { title: AP.w(table.title) }) });
    const pen = canvas.getContext("2d");
    const says = h("output", { class: "flame-says screen", "aria-live": "polite" });
    const hits = h("output", { class: "count" });
    const crumbs = h("nav", { class: "crumbs screen", "aria-label": AP.t("flame.crumbs") + AP.t("ui.colon") + AP.w(table.title) });
    const figure = h("figure", { class: "chart flame", "data-chart": table.name });

    function again() {
      AP.save();
      const held = document.activeElement && figure.contains(document.activeElement) && document.activeElement.getAttribute("data-value");
      const made = AP.flameView(names, elsewhere);
      shown = shown.filter(function (f) { return f !== draw; });
      figure.replaceWith(made);
      const next = held && made.querySelector("[data-value='" + held + "']");
      if (next) next.focus({ preventScroll: true });
    }

    /** Places of the frames below the zoomed one, in px. */
    function layout() {
      cells = [];
      let levels = 0, hidden = 0;
      function put(node, level, x, w) {
        if (w < NARROWEST) return;
        const chain = chainOf(node, fold);
        if (level >= MOST_LEVELS) {
          hidden++;
          return;
        }
        levels = Math.max(levels, level + 1);
        const last = chain[chain.length - 1];
        const kind = chain.some(function (n) { return n.kind === "module"; }) ? "module" : last.kind;
        cells.push({ node: last, chain: chain, kind: kind, level: level, x: x, w: w });
        let at = x;
        for (const kid of last.kids) {
          const share = node.total ? w * kid.total / node.total : 0;
          put(kid, level + 1, at, share);
          at += share;
        }
      }
      if (width) put(zoom, 0, 0, width);
      return { height: Math.max(1, levels) * ROW, hidden: hidden };
    }

    function colours() {
      const style = getComputedStyle(document.documentElement);
      function get(name) { return style.getPropertyValue(name).trim(); }
      const made = { text: get("--text"), page: get("--page"), muted: get("--muted"), accent: get("--accent"), line: get("--line") };
      Object.keys(FILL).forEach(function (k) { made[k] = FILL[k] === "panel" ? get("--line") : get("--k-" + FILL[k]); });
      return made;
    }

    /** Black or white, whichever reads better on a colour (#rrggbb). */
    function inkOn(colour) {
      const parts = [1, 3, 5].map(function (i) {
        const c = parseInt(colour.slice(i, i + 2), 16) / 255;
        return c <= 0.03928 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4);
      });
      const light = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      return 1.05 / (light + 0.05) > (light + 0.05) / 0.05 ? "#ffffff" : "#000000";
    }

    function fit(text, room) {
      const full = pen.measureText(text).width;
      if (full <= room) return text;
      let n = Math.ceil(text.length * room / full);
      while (n > 1 && pen.measureText(text.slice(0, n) + "…").width > room) n--;
      return n < 2 ? "" : text.slice(0, n) + "…";
    }

    /** As much of what a frame is called as there is room for. */
    function label(cell, room) {
      const first = cell.chain[0], last = cell.node;
      if (cell.chain.length > 1) {
        const whole = brief(first) + (cell.chain.length > 2 ? " › … › " : " › ") + brief(last);
        if (pen.measureText(whole).width <= room) return whole;
      }
      const modules = cell.chain.filter(function (n) { return n.kind === "module"; });
      const best = modules.length ? modules[modules.length - 1] : last;
      const text = brief(best);
      if (best.kind !== "module" || pen.measureText(text).width <= room) return fit(text, room);
      // Layers differ in the number at their end.
      const end = /_?\d*(?: ×\d+)?$/.exec(text)[0];
      let n = text.length - end.length;
      while (n > 0 && pen.measureText(text.slice(0, n) + "…" + end).width > room) n--;
      return n || pen.measureText("…" + end).width <= room ? text.slice(0, n) + "…" + end : "";
    }

    let below = 0;
    function draw() {
      if (!width) return;
      const size = layout();
      below = size.hidden;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = width * ratio;
      canvas.height = size.height * ratio;
      canvas.style.height = size.height + "px";
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, size.height);
      pen.font = "11.5px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const c = colours();
      const ink = {};
      Object.keys(FILL).forEach(function (k) { ink[k] = inkOn(c[k]); });
      for (const cell of cells) {
        const kind = cell.kind, y = cell.level * ROW;
        const gap = cell.w > 3 ? 1 : 0;
        const hit = matches && cell.chain.some(function (n) { return matches.has(n); });
        pen.globalAlpha = matches && !hit ? 0.28 : 1;
        pen.fillStyle = c[kind];
        pen.fillRect(cell.x, y, cell.w - gap, ROW - 1);
        if (cell.w > 26) {
          const text = label(cell, cell.w - 9);
          if (text) {
            pen.fillStyle = matches && !hit ? c.text : ink[kind];
            pen.fillText(text, cell.x + 4, y + ROW / 2);
          }
        }
        if (hit && cell.w > 2) {
          pen.globalAlpha = 1;
          pen.fillStyle = c.text;
          pen.fillRect(cell.x, y + ROW - 3, cell.w - gap, 2);
        }
      }
      pen.globalAlpha = 1;
      const chosen = pick && cells.find(function (cell) { return cell.chain.indexOf(pick) >= 0; });
      if (chosen) {
        pen.strokeStyle = c.page;
        pen.lineWidth = 4;
        pen.strokeRect(chosen.x + 1, chosen.level * ROW + 1, Math.max(1, chosen.w - 3), ROW - 3);
        pen.strokeStyle = c.text;
        pen.lineWidth = 2;
        pen.strokeRect(chosen.x + 1, chosen.level * ROW + 1, Math.max(1, chosen.w - 3), ROW - 3);
      }
    }

    function at(x, y) {
      const level = Math.floor(y / ROW);
      let best = null;
      for (const cell of cells) {
        if (cell.level === level && x >= cell.x && x < cell.x + Math.max(cell.w, 2) && (!best || cell.w > best.w)) best = cell;
      }
      return best;
    }

    function share(part, whole) { return whole ? AP.format.quantity(part / whole, "ratio") : "—"; }

    function lines(cell) {
      const n = cell.node;
      const made = [n.name];
      if (cell.chain.length > 1) made.push(AP.t("flame.chain", { count: cell.chain.length }) + AP.t("ui.colon") + cell.chain.slice(0, -1).slice(-4).map(function (f) { return f.name; }).join(" › "));
      made.push(AP.t("flame.time", { total: q(n.total, "ns"), share: share(n.total, root.total) })
        + (zoom !== root && n !== zoom ? " · " + AP.t("flame.of_zoom", { share: share(n.total, zoom.total) }) : ""));
      if (n.self && n.self !== n.total) made.push(AP.t("flame.own", { self: q(n.self, "ns"), share: share(n.self, root.total) }));
      made.push(AP.t("flame.kind_" + n.kind) + (n.count && n.kind !== "all" ? " · " + AP.t("flame.times", { count: AP.format.significant(n.count, 12) }) : ""));
      return made;
    }

    function tell(cell) {
      const parts = cell ? lines(cell) : null;
      says.textContent = parts ? parts[0] + " — " + parts.slice(1).join(" · ") : AP.t("flame.help") + (below ? " " + AP.t("flame.below", { levels: MOST_LEVELS }) : "");
    }

    function choose(node) {
      pick = node;
      draw();
      tell(cells.find(function (cell) { return cell.chain.indexOf(node) >= 0; }) || null);
    }

    function go(node) {
      if (node.kind === "rest") return;
      zoom = node;
      pick = null;
      AP.tip(null);
      draw();
      trail();
      tell(null);
    }

    function trail() {
      const path = [];
      for (let n = zoom; n; n = n.up) path.unshift(n);
      const kept = path.length <= 5 ? path : [path[0], null].concat(path.slice(-3));
      crumbs.replaceChildren.apply(crumbs, kept.map(function (n, i) {
        if (n === null) return h("span", { class: "muted" }, "… ›");
        const lastOne = n === zoom;
        return h("span", null,
          h("button", { type: "button", class: "link", title: n.name, "aria-current": lastOne ? "true" : null, on: { click: function () { go(n); } } }, n.name),
          lastOne ? h("span", { class: "muted" }, " " + q(n.total, "ns") + (n === root ? "" : " (" + share(n.total, root.total) + ")")) : " ›");
      }));
      if (zoom !== root) crumbs.append(h("button", { type: "button", class: "quiet", on: { click: function () { go(root); canvas.focus({ preventScroll: true }); } } }, AP.t("flame.reset")));
    }

    function search(text) {
      wanted = text.trim().toLowerCase();
      matches = null;
      hits.textContent = "";
      if (wanted) {
        matches = new Set();
        let time = 0;
        (function walk(node, inside) {
          const hit = node.up && (node.name + "\n" + node.raw).toLowerCase().indexOf(wanted) >= 0;
          if (hit) {
            matches.add(node);
            if (!inside) time += node.total;
          }
          node.kids.forEach(function (k) { walk(k, inside || hit); });
        })(root, false);
        hits.textContent = AP.t("flame.hits", { count: AP.format.significant(matches.size, 12), time: q(time, "ns"), share: share(time, root.total) });
      }
      draw();
    }

    canvas.addEventListener("pointermove", function (e) {
      if (e.pointerType === "touch") return;
      const cell = at(e.offsetX, e.offsetY);
      canvas.style.cursor = cell && cell.node !== zoom && cell.node.kind !== "rest" ? "pointer" : "default";
      if ((cell && cell.node) !== pick) {
        pick = cell && cell.node;
        draw();
      }
      AP.tip(cell ? lines(cell) : null, e.clientX, e.clientY);
    });
    canvas.addEventListener("pointerleave", function () {
      AP.tip(null);
      if (pick && document.activeElement !== canvas) {
        pick = null;
        draw();
      }
    });
    let touched = null;
    canvas.addEventListener("pointerdown", function (e) { touched = e.pointerType === "touch"; });
    canvas.addEventListener("click", function (e) {
      const cell = at(e.offsetX, e.offsetY);
      if (!cell) return;
      // On a touch screen the first tap says what a frame is, the second zooms.
      if (touched && pick !== cell.node) return choose(cell.node);
      if (cell.level === 0 && cell.node === zoom && zoom.up) return go(zoom.up);
      go(cell.node);
    });

    function beside(step) {
      const cell = cells.find(function (x) { return x.chain.indexOf(pick) >= 0; });
      if (!cell) return;
      const row = cells.filter(function (x) { return x.level === cell.level; }).sort(function (a, b) { return a.x - b.x; });
      const next = row[row.indexOf(cell) + step];
      if (next) choose(next.node);
    }
    function vertical(step) {
      const cell = cells.find(function (x) { return x.chain.indexOf(pick) >= 0; }) || cells[0];
      if (!pick) return choose(cell.node);
      const middle = cell.x + Math.min(cell.w, 4) / 2;
      const next = step > 0
        ? cells.filter(function (x) { return x.level === cell.level + 1 && x.x >= cell.x - 0.01 && x.x < cell.x + cell.w; })[0]
        : cells.find(function (x) { return x.level === cell.level - 1 && x.x <= middle && middle < x.x + x.w; });
      if (next) choose(next.node);
    }
    canvas.addEventListener("keydown", function (e) {
      const acts = {
        ArrowDown: function () { vertical(1); }, ArrowUp: function () { vertical(-1); },
        ArrowRight: function () { if (pick) beside(1); else vertical(1); }, ArrowLeft: function () { if (pick) beside(-1); else vertical(1); },
        Enter: function () { if (pick) go(pick === zoom && zoom.up ? zoom.up : pick); },
        Backspace: function () { if (zoom.up) go(zoom.up); },
        Escape: function () { if (zoom !== root) go(root); else { pick = null; draw(); tell(null); AP.tip(null); } },
        Home: function () { go(root); },
      };
      if (!acts[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
      e.preventDefault();
      AP.tip(null);
      acts[e.key]();
    });
    canvas.addEventListener("blur", function () {
      pick = null;
      draw();
      tell(null);
    });

    const box = h("div", { class: "draw" }, canvas);
    new ResizeObserver(function (entries) {
      const next = Math.floor(entries[0].contentRect.width);
      if (next && next !== width) {
        width = next;
        requestAnimationFrame(function () {
          draw();
          tell(null);
        });
      }
    }).observe(box);
    shown.push(draw);

    function toggle(key, value, on) {
      return h("label", { class: "check" },
        h("input", { type: "checkbox", checked: on, "data-value": key, on: { change: function (e) { memory[key] = e.target.checked; again(); } } }), AP.t("flame." + value));
    }
    const kinds = new Set();
    each(root, function (n) { kinds.add(n.kind); });
    const rows = h("div", null);
    trail();
    tell(null);
    figure.append(
      h("div", { class: "table-head" },
        h("h3", null, AP.w(table.title), AP.data.ranks.length > 1 ? h("span", { class: "of" }, " · " + AP.rankName(table.rank)) : null),
        h("div", { class: "tools screen" },
          tables.length > 1 ? h("div", { class: "switch", role: "group", "aria-label": AP.t("flame.view") }, tables.map(function (t) {
            return h("button", {
              type: "button", "aria-pressed": t === table ? "true" : "false", "data-value": view(t),
              on: { click: function () { memory[place] = view(t); again(); } },
            }, AP.t("flame.view_" + WORDS[view(t)]));
          })) : null,
          elsewhere && AP.tables(elsewhere[0]).length ? h("a", { class: "quiet", href: "#" + elsewhere[1] }, AP.t(elsewhere[2])) : null)),
      h("div", { class: "table-head screen" },
        h("div", { class: "tools" },
          h("input", { type: "search", placeholder: AP.t("flame.find"), "aria-label": AP.t("flame.find"), on: { input: function (e) { search(e.target.value); } } }), hits),
        h("div", { class: "tools" },
          toggle("fold", "fold", fold),
          hasTwins ? toggle("merge", "merge", Boolean(memory.merge)) : null,
          h("button", { type: "button", class: "quiet", on: { click: function (e) { AP.copy(folded(root), e.currentTarget); } } }, AP.t("flame.copy")),
          h("button", { type: "button", class: "quiet", on: { click: function () { AP.offer(table.name + ".folded", folded(root), "text/plain"); } } }, AP.t("flame.save")))),
      crumbs, box, says,
      h("div", { class: "keys" }, ORDER.filter(function (k) { return kinds.has(k); }).map(function (k) {
        return h("span", { class: "key" }, h("span", { class: "swatch", style: { background: "var(--k-" + FILL[k] + ")" }, "aria-hidden": "true" }), AP.t("flame.kind_" + k));
      })),
      h("p", { class: "note" }, AP.w(table.note)),
      h("details", { class: "frames screen", on: { toggle: function (e) { if (e.target.open && !rows.firstChild) rows.append(AP.tableView(asTable(root, AP.t("flame.by_name")), "flame-frames/" + table.name, {})); } } },
        h("summary", null, AP.t("ui.as_table")), rows));
    return figure;
  };
})();
