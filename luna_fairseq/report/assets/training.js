"use strict";
// The page of luna-report.

const MOST_OPTIONS = 30; // longer lists are folded, because runs of different tasks differ in many more options

class Board {
  constructor(data) {
    this.data = data;
    this.state = { off: new Set(), options: false };
    this.remember();
    this.samples = data.samples.length ? new Samples(this) : null;
    this.tables = el("div", {});
    this.lengths = el("div", {});
    this.swatches = [];
    this.build();
  }

  /** Restore the choices from the address. */
  remember() {
    const kept = new URLSearchParams(location.hash.slice(1));
    for (const run of (kept.get("off") || "").split(",").filter(Boolean)) this.state.off.add(Number(run));
  }

  keep() {
    keepInAddress({ off: [...this.state.off].join(",") });
  }

  shownRuns() {
    return this.data.runs.map((_, run) => run).filter((run) => !this.state.off.has(run));
  }

  build() {
    document.body.append(
      el("h1", {}, this.data.title),
      this.bar(),
      el("main", {}, this.tables, this.lengths, this.samples && this.samples.node),
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
    return el("nav", { className: "bar", ariaLabel: "runs to show" }, el("div", { className: "group" }, boxes));
  }

  choose(run, on) {
    if (on) this.state.off.delete(run);
    else this.state.off.add(run);
    this.keep();
    this.draw();
  }

  draw() {
    this.swatches.forEach((line) => line.redraw());
    this.tables.replaceChildren(...this.overview());
    this.lengths.replaceChildren(...(this.data.lengths.length
      ? [el("h2", {}, "BLEU by length of the source"), el("p", { className: "faint" },
        "sacreBLEU of the output of fairseq-generate, without postprocessing. Ratio: length of the translations divided by the length of the references."),
      lengthTable(this)] : []));
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

  /** Return the remarks about the runs. A remark that applies to several runs appears once. */
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
}

const board = new Board(pageData());
document.body.dataset.drawn = "yes";
