// Draws the figures of one problem at a time from the JSON in #data. Text of others is never HTML:
// it goes through textContent, or through `plain` where plotly would read tags.
"use strict";
(() => {
  const { problems } = JSON.parse(document.getElementById("data").textContent);
  const plain = (text) =>
    String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
  const FAILED = (status) => status !== "ok" && status !== "stopped_early";
  const digits = (value) => Number(value.toPrecision(4)).toString();

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

  // Round ticks of a logarithmic axis that rarely spans two decades.
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
  function logAxis(low, high, suffix = "") {
    const ticks = logTicks(low, high);
    const range = [Math.log10(low), Math.log10(high)];
    return ticks
      ? { type: "log", range, tickvals: ticks, ticktext: ticks.map((t) => digits(t) + suffix) }
      : { type: "log", range, ticksuffix: suffix, nticks: 5 };
  }

  function configuration(problem, row) {
    const shown = [];
    problem.parameters.forEach((parameter, i) => {
      if (row[i] >= 0 && parameter.free) shown.push(parameter.name + "=" + parameter.values[row[i]]);
    });
    return shown.join(", ");
  }
  function wrapped(text, width = 60) {
    const lines = [""];
    for (const word of text.split(" ")) {
      if (lines.at(-1).length + word.length > width && lines.at(-1)) lines.push("");
      lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
    }
    return lines.map(plain).join("<br>");
  }

  function search(box, problem, axis) {
    const t = problem.trials;
    const along = (i) => (axis === "seconds" ? t.seconds[i] : i + 1);
    const all = t.time.map((_, i) => i);
    const hover = (i) => wrapped(configuration(problem, t.values[i])) + "<br>" +
      (t.time[i] === null ? "" : digits(t.time[i]) + " " + problem.unit + " ") + t.status[i] +
      (t.messages[t.message[i]] ? "<br>" + wrapped(t.messages[t.message[i]]) : "");
    const timed = t.time.filter((time) => time !== null);
    const least = Math.min(...timed), most = Math.max(...timed, least * 1.1);
    // Room below the best for the crosses of what failed.
    const low = least * (least / most) ** 0.12, high = most * (most / least) ** 0.04;
    const points = (name, keep, marker, y) => ({
      type: "scatter", mode: "markers", name, marker, hoverinfo: "text",
      x: all.filter(keep).map(along), y: all.filter(keep).map(y), text: all.filter(keep).map(hover),
    });
    const best = { x: [], y: [] };
    all.forEach((i) => {
      if (t.status[i] === "ok" && (!best.y.length || t.time[i] < best.y.at(-1))) {
        best.x.push(along(i)); best.y.push(t.time[i]);
      }
    });
    if (best.x.length) { best.x.push(along(all.length - 1)); best.y.push(best.y.at(-1)); }
    const traces = [
      points("timed", (i) => t.status[i] === "ok",
        { color: colour("grey"), size: 6, opacity: 0.7 }, (i) => t.time[i]),
      points("stopped early", (i) => t.status[i] === "stopped_early",
        { color: colour("amber"), size: 6, opacity: 0.7 }, (i) => t.time[i]),
      points("failed", (i) => FAILED(t.status[i]),
        { color: colour("red"), size: 7, opacity: 0.6, symbol: "x-thin", line: { width: 1.5, color: colour("red") } },
        () => low * (least / low) ** 0.35),
      { type: "scatter", mode: "lines", name: "best so far", line: { shape: "hv", width: 2.5,
        color: colour("blue") }, hoverinfo: "skip", ...best },
    ].filter((trace) => trace.x.length);
    if (t.winner >= 0 && t.time[t.winner] !== null) traces.push({
      type: "scatter", mode: "markers", name: "winner of the finals", hoverinfo: "text",
      x: [along(t.winner)], y: [t.time[t.winner]], text: [hover(t.winner)],
      marker: { color: colour("green"), size: 12, symbol: "diamond" } });
    Plotly.react(box, traces, layout({
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      margin: { l: 64, r: 16, t: 34, b: 48 },
      xaxis: { title: { text: axis === "seconds"
        ? "Compile, verify and measure time spent (s)" : "Configurations tried" } },
      yaxis: { title: { text: "Time (" + problem.unit + ")" }, ...logAxis(low, high) },
    }), CONFIG);
  }

  function parameters(box, problem) {
    box.replaceChildren();
    const everything = problem.effects.flatMap((e) => e.values.flatMap((v) => v.relative));
    const high = Math.max(1.1, ...everything) * 1.05;
    for (const effect of problem.effects) {
      const panel = document.createElement("div");
      panel.className = "panel";
      const title = document.createElement("h4"), share = document.createElement("span");
      title.textContent = effect.name;
      share.textContent = effect.share;
      title.append(share);
      const plot = document.createElement("div");
      panel.append(title, plot);
      box.append(panel);
      const traces = effect.values.map((value, i) => ({
        type: "box", name: plain(value.text), x0: i, y: value.relative, boxpoints:
          value.relative.length > 200 ? "outliers" : "all", jitter: 0.6, pointpos: 0,
        marker: { color: colour("grey"), size: 4, opacity: 0.55 }, fillcolor: "rgba(0,0,0,0)",
        // A box of three would pretend to know quartiles.
        line: { color: value.relative.length < 4 ? "rgba(0,0,0,0)" : colour("blue"), width: 1.4 },
        showlegend: false, hoverinfo: "y",
      }));
      const fastest = effect.values.map((v) => (v.relative.length ? Math.min(...v.relative) : null));
      traces.push({ type: "scatter", mode: "markers", x: fastest.map((_, i) => i), y: fastest,
        marker: { color: colour("green"), size: 9, symbol: "diamond" }, hoverinfo: "text",
        showlegend: false, text: fastest.map((time, i) => time === null ? "" :
          "fastest with " + plain(effect.values[i].text) + ": " + time.toFixed(3) + "×" +
          (effect.values[i].failed ? "<br>failed: " + effect.values[i].failed : "")) });
      Plotly.newPlot(plot, traces, layout({
        margin: { l: 44, r: 8, t: 6, b: 28 },
        xaxis: { tickvals: fastest.map((_, i) => i), range: [-0.5, fastest.length - 0.5],
          ticktext: effect.values.map((v) => plain(v.text)), showgrid: false, fixedrange: true },
        yaxis: { ...logAxis(high ** -0.05, high, "×"), fixedrange: true },
      }), CONFIG);
    }
  }

  function parallel(box, problem, output) {
    const t = problem.trials;
    const rows = t.time.map((_, i) => i).filter((i) => t.time[i] !== null);
    // Slow ones first, so that fast lines lie on top.
    rows.sort((a, b) => t.time[b] - t.time[a]);
    const logs = rows.map((i) => Math.log10(t.time[i] / problem.best));
    // 0 for the fastest to 1 for the slowest. Spreads the lines of one value, which would else
    // cover each other, and colours them: times have long tails, ranks have none.
    const rank = rows.map((_, k) => 1 - k / Math.max(1, rows.length - 1));
    const columns = problem.axes.map((i) => [problem.parameters[i], i]);
    const highest = Math.max(...logs, 0.02);
    const ticks = logTicks(1, 10 ** highest) || [1, 10 ** highest];
    const dimensions = columns.map(([parameter, i]) => ({
      label: plain(parameter.name.length > 12 ? parameter.name.slice(0, 11) + "…" : parameter.name), values: rows.map((row, k) => t.values[row][i] + 0.5 * rank[k]),
      tickvals: parameter.values.map((_, k) => k), ticktext: parameter.values.map(plain),
      range: [-0.1, parameter.values.length - 0.4],
    }));
    dimensions.push({ label: "time / best", values: logs, range: [0, highest],
      tickvals: ticks.map(Math.log10), ticktext: ticks.map((tick) => digits(tick) + "×") });
    if (rows.length >= 20) // the answer to the title's question, and a hint that axes can be brushed
      dimensions.at(-1).constraintrange = [0, logs[Math.floor(0.9 * rows.length)]];
    box.style.minWidth = 90 * dimensions.length + "px";
    const fast = colour("blue"), slow = colour("line");
    Plotly.newPlot(box, [{
      type: "parcoords", dimensions, labelfont: { color: colour("ink"), size: 13 },
      tickfont: { color: colour("dim"), size: 12 }, rangefont: { color: "rgba(0,0,0,0)" },
      line: { color: rank, colorscale: [[0, fast], [0.1, fast], [0.35, colour("grey")], [1, slow]],
        cmin: 0, cmax: 1 },
      unselected: { line: { color: colour("line"), opacity: Math.min(0.3, Math.max(0.06, 30 / rows.length)) } },
    }], layout({ margin: { l: 60, r: 60, t: 44, b: 24 } }), CONFIG);
    const tell = () => {
      const kept = rows.filter((_, k) => dimensions.every((_, d) => inside(box.data[0].dimensions[d], k)));
      if (kept.length === rows.length) { output.textContent = ""; return; }
      const best = kept.at(-1);
      output.textContent = kept.length + " of " + rows.length + " kept" + (best === undefined ? "" :
        "; fastest " + digits(t.time[best]) + " " + problem.unit + ": " +
        configuration(problem, t.values[best]));
    };
    box.on("plotly_restyle", tell);
    tell();
  }
  function inside(dimension, k) {
    const range = dimension.constraintrange;
    if (!range || !range.length) return true;
    const ranges = Array.isArray(range[0]) ? range : [range];
    return ranges.some(([low, high]) => dimension.values[k] >= low && dimension.values[k] <= high);
  }

  function finals(box, problem) {
    const rows = problem.finals;
    const kinds = { winner: "green", tied: "blue", slower: "grey", vendor: "amber" };
    const cut = (text) => (text.length > 34 ? text.slice(0, 33) + "…" : text);
    const narrow = box.clientWidth < 600;
    const traces = Object.keys(kinds).map((kind) => {
      const those = rows.map((row, i) => [row, i]).filter(([row]) => row.kind === kind);
      const at = (pick) => those.map(([row]) => pick(row));
      return {
        type: "scatter", mode: "markers", name: kind, hoverinfo: "text", showlegend: false,
        x: at((row) => row.ratio[1]), y: those.map(([, i]) => i),
        text: at((row) => wrapped(row.name) + "<br>" + row.time + ", " + row.ratio[1].toFixed(3) +
          "× (" + row.ratio[0].toFixed(3) + " – " + row.ratio[2].toFixed(3) + ")<br>" + row.kind),
        marker: { color: colour(kinds[kind]), size: 10, symbol: "diamond" },
        error_x: { type: "data", symmetric: false, thickness: 2, width: 5,
          color: colour(kinds[kind]), array: at((row) => row.ratio[2] - row.ratio[1]),
          arrayminus: at((row) => row.ratio[1] - row.ratio[0]) },
      };
    }).filter((trace) => trace.x.length);
    box.style.height = 80 + 28 * rows.length + "px";
    Plotly.newPlot(box, traces, layout({
      margin: { l: 20, r: 20, t: 6, b: 46 },
      shapes: [{ type: "line", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1,
        line: { color: colour("green"), width: 1, dash: "dot" } }],
      xaxis: { title: { text: "Time over the winner's (right is slower)" }, ticksuffix: "×",
        nticks: narrow ? 4 : 8 },
      yaxis: { autorange: false, range: [rows.length - 0.5, -0.5], fixedrange: true,
        tickvals: rows.map((_, i) => i), showgrid: false,
        ticktext: rows.map((row, i) => plain(narrow ? (row.kind === "winner" || row.kind === "vendor"
          ? row.name.slice(0, 12) : "no. " + (i + 1)) : cut(row.name))) },
    }), CONFIG);
  }

  let shown = -1;
  function draw() {
    if (shown < 0) return;
    const problem = problems[shown];
    const part = document.querySelector(`.problem[data-problem="${shown}"]`);
    const box = (name) => part.querySelector(`[data-figure="${name}"]`);
    if (box("finals")) finals(box("finals"), problem);
    if (box("search")) {
      const pressed = part.querySelector("[data-axis][aria-pressed=true]");
      search(box("search"), problem, pressed.dataset.axis);
    }
    if (box("parameters")) parameters(box("parameters"), problem);
    if (box("parallel")) parallel(box("parallel"), problem, part.querySelector("output"));
  }
  function show(number) {
    for (const part of document.querySelectorAll(".problem")) {
      // Browsers allow few WebGL contexts: what is not seen gives its own back.
      if (Number(part.dataset.problem) !== number)
        part.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
      part.hidden = Number(part.dataset.problem) !== number;
    }
    shown = number;
    if (select) select.value = String(number);
    draw();
  }

  const select = document.getElementById("problem");
  if (select) {
    select.addEventListener("change", () => show(Number(select.value)));
    document.querySelectorAll("#answer > .scroll:first-of-type tbody tr").forEach((row, number) => {
      const button = document.createElement("button"), cell = row.cells[0];
      button.type = "button";
      button.textContent = cell.textContent;
      button.addEventListener("click", () => {
        show(number);
        select.scrollIntoView({ behavior: "smooth" });
      });
      cell.replaceChildren(button);
    });
  }
  document.querySelectorAll("[data-axis]").forEach((button) =>
    button.addEventListener("click", () => {
      button.parentElement.querySelectorAll("[data-axis]").forEach((other) =>
        other.setAttribute("aria-pressed", String(other === button)));
      draw();
    }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  if (problems.length) show(0);
})();
