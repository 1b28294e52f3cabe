// Draws the figures. Each function in FIGURES fills the elements with its name in `data-figure`. It
// gets the element, the selected problem, and the page's data of that name. Foreign text is never
// HTML: it goes through textContent, or through `plain` for plotly, which reads tags.
"use strict";
const FIGURES = {};
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
// Values with fewer trials get no box: their quartiles mean nothing.
const BOX_FROM = 8;
// Above this number of points, WebGL draws them.
const MANY_POINTS = 2000;
// Maximum number of single points that are drawn with a box.
const MAX_BOX_POINTS = 200;

const plain = (text) =>
  String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const digits = (value) => Number(value.toPrecision(4)).toString();

// One symbol, one meaning, in all figures; docs/reports.md lists them.
const SYMBOLS = {
  winner: () => ({ symbol: "star", size: 15, color: colour("green") }),
  timed: () => ({ symbol: "circle", size: 6, color: colour("grey"), opacity: 0.7 }),
  "stopped early": () => ({ symbol: "triangle-down-open", size: 7, color: colour("amber") }),
  failed: () => ({ symbol: "x-thin", size: 7, opacity: 0.7, color: colour("red"),
    line: { width: 1.5, color: colour("red") } }),
  fastest: () => ({ symbol: "diamond", size: 9, color: colour("blue") }),
  vendor: () => ({ symbol: "square", size: 9, color: colour("purple") }),
};

function layout(extra) {
  const axis = {
    gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, automargin: true,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    font: { color: colour("ink"), size: 13, family: "system-ui, sans-serif" },
    margin: { l: 60, r: 16, t: 8, b: 44 },
    hoverlabel: { align: "left", bgcolor: colour("card"), bordercolor: colour("line"),
      font: { color: colour("ink") } },
    ...extra,
    xaxis: { ...axis, ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
  };
}
const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };

// Round ticks of a logarithmic axis, also if it spans less than a decade.
function logTicks(low, high) {
  for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7],
    [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const step of steps) {
        const tick = step * 10 ** power;
        if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
      }
    if (found.length >= 3) return found;
  }
  return undefined;
}
function logAxis(low, high, text = digits) {
  const ticks = logTicks(low, high);
  const range = [Math.log10(low), Math.log10(high)];
  return ticks
    ? { type: "log", range, tickvals: ticks, ticktext: ticks.map(text) }
    : { type: "log", range, nticks: 5 };
}
const times = (value) => digits(value) + "×";
// 2.4e12 as "2.4 T".
function prefixed(value) {
  const [size, letter] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [0, ""]]
    .find(([least]) => value >= least * 0.9999);
  return digits(value / (size || 1)) + " " + letter;
}

// Wraps text at spaces.
function wrapped(text, width = 60) {
  const found = [""];
  for (const word of text.split(" ")) {
    if (found.at(-1).length + word.length > width && found.at(-1)) found.push("");
    found[found.length - 1] += (found.at(-1) ? " " : "") + word;
  }
  return found.map(plain).join("<br>");
}

FIGURES.search = (box, problem) => {
  const t = problem.trials;
  const bySeconds = box.closest("section").querySelector("[data-axis=seconds][aria-pressed=true]");
  const along = (i) => (bySeconds ? t.seconds[i] : i + 1);
  const all = t.time.map((_, i) => i);
  const hover = (i) => wrapped(problem.configuration(i)) + "<br>" +
    (t.time[i] === null ? "" : digits(t.time[i]) + " " + problem.unit + " ") + problem.status(i) +
    (t.message[i] ? "<br>" + wrapped(t.message[i]) : "");
  let least = Infinity, most = 0;
  for (const time of t.time)
    if (time !== null) { least = Math.min(least, time); most = Math.max(most, time); }
  most = Math.max(most, least * 1.1);
  // Room below the best time for the crosses of failed trials.
  const low = least * (least / most) ** 0.12, high = most * (most / least) ** 0.04;
  const points = (name, keep, y) => {
    const kept = all.filter(keep);
    const many = all.length > MANY_POINTS;
    return { type: many ? "scattergl" : "scatter", mode: "markers", name,
      marker: { ...SYMBOLS[name](), ...(many ? { size: 4, opacity: 0.5 } : {}) }, hoverinfo: "text", x: kept.map(along), y: kept.map(y),
      text: kept.map(hover) };
  };
  const best = { x: [], y: [] };
  all.forEach((i) => {
    if (problem.status(i) === "ok" && (!best.y.length || t.time[i] < best.y.at(-1))) {
      best.x.push(along(i)); best.y.push(t.time[i]);
    }
  });
  if (best.x.length) { best.x.push(along(all.length - 1)); best.y.push(best.y.at(-1)); }
  const traces = [
    points("timed", (i) => problem.status(i) === "ok", (i) => t.time[i]),
    points("stopped early", (i) => problem.status(i) === "stopped_early", (i) => t.time[i]),
    points("failed", problem.failed, () => low * (least / low) ** 0.35),
    { type: "scatter", mode: "lines", name: "best so far", line: { shape: "hv", width: 2.5,
      color: colour("blue") }, hoverinfo: "skip", ...best },
  ].filter((trace) => trace.x.length);
  if (t.winner >= 0 && t.time[t.winner] !== null) traces.push({
    type: "scatter", mode: "markers", name: "winner of the finals", hoverinfo: "text",
    x: [along(t.winner)], y: [t.time[t.winner]], text: [hover(t.winner)],
    marker: SYMBOLS.winner() });
  Plotly.react(box, traces, layout({
    legend: LEGEND, margin: { l: 64, r: 16, t: 34, b: 48 },
    xaxis: { title: { text: bySeconds
      ? "Compile, verify and measure time spent (s)" : "Configurations tried" } },
    yaxis: { title: { text: "Time (" + problem.unit + ")" }, ...logAxis(low, high) },
  }), CONFIG);
};

