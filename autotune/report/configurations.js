// All configurations of a problem: parallel coordinates whose axes can be brushed, and below them
// a table of the selected configurations, sorted by any column.
"use strict";
const PAGE_ROWS = 100;

FIGURES.parallel = (box, problem) => {
  const t = problem.trials, part = box.closest(".problem");
  const rows = t.time.map((_, i) => i).filter((i) => t.time[i] !== null);
  // Slow ones first, so that fast lines lie on top.
  rows.sort((a, b) => t.time[b] - t.time[a]);
  const logs = rows.map((i) => Math.max(0, Math.log10(t.time[i] / problem.best)));
  // 0 for the fastest to 1 for the slowest. The rank spreads the lines of one value, and colours
  // them: times have long tails, ranks have none.
  const rank = rows.map((_, k) => 1 - k / Math.max(1, rows.length - 1));
  const highest = Math.max(logs[0], 0.02);
  const ticks = logTicks(1, 10 ** highest) || [1, 10 ** highest];
  const dimensions = problem.effects.map(({ parameter }) => {
    const { name, values } = problem.parameters[parameter];
    const marks = values.map((text, value) => [value, text]);
    const positions = rows.map((row) => problem.value(parameter, row));
    if (positions.includes(-1)) marks.unshift([-1, "–"]);
    return {
      label: plain(name.length > 24 ? name.slice(0, 23) + "…" : name),
      values: positions.map((value, k) => value + 0.5 * rank[k]),
      tickvals: marks.map(([value]) => value), ticktext: marks.map(([, text]) => plain(text)),
      range: [marks[0][0] - 0.1, values.length - 0.4],
    };
  });
  dimensions.push({ label: "time / best", values: logs, range: [0, highest],
    tickvals: ticks.map(Math.log10), ticktext: ticks.map(times) });
  if (rows.length >= 20) // the answer to the title's question, and a hint that axes can be brushed
    dimensions.at(-1).constraintrange = [0, logs[Math.floor(0.9 * rows.length)]];
  // Names that would run into one another are tilted.
  const room = Math.max(84, box.parentElement.clientWidth / dimensions.length);
  const longest = 8.5 * Math.max(...dimensions.map((dimension) => dimension.label.length));
  const tilt = longest > room ? 20 : 0;
  box.style.minWidth = 84 * dimensions.length + "px";
  const fast = colour("blue"), slow = colour("line");
  Plotly.newPlot(box, [{
    type: "parcoords", dimensions, labelangle: -tilt, labelfont: { color: colour("ink"), size: 13 },
    tickfont: { color: colour("dim"), size: 12 }, rangefont: { color: "rgba(0,0,0,0)" },
    line: { color: rank, colorscale: [[0, fast], [0.1, fast], [0.35, colour("grey")], [1, slow]],
      cmin: 0, cmax: 1 },
    unselected: { line: { color: colour("line"), opacity: Math.min(0.3, Math.max(0.06, 30 / rows.length)) } },
  }], layout({ margin: { l: 60, r: 60, t: tilt ? 44 + longest / 3 : 44, b: 24 } }), CONFIG);
  const showSelection = () => {
    const kept = rows.filter((_, k) => box.data[0].dimensions.every((axis) => inside(axis, k)));
    const best = kept.at(-1);
    part.querySelector("output").textContent = kept.length === rows.length ? "" :
      kept.length.toLocaleString("en") + " of " + rows.length.toLocaleString("en") + " selected" +
      (best === undefined ? "" : "; fastest " + digits(t.time[best]) + " " + problem.unit + ": " +
      problem.configuration(best));
    problem.kept = new Set(kept);
    const table = part.querySelector("[data-figure=configurations]");
    if (table) FIGURES.configurations(table, problem);
  };
  box.on("plotly_restyle", showSelection);
  showSelection();
};

function inside(axis, k) {
  const range = axis.constraintrange;
  if (!range || !range.length) return true;
  const ranges = Array.isArray(range[0]) ? range : [range];
  return ranges.some(([low, high]) => axis.values[k] >= low && axis.values[k] <= high);
}

