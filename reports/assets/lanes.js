// What the timeline draws: lanes of intervals from the embedded table, their statistics, and the window as a trace file.
(function () {
  const MOST_DEPTH = 5; // rows of a lane; deeper nesting is drawn in the last one
  const TYPES = ["host", "sync", "computing", "transfer", "wait", "copy", "idle"];
  const GROUPS = ["host", "dispatch", "device", "copies", "communication", "planes", "counters"];
  const GROUP_OF = { host: "host", sync: "host", computing: "device", idle: "device", transfer: "communication", wait: "communication", copy: "copies" };
  const KINDS = { compute: "computing", communication: "transfer", wait: "wait", copy: "copy", host: "host", sync: "sync", dataloader: "host", gc: "host", idle: "idle" };
  const MOST_COUNTERS = 8;
  const MOST_ARROWS = 40;
  const MOST_FLOWS = 20000; // arrows in a saved trace

  /** Category of an interval, by its kind; kinds that we do not know by what they are called. */
  function typeOf(text) {
    const t = text.toLowerCase();
    if (KINDS[t]) return KINDS[t];
    if (/wait|notify|sync/.test(t) && !/host|runtime|api/.test(t)) return "wait";
    if (/comm|hccl|nccl|rccl|collective|transfer/.test(t)) return "transfer";
    if (/cop(y|ies)|memcpy|memset|h2d|d2h|d2d/.test(t)) return "copy";
    if (/host|cpu_op|python|runtime|api|queue|dataloader|thread|user|op$|optimizer|gc/.test(t)) return "host";
    if (/idle|free|gap/.test(t)) return "idle";
    return "computing";
  }

  function column(table, name, fill) {
    const reader = AP.column(table, name);
    const made = new Float64Array(table.rows);
    for (let row = 0; row < table.rows; row++) {
      const value = reader ? reader.get(row) : null;
      made[row] = typeof value === "number" ? value : fill;
    }
    return made;
  }

  /** First of [low, high) for which `values[i] > limit` (values in order). */
  function after(values, limit, low, high) {
    while (low < high) {
      const mid = (low + high) >> 1;
      if (values[mid] > limit) high = mid;
      else low = mid + 1;
    }
    return low;
  }
  /** First of [low, high) for which `values[i] >= limit`. */
  function from(values, limit, low, high) {
    while (low < high) {
      const mid = (low + high) >> 1;
      if (values[mid] >= limit) high = mid;
      else low = mid + 1;
    }
    return low;
  }

  /** One row of intervals that do not overlap, with sums before each of them: any number of them is drawn by pixels. */
  function makeRow(model, ids) {
    const n = ids.length;
    const row = { ids: ids, s: new Float64Array(n), e: new Float64Array(n), type: new Uint8Array(n), sums: {}, count: new Float64Array(n + 1), exact: new Float64Array(n + 1), hits: null };
    let reach = -Infinity;
    for (let i = 0; i < n; i++) {
      const id = ids[i];
      row.s[i] = model.s[id];
      // Ends in order, for the search alone: in the last row intervals can lie in others.
      row.e[i] = reach = Math.max(reach, model.e[id]);
      row.type[i] = model.type[id];
      row.count[i + 1] = row.count[i] + model.count[id];
      row.exact[i + 1] = row.exact[i] + (model.count[id] === 1 ? 1 : 0);
    }
    new Set(row.type).forEach(function (type) {
      const sum = row.sums[type] = new Float64Array(n + 1);
      for (let i = 0; i < n; i++) sum[i + 1] = sum[i] + (row.type[i] === type ? model.busy[ids[i]] : 0);
    });
    return row;
  }

  function rowsOf(model, ids) {
    const ends = [], rows = [];
    for (const id of ids) {
      let d = 0;
      while (d < ends.length && ends[d] > model.s[id]) d++;
      d = Math.min(d, MOST_DEPTH - 1);
      ends[d] = Math.max(ends[d] === undefined ? -Infinity : ends[d], model.e[id]);
      (rows[d] = rows[d] || []).push(id);
      model.depth[id] = d;
    }
    return rows.map(function (r) { return makeRow(model, r); });
  }

  /** Intervals of a table in lanes; null where the table does not have what is needed. */
  function build(table, windowTable, counterTable) {
    const lane = AP.column(table, "lane"), kind = AP.column(table, "kind"), name = AP.column(table, "name"), group = AP.column(table, "group");
    if (!lane || !AP.column(table, "start_ns") || !AP.column(table, "dur_ns")) return null;
    const n = table.rows;
    const model = {
      rank: table.rank, n: n, low: Infinity, high: -Infinity, lanes: [], counters: [],
      s: column(table, "start_ns", NaN), e: column(table, "dur_ns", NaN), count: column(table, "count", 1), busy: column(table, "busy_ns", NaN),
      launch: column(table, "launch_start_ns", NaN), type: new Uint8Array(n), depth: new Uint8Array(n), lane: new Int32Array(n), total: 0, runs: 0,
      name: function (id) { return (name && name.get(id)) || ""; },
      kind: function (id) { return (kind && kind.get(id)) || ""; },
      rawKind: function (id) { return ((kind && kind.key(id)) || "").toLowerCase(); },
      nameCode: name && name.codes ? function (id) { return name.codes[id]; } : null,
      names: name && name.texts ? name.texts : [],
    };
    const shapes = AP.column(table, "shapes");
    model.shape = function (id) { return (shapes && shapes.get(id)) || ""; };
    const known = new Map(), types = new Map();
    for (let id = 0; id < n; id++) {
      model.e[id] += model.s[id];
      if (isNaN(model.e[id])) continue;
      if (isNaN(model.busy[id])) model.busy[id] = model.e[id] - model.s[id];
      const key = lane.key(id) || "";
      const what = model.rawKind(id) || key;
      if (!types.has(what)) types.set(what, TYPES.indexOf(typeOf(what)));
      model.type[id] = types.get(what);
      if (!known.has(key)) {
        known.set(key, model.lanes.length);
        model.lanes.push({ key: key, name: lane.get(id) || key, group: group ? group.key(id) : null, ids: [], weight: {} });
      }
      const at = model.lane[id] = known.get(key);
      const l = model.lanes[at];
      l.ids.push(id);
      l.weight[model.type[id]] = (l.weight[model.type[id]] || 0) + model.busy[id] + 1;
      model.low = Math.min(model.low, model.s[id]);
      model.high = Math.max(model.high, model.e[id]);
      model.total += model.count[id];
      if (model.count[id] > 1) model.runs++;
    }
    if (!(model.high > model.low)) return null;
    const edges = windowTable && [AP.column(windowTable, "start_ns"), AP.column(windowTable, "end_ns")];
    if (edges && edges[0] && edges[1] && edges[1].get(0) > edges[0].get(0)) {
      model.low = Math.min(model.low, edges[0].get(0));
      model.high = Math.max(model.high, edges[1].get(0));
    }
    model.lanes.forEach(function (l) {
      const inOrder = l.ids.every(function (id, i) { return !i || model.s[l.ids[i - 1]] < model.s[id] || (model.s[l.ids[i - 1]] === model.s[id] && model.e[l.ids[i - 1]] >= model.e[id]); });
      if (!inOrder) l.ids.sort(function (a, b) { return model.s[a] - model.s[b] || model.e[b] - model.e[a]; });
      l.rows = rowsOf(model, l.ids);
      l.type = Number(Object.keys(l.weight).sort(function (a, b) { return l.weight[b] - l.weight[a]; })[0]);
      if (GROUPS.indexOf(l.group) < 0) l.group = GROUP_OF[TYPES[l.type]];
      // Below the title of its group, a communicator needs its own name only.
      const own = l.group === "communication" && /^Communication (.+)$/.exec(l.key);
      l.title = own ? own[1] : l.name;
    });
    // Waits of a communication group are drawn into its collectives.
    model.lanes.forEach(function (l) {
      const of = /^Waits( .*)?$/.exec(l.key);
      const home = of && model.lanes.find(function (other) { return other.key === "Communication" + (of[1] || ""); });
      if (!home) return;
      home.waits = l;
      l.hidden = true;
    });
    model.exact = model.runs ? exactParts(model) : null;
    model.counters = counters(counterTable, model.low, model.high);
    return model;
  }

  /** Counters that change or are not 0, with their means over each time bin that touches the window. */
  function counters(table, low, high) {
    const what = table && AP.column(table, "counter"), start = table && AP.column(table, "start_ns"), mean = table && AP.column(table, "mean");
    if (!what || !start || !mean) return [];
    const unit = AP.column(table, "unit"), dur = AP.column(table, "dur_ns"), made = new Map();
    for (let row = 0; row < table.rows; row++) {
      const t = start.get(row), v = mean.get(row), key = what.key(row);
      if (typeof t !== "number" || typeof v !== "number" || !key) continue;
      if (t > high || t + ((dur && dur.get(row)) || 0) < low) continue;
      if (!made.has(key)) made.set(key, { name: what.get(row), unit: (unit && unit.key(row)) || "none", points: [], top: -Infinity });
      made.get(key).points.push([t, v]);
    }
    function spread(c) {
      const values = c.points.map(function (p) { return p[1]; }), top = Math.max.apply(null, values);
      return top ? (top - Math.min.apply(null, values)) / Math.abs(top) : 0;
    }
    const list = Array.from(made.values()).filter(function (c) { return c.points.some(function (p) { return p[1] !== 0; }); });
    // Those that change say more.
    list.forEach(function (c) { c.isFlat = spread(c) < 0.001; });
    list.sort(function (a, b) { return a.isFlat - b.isFlat; });
    return list.slice(0, MOST_COUNTERS).map(function (c) {
      c.points.sort(function (a, b) { return a[0] - b[0]; });
      c.t = Float64Array.from(c.points, function (p) { return p[0]; });
      c.v = Float64Array.from(c.points, function (p) { return p[1]; });
      c.v.forEach(function (v) { c.top = Math.max(c.top, v); });
      c.low = Math.min(0, c.v.reduce(function (a, b) { return Math.min(a, b); }, 0));
      delete c.points;
      return c;
    });
  }

  /** Stretches in which nothing is merged on any lane, as [start, end], and the longest of them. */
  function exactParts(model) {
    const runs = [];
    for (let id = 0; id < model.n; id++) if (model.count[id] > 1) runs.push(id);
    runs.sort(function (a, b) { return model.s[a] - model.s[b]; });
    const parts = [];
    let reach = model.low;
    runs.forEach(function (id) {
      if (model.s[id] > reach) parts.push([reach, model.s[id]]);
      reach = Math.max(reach, model.e[id]);
    });
    if (reach < model.high) parts.push([reach, model.high]);
    return { parts: parts, longest: parts.reduce(function (best, p) { return !best || p[1] - p[0] > best[1] - best[0] ? p : best; }, null) };
  }

  /** Union of the lanes as one row, for a group that is closed. */
  function summary(model, lanes) {
    let ids = [].concat.apply([], lanes.map(function (l) { return l.ids; }));
    if (lanes.length > 1) ids = Array.from(Uint32Array.from(ids)).sort(function (a, b) { return model.s[a] - model.s[b]; });
    const weight = {};
    lanes.forEach(function (l) { for (const t in l.weight) weight[t] = (weight[t] || 0) + l.weight[t]; });
    const type = Number(Object.keys(weight).sort(function (a, b) { return weight[b] - weight[a]; })[0]);
    const merged = { s: [], e: [], type: [], count: [], busy: [] };
    ids.forEach(function (id) {
      const last = merged.s.length - 1;
      if (last >= 0 && model.s[id] <= merged.e[last]) {
        // A run is busy in a part of its extent only: the parts are added, as far as they have room.
        merged.e[last] = Math.max(merged.e[last], model.e[id]);
        merged.busy[last] = Math.min(merged.e[last] - merged.s[last], merged.busy[last] + model.busy[id]);
        merged.count[last] += model.count[id];
      } else {
        merged.s.push(model.s[id]);
        merged.e.push(model.e[id]);
        merged.busy.push(model.busy[id]);
        merged.count.push(model.count[id]);
        merged.type.push(type);
      }
    });
    const row = makeRow(merged, merged.s.map(function (s, i) { return i; }));
    row.of = merged;
    return row;
  }

  /** Numbers of a window on some lanes. Intervals count with their part inside; of runs at the edges a share. */
  function statistics(model, lanes, start, end) {
    const every = [];
    lanes.forEach(function (l) {
      every.push(l);
      if (l.waits) every.push(l.waits);
    });
    const onlyPlanes = every.every(function (l) { return l.group === "planes"; });
    const classes = new Map(), names = new Map();
    let runs = 0, inRuns = 0;
    const device = [];
    every.forEach(function (l) {
      if (l.group === "planes" && !onlyPlanes) return; // parts of what the collectives already count
      l.rows.forEach(function (row) {
        for (let i = after(row.e, start, 0, row.s.length); i < row.s.length && row.s[i] < end; i++) {
          const id = row.ids[i];
          const s = Math.max(start, model.s[id]), e = Math.min(end, model.e[id]);
          if (e <= s && model.e[id] > model.s[id]) continue;
          const share = model.e[id] > model.s[id] ? (e - s) / (model.e[id] - model.s[id]) : 1;
          const isRun = model.count[id] > 1;
          const count = isRun ? Math.max(1, Math.round(model.count[id] * share)) : 1;
          const time = isRun ? model.busy[id] * share : e - s;
          if (isRun) {
            runs++;
            inRuns += count;
          }
          const type = TYPES[model.type[id]];
          const c = type === "sync" ? "host" : type;
          if (!classes.has(c)) classes.set(c, { type: c, count: 0, sum: 0, parts: [] });
          const sums = classes.get(c);
          sums.count += count;
          sums.sum += time;
          sums.parts.push([s, e]);
          if (c === "computing" || c === "transfer") device.push([s, e]);
          const key = c + "\n" + model.name(id);
          if (!names.has(key)) names.set(key, { name: model.name(id), type: c, count: 0, sum: 0, isRun: false });
          const named = names.get(key);
          named.count += count;
          named.sum += time;
          named.isRun = named.isRun || isRun;
        }
      });
    });
    function union(parts) {
      parts.sort(function (a, b) { return a[0] - b[0]; });
      let total = 0, reach = -Infinity;
      parts.forEach(function (p) {
        total += Math.max(0, p[1] - Math.max(p[0], reach));
        reach = Math.max(reach, p[1]);
      });
      return total;
    }
    const made = Array.from(classes.values()).sort(function (a, b) { return TYPES.indexOf(a.type) - TYPES.indexOf(b.type); });
    made.forEach(function (c) {
      c.union = union(c.parts);
      c.gap = end - start - c.union;
      delete c.parts;
    });
    const several = classes.has("computing") && classes.has("transfer");
    const busy = several ? union(device) : null;
    return {
      start: start, end: end, classes: made, runs: runs, inRuns: inRuns, onlyPlanes: onlyPlanes,
      device: several ? { union: busy, gap: end - start - busy } : null,
      names: Array.from(names.values()).sort(function (a, b) { return b.sum - a.sum; }),
      count: made.reduce(function (t, c) { return t + c.count; }, 0),
    };
  }

  /** The window as a trace for Perfetto or chrome://tracing. Times in us from the start of the step. */
  function trace(model, start, end) {
    const events = [], tracks = new Map(), launched = [];
    GROUPS.forEach(function (group, pid) {
      const lanes = model.lanes.filter(function (l) { return l.group === group; });
      const isCounters = group === "counters" && model.counters.length;
      if (!lanes.length && !isCounters) return;
      events.push({ ph: "M", name: "process_name", pid: pid, args: { name: AP.t("timeline.group_" + group) } });
      events.push({ ph: "M", name: "process_sort_index", pid: pid, args: { sort_index: pid } });
      lanes.forEach(function (l, tid) {
        tracks.set(l, { pid: pid, tid: tid });
        events.push({ ph: "M", name: "thread_name", pid: pid, tid: tid, args: { name: l.name } });
        events.push({ ph: "M", name: "thread_sort_index", pid: pid, tid: tid, args: { sort_index: tid } });
        l.ids.forEach(function (id) {
          if (model.e[id] < start || model.s[id] > end) return;
          const isRun = model.count[id] > 1;
          const args = {};
          if (model.shape(id)) args.shapes = model.shape(id);
          if (!isNaN(model.launch[id])) {
            args.launch_us = model.launch[id] / 1000;
            if (model.launch[id] >= start && launched.length < MOST_FLOWS) launched.push(id);
          }
          if (isRun) {
            args.merged = true;
            args.intervals = model.count[id];
            args.busy_us = model.busy[id] / 1000;
          }
          events.push({
            ph: "X", name: isRun ? "[merged] " + model.count[id] + " x " + model.name(id) + " ..." : model.name(id) || model.rawKind(id),
            cat: model.rawKind(id) || TYPES[model.type[id]], pid: pid, tid: tid, ts: model.s[id] / 1000, dur: (model.e[id] - model.s[id]) / 1000, args: args,
          });
        });
      });
      if (isCounters) model.counters.forEach(function (c) {
        for (let i = 0; i < c.t.length; i++) {
          if (c.t[i] >= start && c.t[i] <= end) events.push({ ph: "C", name: c.name + (c.unit === "none" ? "" : " (" + c.unit + ")"), pid: pid, ts: c.t[i] / 1000, args: { value: c.v[i] } });
        }
      });
    });
    // Arrows from the calls of the host, where these are in the page as they are.
    launched.forEach(function (id) {
      const host = hostAt(model, model.launch[id]);
      if (!host || model.count[host.id] > 1) return;
      const flow = { name: "launch", cat: "launch", id: id };
      events.push(Object.assign({ ph: "s", ts: model.launch[id] / 1000 }, flow, tracks.get(host.lane)));
      events.push(Object.assign({ ph: "f", bp: "e", ts: model.s[id] / 1000 }, flow, tracks.get(model.lanes[model.lane[id]])));
    });
    return JSON.stringify({ displayTimeUnit: "ns", traceEvents: events, otherData: { generator: AP.data.generator, start_ns: start, end_ns: end } });
  }

  /** Where on the host an instant lies: a runtime call before an operator, one that begins then before one that contains it. */
  function hostAt(model, when) {
    let best = null, rank = 9;
    model.lanes.forEach(function (l) {
      if (l.group !== "host" && l.group !== "dispatch") return;
      l.rows.forEach(function (row) {
        const i = AP.lanes.after(row.e, when, 0, row.s.length);
        if (i >= row.s.length || row.s[i] > when) return;
        const place = (row.s[i] === when ? 0 : 2) + (/^Runtime/.test(l.key) ? 0 : 1);
        if (place < rank) {
          rank = place;
          best = { lane: l, id: row.ids[i] };
        }
      });
    });
    return best;
  }

  /** Launch arrows: from the host's call to the pinned task, or from the pinned call to the tasks that it launched. */
  function links(model, p) {
    if (!p) return [];
    if (!isNaN(model.launch[p.id])) {
      const host = hostAt(model, model.launch[p.id]);
      return host ? [{ host: host, when: model.launch[p.id], task: p }] : [];
    }
    if (p.lane.group !== "host" && p.lane.group !== "dispatch") return [];
    const made = [];
    for (let id = 0; id < model.n && made.length < MOST_ARROWS; id++) {
      const when = model.launch[id];
      if (when >= model.s[p.id] && when < model.e[p.id]) made.push({ host: p, when: when, task: { id: id, lane: model.lanes[model.lane[id]] } });
    }
    return made;
  }

  AP.lanes = { build: build, summary: summary, statistics: statistics, trace: trace, links: links, MOST_ARROWS: MOST_ARROWS, after: after, from: from, TYPES: TYPES, GROUPS: GROUPS };
})();