// Return a quantile of sorted numbers, interpolated.
function quantile(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  const next = sorted[Math.min(low + 1, sorted.length - 1)];
  return sorted[low] + (at - low) * (next - sorted[low]);
}

FIGURES.parameters = (box, problem) => {
  box.replaceChildren();
  let high = 1.1;
  for (const time of problem.trials.time) high = Math.max(high, (time ?? 0) / problem.best);
  high **= 1.06;
  for (const effect of problem.effects) {
    const panel = document.createElement("div");
    panel.className = "panel";
    const title = document.createElement("h4"), share = document.createElement("span");
    title.textContent = problem.parameters[effect.parameter].name;
    share.textContent = effect.share;
    title.append(share);
    const plot = document.createElement("div");
    panel.append(title, plot);
    box.append(panel);
    const groups = problem.groups(effect.parameter);
    const traces = [], x = [], y = [];
    groups.forEach(({ relative }, i) => {
      if (relative.length >= BOX_FROM) traces.push({ type: "box", x: [i],
        q1: [quantile(relative, 0.25)], median: [quantile(relative, 0.5)],
        q3: [quantile(relative, 0.75)], lowerfence: [relative[0]],
        upperfence: [relative.at(-1)], fillcolor: "rgba(0,0,0,0)", hoverinfo: "y", width: 0.6,
        line: { color: colour("dim"), width: 1.4 }, showlegend: false });
      if (relative.length <= MAX_BOX_POINTS) relative.forEach((time, k) => {
        // Spread evenly and deterministically, with the fastest in the middle.
        x.push(i + 0.36 * (((k * 0.618 + 0.5) % 1) - 0.5));
        y.push(time);
      });
    });
    traces.push({ type: "scatter", mode: "markers", x, y, hoverinfo: "y", showlegend: false,
      marker: { ...SYMBOLS.timed(), size: 4, opacity: 0.55 } });
    traces.push({ type: "scatter", mode: "markers", x: groups.map((_, i) => i),
      y: groups.map(({ relative }) => relative[0] ?? null), marker: SYMBOLS.fastest(),
      hoverinfo: "text", showlegend: false, text: groups.map(({ text, relative, failed }) =>
        (relative.length ? "fastest with " + plain(text) + ": " + relative[0].toFixed(3) + "×" : "") +
        (failed ? "<br>failed: " + failed : "")) });
    Plotly.newPlot(plot, traces, layout({
      margin: { l: 44, r: 8, t: 6, b: 28 },
      xaxis: { tickvals: groups.map((_, i) => i), range: [-0.5, groups.length - 0.5],
        ticktext: groups.map(({ text }) => plain(text)), showgrid: false, fixedrange: true },
      yaxis: { ...logAxis(high ** -0.05, high, times), fixedrange: true },
    }), CONFIG);
  }
};

// Time and energy of each configuration, and their Pareto front.
FIGURES.front = (box, problem) => {
  const t = problem.trials, most = 4;
  const [fastest, frugal] = [problem.front[0], problem.front.at(-1)];
  const known = t.time.map((_, i) => i).filter((i) => t.time[i] !== null && t.energy[i] !== null);
  // Points above this multiple of the smallest time or energy would shrink the front to a point.
  const shown = known.filter((i) =>
    t.time[i] <= most * t.time[fastest] && t.energy[i] <= most * t.energy[frugal]);
  const hover = (i) => wrapped(problem.configuration(i)) + "<br>" + digits(t.time[i]) + " " +
    problem.unit + ", " + digits(t.energy[i]) + " " + problem.energy_unit;
  const points = (name, rows, kind, extra = {}) => ({ type: "scatter", mode: "markers", name,
    x: rows.map((i) => t.time[i]), y: rows.map((i) => t.energy[i]), hoverinfo: "text",
    text: rows.map(hover), marker: SYMBOLS[kind]?.(), ...extra });
  const front = points("front", problem.front, "", { mode: "lines+markers",
    line: { shape: "hv", color: colour("blue"), width: 2 }, marker: { size: 7 } });
  const winner = shown.filter((i) => i === t.winner), beyond = known.length - shown.length;
  const all = [...shown, ...problem.front];
  const axis = (list, least) =>
    logAxis(list[least] / 1.03, Math.max(...all.map((i) => list[i])) * 1.03);
  Plotly.react(box, [points("other", shown, "timed"), front,
    ...(winner.length ? [points("winner", winner, "winner")] : [])], layout({
    legend: LEGEND, margin: { l: 64, r: 16, t: 34, b: 48 },
    xaxis: { title: { text: "Time of a call (" + problem.unit + ")" +
      (beyond ? "; " + beyond + " configurations with more time or energy are not shown" : "") },
    ...axis(t.time, fastest) },
    yaxis: { title: { text: "Energy of a call (" + problem.energy_unit + ")" },
      ...axis(t.energy, frugal) },
  }), CONFIG);
};

