"use strict";
// The page of luna-report.

const MOST_OPTIONS = 30; // that stand open above the curves; of runs of different tasks far more differ

class Board {
  constructor(data) {
    this.data = data;
    this.state = { off: new Set(), axis: "updates", range: null, options: false };
    this.remember();
    this.charts = data.charts.map((chart) => new Chart(chart, this));
    this.samples = data.samples.length ? new Samples(this) : null;
    this.tables = el("div", {});
    this.lengths = el("div", {});
    this.swatches = [];
    this.build();
  }

  /** Choices stand in the address, so that a reload keeps them. */
  remember() {
    const kept = new URLSearchParams(location.hash.slice(1));
    if (AXES[kept.get("axis")]) this.state.axis = kept.get("axis");
    for (const run of (kept.get("off") || "").split(",").filter(Boolean)) this.state.off.add(Number(run));
  }

  keep() {
    keepInAddress({ axis: this.state.axis, off: [...this.state.off].join(",") });
  }

  shownRuns() {
    return this.data.runs.map((_, run) => run).filter((run) => !this.state.off.has(run));
  }

  build() {
    const main = this.charts.filter((chart) => chart.chart.open);
    const others = this.charts.filter((chart) => !chart.chart.open);
    const more = el("details", { ontoggle: () => others.forEach((chart) => chart.draw()) },
      el("summary", {}, `${others.length} more figures`), el("div", { className: "charts" }, others.map((chart) => chart.node)));
    document.body.append(
      el("h1", {}, this.data.title),
      this.bar(),
      el("main", {}, this.tables,
        this.charts.length ? el("h2", {}, "Curves") : el("p", {}, "The logs have no curve yet."),
        this.charts.length ? el("p", { className: "faint screen" },
          "Drag to zoom, double-click for the whole. By keyboard, on a chart: arrows read values, Shift with arrows moves, + and - "
          + "zoom, 0 shows the whole. Training is the thin line, validation the thick one.") : null,
        el("div", { className: "charts" }, main.map((chart) => chart.node)),
        others.length ? more : null, this.lengths, this.samples && this.samples.node),
    );
    onThemeChange(() => this.draw());
    this.draw();
    if (this.data.watch) setTimeout(() => location.reload(), 1000 * this.data.watch);
  }

  bar() {
    const boxes = this.data.runs.map((run, place) => {
      const line = swatch(place);
      this.swatches.push(line);
      const box = el("input", { type: "checkbox", checked: !this.state.off.has(place), onchange: () => this.choose(place, box.checked) });
      return el("label", { title: run.path }, box, line, run.name);
    });
    const known = Object.keys(AXES).filter((axis) => axis === "updates" || this.data.runs.some((run) => run.axes[axis]));
    const axis = el("select", { id: "axis", onchange: () => this.against(axis.value) },
      known.map((name) => el("option", { value: name, selected: name === this.state.axis }, name)));
    const button = (text, label, act) => el("button", { type: "button", title: label, ariaLabel: label, onclick: act }, text);
    return el("nav", { className: "bar", ariaLabel: "what the charts show" }, el("div", { className: "group" }, boxes),
      el("label", { className: "screen" }, "against ", axis),
      el("div", { className: "group screen" }, button("+", "zoom in", () => this.scale(0.5)),
        button("−", "zoom out", () => this.scale(2)), button("◀", "earlier", () => this.move(-0.25)),
        button("▶", "later", () => this.move(0.25)), button("whole", "show the whole", () => this.whole())));
  }

  choose(run, on) {
    if (on) this.state.off.delete(run);
    else this.state.off.add(run);
    this.keep();
    this.draw();
  }

  against(axis) {
    this.state.axis = axis;
    this.state.range = null;
    this.keep();
    this.draw();
  }

