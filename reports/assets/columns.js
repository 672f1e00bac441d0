// Which columns of a table stand open: where not all of them fit, the less important ones fold behind a button.
(function () {
  const KEEP = [3, 4]; // columns that stand in any case, on a phone and on wider screens
  const PHONE = 500; // px
  const PAPER = 1320; // px of the screen that a landscape page holds: its letters are smaller
  const MOST_HEAD = 10, LEAST_HEAD = 7; // em of a heading's line
  const MOST_LONG = 56, LEAST_LONG = 26; // em of a cell with a long text
  const EM = 13; // px

  // What folds first, in this order. A table that is not named here scrolls sideways instead.
  const MINOR = {
    steps: ["source", "preparing_us", "copy_not_overlapped_us", "bubble_us", "overlapped_us", "communication_us", "wait_us"],
    "step-classes": ["total_ns", "count", "component"],
    "critical-path": ["mean_share_ratio", "mean_ns"],
    "critical-path-steps": ["unknown_ns"],
    "critical-path-elements": ["count", "pieces", "on_path_ratio", "total_ns"],
    "critical-path-slack": ["critical", "slack_min_ns", "total_ns", "count"],
    "critical-path-what-if": ["saved_ns", "step_ns"],
    "step-checks": ["difference_us"],
    "counter-summary": ["parts", "samples", "peak", "most_ratio", "high_ratio", "mean_ratio", "least", "idle", "communicating"],
    "top-kernels": ["stream", "start_ns", "min_ns", "max_ns", "core", "cumulative_ratio", "op_type", "mean_ns", "count"],
    "op-types": ["min_ns", "max_ns", "core", "cumulative_ratio", "class", "mean_ns", "count"],
    "core-types": ["min_ns", "max_ns", "cumulative_ratio", "mean_ns"],
    "fusion-candidates": ["start_ns", "gradient", "kernels", "idle_ns", "row", "launches", "layers", "count"],
    "repeated-kernels": ["stream", "start_ns", "launches", "bytes", "length"],
    shapes: ["min_ns", "max_ns", "output_shapes", "core", "cumulative_ratio", "input_dtypes", "mean_ns", "count"],
    mac: ["core", "pmu_flops_per_s", "shape_flops_per_s", "peak_flops_per_s", "mac_ratio", "cube_utilisation_ratio", "busiest_pipe_ratio", "dtype", "op_type", "mfu_ratio", "count", "bound", "shapes", "time_ns"],
    roofs: ["basis", "confidence", "kind"],
    dma: ["time_ns"],
    packets: ["time_ratio", "count", "size_bytes"],
    launch: ["p95_ns", "count"],
    sequences: ["length", "busy_ns", "start_ns", "count"],
    "vector-chains": ["shapes", "start_ns", "kernels"],
    "memory-blocks": ["alloc_ns"],
    "memory-steps": ["least_allocated_bytes", "grown_bytes"],
    "job-critical-path-what-if": ["saved_ns", "step_ns"],
    "job-critical-path-elements": ["pieces", "component"],
    "timeline-longest": ["count", "lane"],
    "flame-frames": ["count"],
    missing: ["rank"],
    analyzers: ["rank", "findings"],
    settings: ["ranks"],
    roofline: ["roof", "dtype", "op_type", "count"],
    "roofline-classes": ["flops_formula", "bytes_formula", "flops_covered_ratio", "bytes_covered_ratio", "roof_flops_per_s", "intensity_flops_per_byte", "bytes", "flops", "achieved_bytes_per_s", "achieved_flops_per_s", "count"],
    copies: ["small_count", "median_bytes"],
    conversions: ["size_bytes", "dtypes", "count"],
    "comm-ops": ["algo_bytes_per_s", "share_ratio", "size_bytes", "transit_ns", "count", "bus_bytes_per_s", "group"],
    "comm-groups": ["parallel_from", "size_bytes", "ranks", "transit_ns", "count", "parallel"],
    "comm-hotspots": ["stream", "group", "start_ns", "op", "transit_ns"],
    "comm-waits": ["plane", "link_bytes_per_s", "longest_start_ns", "longest_call", "group", "late_calls", "longest_ns", "calls", "share_ratio"],
    "comm-links": ["time_ns", "transport", "group", "size_bytes"],
    "link-matrix": ["seen_by", "samples", "usual_bytes_per_s", "op", "size_bytes", "time_ns", "transport"],
    "size-bandwidth": ["total_ns", "group_size", "peak_bytes_per_s", "transport", "count"],
    "host-ops": ["cumulative_ratio", "mean_self_ns", "example_shapes", "total_ns_per_step", "count_per_step"],
    "host-apis": ["max_ns", "layer"],
    syncs: ["start_ns", "longest_ns", "line"],
    "idle-gaps": ["start_ns"],
    "memory-peaks": ["samples", "peak_at_ns", "unused_at_peak_bytes", "unused_ratio"],
    "memory-modules": ["samples", "capacity_ratio", "least_reserved_bytes"],
    "peak-blocks": ["largest_bytes", "alloc_ns", "held_ns", "module"],
    "aipp-stages": ["count", "exposed_ns"],
    ranks: ["source", "steps", "communication_ns", "computing_z", "pipeline_wait_ns", "stage"],
    "rank-clusters": ["example", "class", "free_ns"],
    "rank-waits": ["source", "calls", "root_ratio", "root"],
    collectives: ["skew_from", "label", "algo_bytes_per_s", "seen", "transport", "skew_max_ns", "peak_ratio", "group_size", "last_rank", "size_bytes", "count", "transfer_ns"],
    "job-stages": ["seen", "slowest", "free_ns"],
    "job-groups": ["parallel_from", "lowest_ranks", "groups", "transport", "lowest_bytes_per_s", "group_size", "count"],
    "clock-offsets": ["drift_ppm"],
    "job-critical-path-ranks": ["before_ns", "idle_ns", "copy_ns", "entries", "launch_ns"],
    sources: ["format", "dropped", "rank"],
    dropped: ["rank"],
    checks: ["where", "tolerance", "difference", "rank"],
    "what-if": ["items", "launches", "peak_share", "low_ns", "high_ns", "bubble", "host", "exposed", "mfu"],
    "compare-classes": ["count_b", "count_a", "by_mean_ns", "by_count_ns", "basis", "beyond_ns", "expected_ratio", "shortfall_ratio"],
    "compare-operators": ["count_b", "count_a", "by_mean_ns", "by_count_ns", "basis", "beyond_ns", "kind", "expected_ratio", "shortfall_ratio"],
    "compare-calls": ["kernels_b", "kernels_a", "count_b", "count_a", "by_mean_ns", "by_count_ns", "basis", "class", "beyond_ns", "kind", "expected_ratio", "shortfall_ratio", "path"],
    "compare-metrics": "ABCDEFGH".split("").map(function (side) { return "runs_" + side; }),
  };

  // Of two columns that may say the same, the one that folds when all of its cells do: [first, other].
  const ALIKE = {
    "critical-path": [["time_ns", "mean_ns"], ["share_ratio", "mean_share_ratio"]],
    "idle-causes": [["total_ns", "per_step_ns"]],
    "op-types": [["op_type", "class"]],
    collectives: [["group", "label"]],
    "comm-groups": [["group", "parallel"]],
    "critical-path-elements": [["pieces", "count"]],
    "aipp-stages": [["time_ns", "exposed_ns"]],
  };

  function every(rows, test) {
    for (let row = 0; row < rows; row++) if (!test(row)) return false;
    return true;
  }

  function said(c, row) { return c.style.text(c.reader.get(row)); }

  /** Numbers of columns that only repeat another one. */
  function repeats(table, columns) {
    const at = function (name) { return columns.findIndex(function (c) { return c.reader.name === name; }); };
    return (ALIKE[table.name] || []).filter(function (two) {
      const first = at(two[0]), other = at(two[1]);
      return first >= 0 && other >= 0 && every(table.rows, function (row) { return said(columns[first], row) === said(columns[other], row); });
    }).map(function (two) { return at(two[1]); });
  }

  /** Numbers of columns in the order in which they fold: those with nothing but zeros, by name, with few known cells. */
  function foldable(table, columns) {
    const named = MINOR[table.name.replace(/-\d+$/, "")];  // a comparison has a table for each piece of work
    if (!named) return [];
    const zero = [], rare = [];
    columns.forEach(function (c, i) {
      if (!i || !c.style.figures) return;
      let known = 0, other = 0;
      for (let row = 0; row < table.rows; row++) {
        const value = c.reader.get(row);
        if (value === null || value === undefined) continue;
        known++;
        if (value !== 0) other++;
      }
      if (!other) zero.push(i);
      else if (known * 4 <= table.rows) rare.push(i);
    });
    const order = zero.concat(named.map(function (name) { return columns.findIndex(function (c) { return c.reader.name === name; }); }), rare);
    return Array.from(new Set(order)).filter(function (i) { return i > 0; });
  }

  /** The numbers of the columns that stand in `room` px. */
  function standing(view, widths, room) {
    const out = new Set(view.repeats);
    let sum = 0, left = 0;
    widths.forEach(function (width, i) {
      if (out.has(i)) return;
      sum += width;
      left++;
    });
    for (const i of view.foldable) {
      if (sum <= room || left <= KEEP[room < PHONE ? 0 : 1]) break;
      if (out.has(i) || i === view.sorted()) continue;
      out.add(i);
      sum -= widths[i];
      left--;
    }
    return out;
  }

  const views = new WeakMap();
  const observer = new ResizeObserver(function (entries) {
    fit(entries.map(function (e) { return views.get(e.target); }).filter(function (view) {
      const width = view.ruler.clientWidth;
      return width > 0 && Math.abs(width - view.width) >= 2;
    }));
  });

  /** Write, then measure, then write: one layout for all tables together. `room`: px in place of what they have. */
  function fit(list, room) {
    list.forEach(function (view) {
      view.width = view.ruler.clientWidth;
      view.scroll.style.removeProperty("--head");
      view.scroll.style.removeProperty("--long");
      view.show(view.wide() ? new Set() : new Set(view.repeats));
    });
    const measured = list.map(function (view) {
      return { widths: view.widths(), table: view.table.offsetWidth, room: room || view.width };
    });
    list.forEach(function (view, i) {
      const m = measured[i];
      if (!view.wide() && m.table > m.room) view.show(standing(view, m.widths, m.room));
      const spare = m.room - m.table;
      // Where there is room, headings need fewer lines and long texts stand whole.
      if (spare > 0 && m.room > 600) {
        view.scroll.style.setProperty("--head", Math.min(MOST_HEAD, LEAST_HEAD + spare / view.count() / EM).toFixed(1) + "em");
        view.scroll.style.setProperty("--long", Math.min(MOST_LONG, LEAST_LONG + spare / EM).toFixed(1) + "em");
      }
    });
  }

  /** Let a table keep to its width. `view`: {table, columns, figure, scroll, tableNode, show(set), widths(), sorted(), wide(), count()}. */
  AP.keepToWidth = function (table, columns, view) {
    view.ruler = AP.h("div", { class: "ruler", "aria-hidden": "true" });
    view.width = 0;
    view.repeats = repeats(table, columns);
    view.foldable = foldable(table, columns);
    views.set(view.ruler, view);
    observer.observe(view.ruler);
    return view.ruler;
  };

  /** Columns of all tables anew; on paper there is other room. */
  AP.fitTables = function (isPaper) {
    const all = Array.from(document.querySelectorAll(".ruler")).map(function (node) { return views.get(node); })
      .filter(function (view) { return view && view.ruler.clientWidth > 0; });
    fit(all, isPaper && !window.matchMedia("print").matches ? PAPER : 0);
  };

  AP.fitTable = function (ruler) { fit([views.get(ruler)]); };
})();