// All winners below the roofs of the device: operations over intensity, or for a kernel that only
// moves data its bandwidth over the bytes. Each measured limit is a roof of its own. A problem's limit
// is its rate over its share, so that the figure shows the percentages of the table.
FIGURES.roofline = (box, _, found) => {
  const { points, memory, of_bytes } = found;
  const arithmetic = of_bytes ? {} : found.arithmetic;
  const x = (point) => (of_bytes ? point.bytes : point.operations / point.bytes);
  const work = (point) => (of_bytes ? point.bytes : point.operations);
  const unit = of_bytes ? "B/s" : "FLOP/s";
  const below = (roof, at) => roof.rate * (of_bytes ? 1 : at);
  const ridge = (roof, bandwidth = memory[0]) => (bandwidth ? roof.rate / bandwidth.rate : 0);
  const limit = (point) => work(point) / point.seconds / point.share;
  // An edge far from all points would push them into a corner.
  const edges = points.filter((point) => memory.length && arithmetic[point.roof]).filter((point) =>
    Math.abs(Math.log(x(point) / ridge(arithmetic[point.roof]))) < Math.log(8));
  const across = [...points.map(x), ...edges.map((point) => ridge(arithmetic[point.roof]))];
  const low = Math.min(...across) / 2, high = Math.max(...across) * 2;
  const level = Object.values(arithmetic).filter((roof) => ridge(roof) < high);
  // Where arithmetic limits all problems, memory is drawn up to the highest roof only.
  const end = (roof) => (level.length && points.every((point) => arithmetic[point.roof])
    ? Math.min(high, Math.max(...level.map((top) => ridge(top, roof)))) : high);
  const rising = memory.filter((roof) => low < end(roof));
  const roofs = [
    ...rising.map((roof) => [roof, low, below(roof, low), end(roof), below(roof, end(roof))]),
    ...level.map((roof) => [roof, Math.max(low, ridge(roof)), roof.rate, high, roof.rate]),
  ];
  const rates = points.flatMap((point) => [point.seconds, point.vendor_seconds]
    .filter(Boolean).map((seconds) => work(point) / seconds));
  const bottom = Math.min(...rates) / 2;
  const top = Math.max(...rates, ...roofs.map((roof) => roof.at(-1))) * 2;
  const marks = (name, kind, size, seconds, text) => {
    const timed = points.filter(seconds);
    return { type: "scatter", mode: "markers", name, hoverinfo: "text",
      marker: { ...SYMBOLS[kind](), size },
      x: timed.map(x), y: timed.map((point) => work(point) / seconds(point)), text:
        timed.map((point) => plain(point.name) + "<br>" + prefixed(work(point) / seconds(point)) +
          unit + " in " + text(point) + (point.share ? "<br>" + digits(100 * work(point) /
          seconds(point) / limit(point)) + " % of " + point.limit : "")) };
  };
  const lines = roofs.map(([roof, from, low, to, high]) => ({ type: "scatter",
    mode: "lines+text", x: [from, to], y: [low, high], text: ["", roof.label],
    // Memory roofs are close to each other: the others have their names below the line.
    textposition: rising.indexOf(roof) > 0 ? "bottom left" : "top left", showlegend: false,
    hoverinfo: "skip", line: { color: colour("ink"), width: 1.5 } }));
  const drops = points.filter((point) => point.share);
  const vendors = [...new Set(points.map((point) => point.vendor).filter(Boolean))];
  Plotly.react(box, [
    { type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false,
      x: drops.flatMap((point) => [x(point), x(point), null]),
      y: drops.flatMap((point) => [work(point) / point.seconds, limit(point), null]),
      line: { color: colour("grey"), width: 1, dash: "dot" } },
    ...lines,
    ...(vendors.length ? [marks(plain(vendors.join(" or ")), "vendor", 7,
      (point) => point.vendor_seconds, (point) => point.vendor_time)] : []),
    marks("winners", "winner", 11, (point) => point.seconds, (point) => point.time),
  ], layout({
    legend: LEGEND, margin: { l: 74, r: 16, t: 34, b: 48 },
    xaxis: { title: { text: of_bytes ? "Bytes read and written (B)"
      : "Operations per byte moved (FLOP/B)" },
      ...logAxis(low, high, of_bytes ? prefixed : digits) },
    yaxis: { title: { text: (of_bytes ? "Bandwidth" : "Operations per second") +
      " (" + unit + ")" }, ...logAxis(bottom, top, prefixed) },
  }), CONFIG);
};
