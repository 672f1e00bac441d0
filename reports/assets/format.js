// How figures are written: the same rules as units.py (a test compares both).
(function () {
  const THIN = "\u2009";

  function grouped(text) {
    const parts = text.split(".");
    parts[0] = parts[0].replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
    return parts.join(".");
  }

  function significant(value, digits) {
    digits = digits || 4;
    if (value === 0) return "0";
    const places = digits - 1 - Math.floor(Math.log10(Math.abs(value)));
    let text;
    if (places >= 0) {
      text = value.toFixed(Math.min(places, 100));
      if (text.indexOf(".") >= 0) text = text.replace(/0+$/, "").replace(/\.$/, "");
    } else {
      const step = Math.pow(10, -places);
      text = (Math.round(value / step) * step).toFixed(0);
    }
    return grouped(text);
  }

  /** As many digits, zeros at the end too: cells of a column that say how exact they are. */
  function rounded(value, digits) {
    return grouped(value.toFixed(Math.max(0, Math.min(100, digits - 1 - Math.floor(Math.log10(Math.abs(value)))))));
  }

  const TIME = [[1e10, 1e9, "s"], [1e6, 1e6, "ms"], [1e3, 1e3, "us"], [1, 1, "ns"]];
  const SCALES = {
    bytes: [[1073741824, "GiB"], [1048576, "MiB"], [1024, "KiB"], [1, "B"]],
    bytes_per_s: [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]],
    flops: [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1, "FLOP"]],
    flops_per_s: [[1e12, "TFLOPS"], [1e9, "GFLOPS"], [1e6, "MFLOPS"], [1, "FLOPS"]],
    hertz: [[1e9, "GHz"], [1e6, "MHz"], [1, "Hz"]],
  };
  const NS = { ns: 1, us: 1e3, ms: 1e6, s: 1e9 };
  const PLAIN = { celsius: "°C", watt: "W", joule: "J", items_per_s: "/s" };

  /** [factor, name] of the scale in which `value` reads best. */
  function scaleOf(value, unit) {
    const size = Math.abs(value);
    if (unit in NS) {
      const ns = size * NS[unit];
      if (ns >= 1e10) return [1e9 / NS[unit], "s"];
      for (const step of TIME.slice(1)) if (ns >= step[0] * 0.9995) return [step[1] / NS[unit], step[2]];
      return [1 / NS[unit], "ns"];
    }
    const scales = SCALES[unit];
    if (!scales) return [1, PLAIN[unit] || ""];
    for (const step of scales) if (size >= step[0] * 0.9995) return step;
    return scales[scales.length - 1];
  }

  function percent(value) {
    const p = value * 100;
    return Math.abs(p) >= 10 ? p.toFixed(0) : significant(p, 2);
  }

  // Four digits near 1, where what counts is how far from it.
  function factor(value) {
    return significant(value, Math.abs(value) >= 0.9 && Math.abs(value) < 1.1 ? 4 : 3);
  }

  function quantity(value, unit) {
    if (value === null || value === undefined || value === "") return "—";
    if (typeof value === "string") return value;
    if (typeof value === "boolean") return value ? "✓" : "–";
    if (!isFinite(value)) return "—";
    if (unit === "ratio") return percent(value) + "\u00a0%";
    if (unit === "x") return factor(value) + "x";
    if (unit === "count" || unit === "none" || !unit) return significant(value, Number.isInteger(value) ? 12 : 4);
    const scale = scaleOf(value, unit);
    return AP.glued(significant(value / scale[0]) + " " + scale[1]);
  }

  // Figures that come as text, each with its own unit: [number, unit].
  const WRITTEN = /^[<>\u2264\u2265~]?\s?([-+\u2212]?\d[\d.\u2009\u202f]*(?:e[-+]?\d+)?)[\s\u00a0]?(%|x|ns|us|ms|s|[KMGT]?i?B|[kMGT]?B\/s|[MGT]?FLOPS?|[MG]?Hz|W|J|°C|\/s)?$/i;
  const SIZES = (function () {
    const sizes = Object.assign({ "%": 0.01, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, tib: 1099511627776 }, NS);
    for (const unit in SCALES) for (const step of SCALES[unit]) sizes[step[1].toLowerCase()] = step[0];
    return sizes;
  })();

  /** The number that a text writes, in its base unit; null where the text is no figure. */
  function written(text) {
    const found = WRITTEN.exec(text);
    if (!found) return null;
    const number = Number(found[1].replace(/[\u2009\u202f]/g, "").replace("\u2212", "-"));
    return isFinite(number) ? number * (SIZES[(found[2] || "").toLowerCase()] || 1) : null;
  }

  // Tables whose times are parts of one step: one unit for all of them, also for the small ones.
  const OF_A_STEP = ["steps", "ranks", "job-stages", "rank-clusters", "comm-ops", "comm-groups", "job-critical-path-ranks"];
  const MOST = 9999.5; // of a scaled figure

  function stepsOf(unit) { return unit in NS ? TIME.map(function (t) { return [t[1], t[2]]; }) : SCALES[unit] || null; }

  /** [factor, name] of the scale for the figures of several columns, which are near enough to each other; else null. */
  function common(columns, least) {
    const top = columns[0].top, low = columns[columns.length - 1].top;
    const steps = stepsOf(columns[0].unit);
    // Seconds are for seconds: 0.2 s beside them is better read as 200 ms.
    function fits(step) { return top / step[0] < MOST && (columns.length === 1 || low / step[0] >= (step[1] === "s" ? 1 : least)); }
    const first = steps.findIndex(function (s) { return s[1] === scaleOf(top / columns[0].base, columns[0].unit)[1]; });
    const shown = [].concat.apply([], columns.map(function (c) { return c.sizes; })).sort(function (a, b) { return a - b; });
    const middle = shown[shown.length >> 1];
    let at = first;
    // Where most of the figures are small, in the smaller unit.
    while (at + 1 < steps.length && (!fits(steps[at]) || middle < steps[at][0]) && fits(steps[at + 1])) at++;
    return fits(steps[at]) || columns.length === 1 ? steps[at] : null;
  }

  /** How the columns of a table are written: each one in one scale with its unit for the head, near ones in the same. */
  function columnStyles(readers, rows, name) {
    const least = OF_A_STEP.indexOf(name) >= 0 ? 0.004 : 0.1;
    const scales = new Map(), families = {};
    readers.forEach(function (reader, i) {
      if (reader.isText || reader.clock || !stepsOf(reader.unit)) return;
      const base = reader.unit in NS ? NS[reader.unit] : 1, sizes = [];
      for (let row = 0; row < rows; row++) {
        const value = reader.get(row);
        if (typeof value === "number" && isFinite(value) && value !== 0) sizes.push(Math.abs(value) * base);
      }
      if (!sizes.length) return;
      const family = reader.unit in NS ? "time" : reader.unit;
      (families[family] = families[family] || []).push({ i: i, unit: reader.unit, base: base, sizes: sizes.slice(0, 400), top: sizes.reduce(function (a, b) { return Math.max(a, b); }) });
    });
    Object.values(families).forEach(function (list) {
      list.sort(function (a, b) { return b.top - a.top; });
      while (list.length) {
        let n = list.length;
        while (n > 1 && !common(list.slice(0, n), least)) n--;
        const scale = common(list.slice(0, n), least);
        list.splice(0, n).forEach(function (c) { scales.set(c.i, [scale[0] / c.base, scale[1]]); });
      }
    });
    return readers.map(function (reader, i) { return columnStyle(reader, rows, scales.get(i)); });
  }

  /** Digits behind the point: those of the column, more for a small figure: three digits, or two of a tiny one. */
  function places(size, least) {
    const e = Math.floor(Math.log10(size));
    return Math.max(least, Math.min(3, 2 - e), Math.min(6, 1 - e));
  }

  function minus(text) { return text.replace(/^-/, "\u2212"); }

  function columnStyle(reader, rows, scale) {
    let top = 0;
    let numbers = 0;
    let whole = true;
    for (let row = 0; row < rows; row++) {
      const value = reader.get(row);
      if (typeof value === "number" && isFinite(value)) {
        numbers++;
        whole = whole && Number.isInteger(value);
        top = Math.max(top, Math.abs(value));
      }
    }
    const figures = numbers > 0;
    const unit = reader.unit;
    function style(sign, write) {
      return {
        unit: sign, figures: figures,
        text: function (v) { return typeof v === "number" ? minus(write(v)) : v === null || v === undefined ? "—" : quantity(v, unit); },
      };
    }
    if (reader.clock) return style("ms", function (v) { return (v < 0 ? "\u2212" : "+") + grouped((Math.abs(v) / 1e6).toFixed(3)); });
    if (reader.isText) {
      // Exact figures come as text; they stand right like the others. Long numbers are names.
      let plain = 0;
      for (let row = 0; row < rows && plain >= 0; row++) {
        const value = reader.get(row);
        if (value === null) continue;
        plain = value.length > 24 || /^\d{16}/.test(value) || written(value) === null ? -1 : plain + 1;
      }
      return { unit: "", figures: plain > 0, text: function (v) { return v === null || v === undefined ? "—" : String(v); } };
    }
    if (unit === "ratio") {
      return style("%", function (v) {
        if (v === 0 || Math.abs(v) >= 0.1) return percent(v);
        if (Math.abs(v) < 0.0001) return "< 0.01";
        const p = Number((v * 100).toPrecision(2));
        return rounded(p, 2);
      });
    }
    if (unit === "count") return style("", function (v) { return significant(v, Number.isInteger(v) ? 12 : 4); });
    // Ids are read, not summed: no thousands marks.
    if (unit === "none" || !unit) return style("", function (v) { return Number.isInteger(v) ? String(v) : significant(v, Math.abs(v) < 1 ? 3 : 4); });
    if (unit === "x") return style("x", factor);
    if (top === 0) return style("", function () { return "0"; });
    scale = scale || scaleOf(top, unit);
    // Small whole numbers of the unit itself stay whole.
    const least = whole && scale[0] === 1 ? 0 : Math.max(0, Math.min(3, 3 - Math.floor(Math.log10(Math.max(top / scale[0], 1e-9)))));
    return style(scale[1], function (v) {
      const scaled = v / scale[0];
      if (scaled === 0) return "0";
      // A figure that would be nothing but zeros has a unit of its own.
      if (Math.abs(scaled) < 0.001) return quantity(v, unit);
      return grouped(scaled.toFixed(whole && scale[0] === 1 ? 0 : places(Math.abs(scaled), least)));
    });
  }

  /** A time from the start of the step, with its sign. */
  function offset(ns) {
    if (Math.round(ns) === 0) return AP.glued("0 ms");
    return (ns < 0 ? "−" : "+") + quantity(Math.abs(Math.round(ns)), "ns");
  }

  /** A share of a whole; what is left of tiny ones says nothing. */
  function share(value) {
    return value > 0 && value < 0.0001 ? "< 0.01\u00a0%" : quantity(value, "ratio");
  }

  /** A value at an axis. */
  function tick(value) { return minus(significant(value)); }

  AP.format = {
    offset: offset, share: share, tick: tick,
    significant: significant, quantity: quantity, percent: percent, written: written, columnStyles: columnStyles, scaleOf: scaleOf };
})();
