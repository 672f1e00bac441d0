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
    const sizes = Object.assign({ "%": 0.01 }, NS);
    for (const unit in SCALES) for (const step of SCALES[unit]) sizes[step[1]] = step[0];
    return sizes;
  })();

  /** The number that a text writes, in its base unit; null where the text is no figure. */
  function written(text) {
    const found = WRITTEN.exec(text);
    if (!found) return null;
    const number = Number(found[1].replace(/[\u2009\u202f]/g, "").replace("\u2212", "-"));
    return isFinite(number) ? number * (SIZES[found[2]] || 1) : null;
  }

  /** How a whole column is written: one scale, its unit for the head, and a function for the cells. */
  function columnStyle(reader, rows) {
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
    function other(value) {
      return typeof value === "number" ? null : value === null || value === undefined ? "—" : quantity(value, unit);
    }
    if (reader.clock) {
      return { unit: "ms", figures: true, text: function (v) { return other(v) || (v < 0 ? "−" : "+") + grouped((Math.abs(v) / 1e6).toFixed(3)); } };
    }
    if (reader.isText) {
      // Exact figures come as text; they stand right like the others.
      let plain = 0;
      for (let row = 0; row < rows; row++) {
        const value = reader.get(row);
        if (value !== null && (value.length > 24 || written(value) === null)) return { unit: "", figures: false, text: function (v) { return other(v) || String(v); } };
        if (value !== null) plain++;
      }
      return { unit: "", figures: plain > 0, text: function (v) { return other(v) || String(v); } };
    }
    if (unit === "ratio") {
      return { unit: "%", figures: figures, text: function (v) { return other(v) || (v === 0 || Math.abs(v) >= 0.1 ? percent(v) : rounded(v * 100, 2)); } };
    }
    if (unit === "count") {
      return { unit: "", figures: figures, text: function (v) { return other(v) || significant(v, Number.isInteger(v) ? 12 : 4); } };
    }
    if (unit === "none" || !unit) {
      // Ids are read, not summed: no thousands marks.
      return {
        unit: "", figures: figures,
        text: function (v) { return other(v) || (Number.isInteger(v) ? String(v) : significant(v, 4)); },
      };
    }
    if (unit === "x") return { unit: "x", figures: figures, text: function (v) { return other(v) || factor(v); } };
    if (top === 0) return { unit: "", figures: figures, text: function (v) { return other(v) || "0"; } };
    const scale = scaleOf(top, unit);
    // Small whole numbers of the unit itself stay whole.
    const places = whole && scale[0] === 1 ? 0 : Math.max(0, Math.min(3, 3 - Math.floor(Math.log10(Math.max(top / scale[0], 1e-9)))));
    return {
      unit: scale[1],
      figures: figures,
      text: function (v) {
        const known = other(v);
        if (known !== null) return known;
        const scaled = v / scale[0];
        // A figure that the column's decimals would squash keeps two digits of its own.
        if (scaled !== 0 && Math.abs(scaled) < 0.001) return quantity(v, unit);
        if (scaled !== 0 && places > 0 && Math.abs(scaled) < Math.pow(10, 1 - places)) return rounded(scaled, 2);
        return grouped(scaled.toFixed(places));
      },
    };
  }

  /** A time from the start of the step, with its sign. */
  function offset(ns) {
    return (ns < 0 ? "−" : "+") + quantity(Math.abs(Math.round(ns)), "ns");
  }

  AP.format = {
    offset: offset,
    significant: significant, quantity: quantity, percent: percent, written: written, columnStyle: columnStyle, scaleOf: scaleOf };
})();