// Columns of the table: title, sort key and cell text.
function columns(problem) {
  const t = problem.trials;
  const number = (title, list, text = String) => ({ title, key: (i) => list[i],
    text: (i) => (list[i] === null ? "–" : text(list[i])) });
  const made = [
    { title: "No.", key: (i) => i, text: (i) => String(i + 1) },
    { title: "Time (" + problem.unit + ")", key: (i) => t.time[i],
      text: (i) => (t.time[i] === null ? problem.status(i) : digits(t.time[i]) +
        (problem.status(i) === "ok" ? "" : " (stopped early)")) },
    { title: "Over best", key: (i) => t.time[i],
      text: (i) => (t.time[i] === null ? "–" : (t.time[i] / problem.best).toFixed(3) + "×") },
    ...problem.varied.map((p) => ({ title: problem.parameters[p].name,
      key: (i) => problem.value(p, i), text: (i) => problem.parameters[p].values[problem.value(p, i)] ?? "–" })),
  ];
  if (problem.front.length) made.push(number("Energy (" + problem.energy_unit + ")", t.energy, digits));
  if (t.registers.some((n) => n !== null)) made.push(number("Registers", t.registers));
  if (t.spills.some((n) => n)) made.push(number("Spills (B)", t.spills));
  if (t.shared.some((n) => n)) made.push(number("Shared (B)", t.shared));
  return made;
}

// Gives each cell the name of its column, which narrow pages show next to the cell.
function nameCells(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows)
    [...row.cells].forEach((cell, column) => { cell.dataset.name = names[column]; });
  table.classList.add("named");
}

FIGURES.configurations = (box, problem) => {
  const t = problem.trials, all = t.time.map((_, i) => i);
  const state = (problem.sorting ??= { column: 1, down: false, shown: PAGE_ROWS, all: false });
  const made = columns(problem);
  const listed = state.all || !problem.kept ? all : all.filter((i) => problem.kept.has(i));
  const { key } = made[state.column], sign = state.down ? -1 : 1;
  // Rows without a number come last in either order.
  listed.sort((a, b) => {
    const [left, right] = [key(a) ?? null, key(b) ?? null];
    if (left === null || right === null) return (left === null) - (right === null) || a - b;
    return sign * (left - right) || a - b;
  });
  const again = (change) => { Object.assign(state, change); FIGURES.configurations(box, problem); };
  const element = (tag, text, parent) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const table = document.createElement("table"), head = element("tr", undefined, element("thead", undefined, table));
  if (made.length > 16) table.className = "upright";
  made.forEach(({ title }, c) => {
    const cell = element("th", undefined, head), button = element("button", title, cell);
    cell.scope = "col";
    cell.className = "n";
    button.type = "button";
    if (c === state.column) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    button.addEventListener("click", () =>
      again({ column: c, down: c === state.column && !state.down, shown: PAGE_ROWS }));
  });
  const body = element("tbody", undefined, table);
  for (const i of listed.slice(0, state.shown)) {
    const row = element("tr", undefined, body);
    if (i === t.winner) row.className = "strong";
    if (t.message[i]) row.title = t.message[i];
    for (const { text } of made) element("td", text(i), row).className = "n";
  }
  nameCells(table);
  const which = document.createElement("p");
  const scope = element("span", undefined, which);
  scope.className = "switch";
  for (const [name, value] of [["selected by the axes", false], ["all configurations", true]]) {
    const button = element("button", name, scope);
    button.type = "button";
    button.setAttribute("aria-pressed", String(state.all === value));
    button.addEventListener("click", () => again({ all: value, shown: PAGE_ROWS }));
  }
  element("span", " " + listed.length.toLocaleString("en") + " of " + all.length.toLocaleString("en"), which);
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.append(table);
  const focus = box.contains(document.activeElement) ? document.activeElement.textContent : null;
  box.replaceChildren(which, scroll);
  if (problem.fixed.length) element("p", "All have " + problem.fixed.map((p) =>
    problem.parameters[p].name + "=" + problem.parameters[p].values[problem.value(p, 0)])
    .join(", ") + ".", box).className = "how";
  if (listed.length > state.shown) {
    const more = element("button", "Show " + PAGE_ROWS + " more", element("p", undefined, box));
    more.type = "button";
    more.className = "more";
    more.addEventListener("click", () => again({ shown: state.shown + PAGE_ROWS }));
  }
  if (focus !== null) // the pressed button was replaced: focus its successor
    [...box.querySelectorAll("button")].find((button) => button.textContent === focus)?.focus();
};