  draw() {
    this.swatches.forEach((line) => line.redraw());
    this.tables.replaceChildren(...this.overview());
    this.lengths.replaceChildren(...(this.data.lengths.length
      ? [el("h2", {}, "BLEU by length of the source"), el("p", { className: "faint" },
        "sacreBLEU of fairseq-generate's text as it stands; ratio: length of the translations over that of the references."),
      lengthTable(this)] : []));
    this.quiet = true;
    this.charts.forEach((chart) => chart.node.offsetParent !== null && chart.draw());
    this.quiet = false;
    if (this.samples) this.samples.draw();
  }

  overview() {
    const runs = this.shownRuns().map((run) => this.data.runs[run]);
    const headings = [...new Set(runs.flatMap((run) => Object.keys(run.summary)))];
    const parts = [el("h2", {}, "Runs"), table(["", ...runs.map((run) => run.name)],
      headings.map((heading) => [heading, ...runs.map((run) => run.summary[heading] || "–")]), "runs")];
    for (const text of this.remarks(runs)) parts.push(el("p", { className: "faint" }, text));
    if (this.data.seeds.length) parts.push(...this.seeds());
    if (this.data.options.length && runs.length > 1) parts.push(...this.options());
    return parts;
  }

  /** What is said of the runs, once if it is the same of several. */
  remarks(runs) {
    const said = new Map();
    for (const run of runs) {
      for (const text of [...run.signatures, ...run.notes]) said.set(text, [...(said.get(text) || []), run.name]);
    }
    return [...said].map(([text, names]) => (names.length === this.data.runs.length ? text : `${names.join(", ")}: ${text}`));
  }

  seeds() {
    const rows = this.data.seeds.map((row) => [`${row.task}, ${row.model}`,
      row.deviation === null ? row.mean.toFixed(2) : `${row.mean.toFixed(2)} ± ${row.deviation.toFixed(2)}`, String(row.seeds)]);
    return [el("h2", {}, "Test accuracy over seeds"), table(["task, model", "accuracy (%)", "seeds"], rows, "accuracy over seeds")];
  }

  options() {
    const places = this.shownRuns();
    const rows = this.data.options.map(([name, values]) => [name, ...places.map((place) => values[place])])
      .filter(([, ...values]) => new Set(values).size > 1);
    if (!rows.length) return [];
    const content = table(["option", ...places.map((place) => this.data.runs[place].name)], rows, "options that differ");
    if (rows.length <= MOST_OPTIONS) return [el("h2", {}, "Options that differ"), content];
    const details = el("details", { open: this.state.options, ontoggle: () => { this.state.options = details.open; } },
      el("summary", {}, `${rows.length} options differ`), content);
    return [details];
  }

  /** One chart was zoomed: the others follow. */
  zoomed(plot) {
    if (this.quiet) return;
    this.quiet = true;
    const { min, max } = plot.scales.x;
    this.state.range = { min, max };
    for (const chart of this.charts) {
      if (chart.plot && chart.plot !== plot) chart.plot.setScale("x", { min, max });
    }
    // uPlot draws, and tells of it, at the end of the current task.
    queueMicrotask(() => queueMicrotask(() => { this.quiet = false; }));
  }

  extent() {
    const plots = this.charts.map((chart) => chart.plot).filter(Boolean);
    return { min: Math.min(...plots.map((plot) => plot.data[0][0])), max: Math.max(...plots.map((plot) => plot.data[0].at(-1))) };
  }

  show(range) {
    this.state.range = range;
    this.quiet = true;
    for (const chart of this.charts) if (chart.plot) chart.plot.setScale("x", range || this.extent());
    queueMicrotask(() => queueMicrotask(() => { this.quiet = false; }));
  }

  scale(factor) {
    const { min, max } = this.state.range || this.extent();
    const middle = (min + max) / 2, half = ((max - min) / 2) * factor;
    const whole = this.extent();
    if (half * 2 >= whole.max - whole.min) this.whole();
    else this.show({ min: middle - half, max: middle + half });
  }

  move(share) {
    const { min, max } = this.state.range || this.extent();
    const by = share * (max - min);
    this.show({ min: min + by, max: max + by });
  }

  whole() {
    this.show(null);
  }
}

const board = new Board(pageData());
document.body.dataset.drawn = "yes";
