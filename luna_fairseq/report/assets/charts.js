"use strict";
// Curves of several runs over each other, by uPlot. All charts have one range and one cursor.

const AXES = { updates: "updates", epochs: "epochs", tokens: "tokens", hours: "hours" };

/** The run's epochs, tokens or hours at a number of updates: its knots, and evenly between and beyond them. */
function along(axes, name, updates) {
  if (name === "updates") return updates;
  const known = axes.updates, values = axes[name];
  if (!values || known.length < 2) return null;
  let low = 0, high = known.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (known[middle] <= updates) low = middle;
    else high = middle;
  }
  const share = (updates - known[low]) / (known[high] - known[low]);
  return values[low] + share * (values[high] - values[low]);
}

/** The point of a series nearest to the hovered one that the series has; the joined x belong to all series. */
function nearest(plot, series, hovered) {
  if (series === 0 || plot.data[series][hovered] != null) return hovered;
  const y = plot.data[series], x = plot.data[0];
  let left = hovered, right = hovered;
  while (left >= 0 && y[left] == null) left--;
  while (right < y.length && y[right] == null) right++;
  if (left < 0) return right < y.length ? right : hovered;
  if (right >= y.length) return left;
  return x[hovered] - x[left] <= x[right] - x[hovered] ? left : right;
}

class Chart {
  constructor(chart, board) {
    this.chart = chart;
    this.board = board;
    this.log = chart.log;
    this.button = el("button", { type: "button", className: "screen", onclick: () => this.switchLog() }, "log");
    this.button.setAttribute("aria-label", `${chart.title}: logarithmic axis`);
    this.plot = null;
    this.place = el("div", { className: "plot", tabIndex: 0, role: "img", onkeydown: (event) => this.key(event) });
    this.empty = el("p", { className: "faint" });
    this.node = el("section", { className: "chart", id: `chart-${chart.figure}` },
      el("header", {}, el("h3", {}, chart.title), this.button), this.place, this.empty);
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  switchLog() {
    this.log = !this.log;
    this.draw();
  }

  get width() {
    return theme.printing ? 330 : Math.max(this.place.clientWidth, 200);
  }

  resize() {
    if (this.plot && !theme.printing && this.plot.width !== this.width) this.plot.setSize({ width: this.width, height: 250 });
  }

  lines() {
    const { state, data } = this.board;
    const found = [];
    for (const line of this.chart.lines) {
      if (state.off.has(line.run)) continue;
      const axes = data.runs[line.run].axes;
      const x = line.x.map((updates) => along(axes, state.axis, updates));
      if (x.every((value) => value !== null)) found.push({ ...line, x });
    }
    return found;
  }

  draw() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    const lines = this.lines();
    const missing = this.board.shownRuns().filter((run) => !lines.some((line) => line.run === run));
    this.empty.textContent = missing.length
      ? `Not told by ${missing.map((run) => this.board.data.runs[run].name).join(", ")}.` : "";
    this.button.setAttribute("aria-pressed", String(this.log));
    this.place.setAttribute("aria-label", this.summary(lines));
    if (!lines.length || !this.place.isConnected) return;
    const tables = lines.map((line) => [line.x, line.y]);
    this.plot = new uPlot(this.options(lines), aligned(tables), this.place);
    if (this.board.state.range) this.plot.setScale("x", this.range(this.board.state.range));
  }

  summary(lines) {
    const last = lines.map((line) => `${this.label(line)} ends at ${shown(line.y[line.y.length - 1])}`);
    return `${this.chart.title} against ${this.board.state.axis}. ${last.join("; ")}.`;
  }

  label(line) {
    return `${this.board.data.runs[line.run].name} · ${line.kind}`;
  }

  options(lines) {
    const positive = lines.every((line) => line.y.every((value) => value > 0));
    const axis = { stroke: theme.text, grid: { stroke: theme.grid, width: 1 }, ticks: { stroke: theme.grid, width: 1 } };
    return {
      width: this.width,
      height: 250,
      scales: { x: { time: false }, y: { distr: this.log && positive ? 3 : 1 } },
      cursor: {
        sync: { key: "runs", setSeries: false, scales: ["x", null] },
        drag: { x: true, y: false },
        dataIdx: nearest,
        points: { size: 7 },
      },
      axes: [
        { ...axis, label: AXES[this.board.state.axis], labelSize: 18, size: 34, values: (_, all) => all.map(brief) },
        { ...axis, size: 58, values: (_, all) => all.map((value) => (value === null ? "" : brief(value))) },
      ],
      series: [
        { label: AXES[this.board.state.axis], value: (_, value) => (value === null ? "end" : shown(value)) },
        ...lines.map((line) => this.series(line)),
      ],
      hooks: { setScale: [(plot, key) => key === "x" && this.board.zoomed(plot)] },
    };
  }

  series(line) {
    const training = line.kind === "train";
    const few = line.x.length <= 300;
    return {
      label: this.label(line),
      stroke: theme.colour(line.run),
      width: training && !few ? 1 : 2,
      alpha: training && this.chart.lines.some((other) => other.kind !== "train") ? 0.6 : 1,
      dash: few || this.chart.figure === "lr" ? theme.dash(line.run) : [],
      spanGaps: true,
      points: { show: !training && line.x.length <= 60 || line.x.length === 1, size: 5, fill: theme.colour(line.run) },
      value: (_, value, series, index) => shown(index === null ? line.y[line.y.length - 1] : value),
    };
  }

  range({ min, max }) {
    return { min, max };
  }

  key(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.shiftKey) this.board.move(step / 4);
    else if (step) this.step(step);
    else if (event.key === "+" || event.key === "=") this.board.scale(0.5);
    else if (event.key === "-") this.board.scale(2);
    else if (event.key === "0" || event.key === "Escape") this.board.whole();
    else return;
    event.preventDefault();
  }

  step(direction) {
    const width = this.plot.over.clientWidth;
    const left = this.plot.cursor.left < 0 ? (direction > 0 ? 0 : width) : this.plot.cursor.left;
    const to = Math.min(Math.max(left + direction * Math.max(width / 60, 3), 0), width - 1);
    this.plot.setCursor({ left: to, top: this.plot.over.clientHeight / 2 }, true, true);
  }
}

/** Lines with their own x as uPlot wants them: with one x for all. */
function aligned(tables) {
  return tables.length > 1 ? uPlot.join(tables) : tables[0];
}

function brief(value) {
  if (value === null) return "";
  const size = Math.abs(value);
  const units = [[1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]];
  for (const [from, name, unit] of units) {
    if (size >= from) return `${Number((value / (unit || from)).toPrecision(4))}${name}`;
  }
  return size !== 0 && size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : String(Number(value.toPrecision(5)));
}
