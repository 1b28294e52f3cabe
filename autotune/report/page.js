// Unpacks the page's data, and shows one problem at a time.
"use strict";
(async () => {
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  document.querySelectorAll(".scroll table").forEach(nameCells);
  if (typeof PLOTLY === "undefined") {
    document.getElementById("alone").hidden = false;
    return;
  }
  const [library, text] = await Promise.all(
    [unpacked(PLOTLY), unpacked(document.getElementById("data").textContent)]);
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);
  const data = JSON.parse(text);
  const problems = data.problems.map(withWords);

  // Adds the functions that figures call to a problem.
  function withWords(problem) {
    const t = problem.trials;
    problem.status = (i) => t.status[i];
    problem.failed = (i) => !["ok", "stopped_early"].includes(problem.status(i));
    problem.value = (p, i) => problem.parameters[p].trials[i];
    const places = problem.parameters.map((_, p) => p);
    const different = (p) => new Set(problem.parameters[p].trials).size;
    problem.varied = places.filter((p) => different(p) > 1);
    problem.fixed = places.filter((p) => different(p) === 1 && problem.value(p, 0) >= 0);
    problem.configuration = (i) => places.filter((p) => problem.value(p, i) >= 0).map((p) =>
      problem.parameters[p].name + "=" + problem.parameters[p].values[problem.value(p, i)]).join(", ");
    // The trials of each value of a parameter: times over the best, ascending, and failures.
    problem.groups = (p) => {
      const groups = problem.parameters[p].values.map((text) => ({ text, relative: [], failed: 0 }));
      t.time.forEach((time, i) => {
        const group = groups[problem.value(p, i)];
        if (group && time !== null) group.relative.push(time / problem.best);
        else if (group) group.failed += 1;
      });
      groups.forEach((group) => group.relative.sort((a, b) => a - b));
      return groups.filter((group) => group.relative.length || group.failed);
    };
    return problem;
  }

  const select = document.getElementById("problem");
  let shown = -1, drawing = 0;
  // Draws one figure after the other, so that the page stays responsive.
  async function draw(boxes) {
    const mine = ++drawing;
    for (const box of boxes) {
      if (mine !== drawing) return;
      FIGURES[box.dataset.figure](box, problems[shown], data[box.dataset.figure]);
      await new Promise((after) => setTimeout(after));
    }
    document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  }
  const ofProblem = () =>
    document.querySelectorAll(`.problem[data-problem="${shown}"] [data-figure]`);
  const drawAll = () =>
    draw([...document.querySelectorAll("#winners [data-figure]"), ...ofProblem()]);
  function show(number) {
    for (const part of document.querySelectorAll(".problem")) {
      // Browsers allow few WebGL contexts: hidden figures release theirs.
      if (Number(part.dataset.problem) !== number)
        part.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
      part.hidden = Number(part.dataset.problem) !== number;
    }
    shown = number;
    if (select) select.value = String(number);
    draw(ofProblem());
  }

  if (select) {
    select.addEventListener("change", () => show(Number(select.value)));
    document.querySelectorAll("#winner-per-problem tbody tr").forEach((row, number) => {
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
      const box = button.closest("section").querySelector("[data-figure=search]");
      FIGURES.search(box, problems[shown]);
    }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  if (problems.length) shown = 0;
  drawAll();
})();
