"use strict";
// A heatmap of attention weights: rows attend to columns. The weights can be read with the mouse, by touch or with the arrow keys.

const LABEL = { font: 11, most: 14 };

/** Return the colour of a weight, given as a fraction of the largest weight: from the background to a dark (in dark mode, bright) blue. */
function shade(share) {
  const from = theme.dark ? [20, 23, 28] : [255, 255, 255], middle = theme.dark ? [33, 90, 150] : [107, 174, 214];
  const to = theme.dark ? [190, 225, 255] : [8, 36, 92];
  const [low, high, at] = share < 0.5 ? [from, middle, share * 2] : [middle, to, share * 2 - 1];
  return low.map((value, part) => Math.round(value + (high[part] - value) * at));
}

const clipped = (text) => (text.length > LABEL.most ? `${text.slice(0, LABEL.most - 1)}…` : text);

class Heatmap {
  /** ``name``: heading; ``rows`` and ``columns``: labels; ``relation``: function that describes a weight, given the labels of its row and column. */
  constructor({ name, about, rows, columns, relation, anchors }) {
    Object.assign(this, { name, rows, columns, relation, anchors });
    this.canvas = el("canvas", {
      tabIndex: 0, role: "img", onmousemove: (event) => this.point(event), onclick: (event) => this.point(event),
      onmouseleave: () => this.mark(null), onkeydown: (event) => this.key(event),
    });
    this.row = el("div", { className: "cross", hidden: true });
    this.column = el("div", { className: "cross", hidden: true });
    this.readout = el("p", { className: "readout faint", ariaLive: "polite" }, about);
    this.about = about;
    this.ramp = el("canvas", { width: 96, height: 10, ariaHidden: "true" });
    this.most = el("span", {});
    this.node = el("section", { className: "map" }, el("h3", {}, name),
      el("div", { className: "field" }, this.canvas, this.row, this.column),
      el("p", { className: "scale" }, "0", this.ramp, this.most), this.readout);
    this.cell = null;
  }

  /** Draw ``values``, the weights row by row. ``head``: index among ``heads``, or null for their mean. */
  show(values, head, heads, bright) {
    Object.assign(this, { values, head, heads, bright });
    this.largest = values.reduce((most, value) => Math.max(most, value), 1e-12);
    this.draw();
  }

  layout() {
    const wide = Math.max(280, Math.min(document.body.clientWidth - 80, 620));
    const measure = this.canvas.getContext("2d");
    measure.font = `${LABEL.font}px system-ui, sans-serif`;
    const longest = (labels) => Math.max(12, ...labels.map((text) => measure.measureText(clipped(text)).width));
    this.left = Math.ceil(longest(this.rows)) + 8;
    this.top = Math.ceil(longest(this.columns)) + 8;
    const fit = Math.floor((wide - this.left) / this.columns.length);
    this.size = Math.max(this.columns.length > 120 ? 5 : 12, Math.min(fit, 26));
  }

  draw() {
    this.layout();
    const { left, top, size } = this, ratio = window.devicePixelRatio || 1;
    const width = left + size * this.columns.length + 1, height = top + size * this.rows.length + 1;
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.drawCells(pen);
    this.drawLabels(pen);
    if (this.anchors) this.drawAnchors(pen);
    this.drawRamp();
    this.canvas.setAttribute("aria-label", `${this.name}: ${this.rows.length} rows, ${this.columns.length} columns. ${this.about} `
      + "Arrow keys read the weights.");
    this.mark(this.cell);
  }

  drawCells(pen) {
    const { left, top, size } = this, gap = size > 8 ? 1 : 0, count = this.columns.length;
    for (let place = 0; place < this.values.length; place++) {
      const share = Math.min(this.values[place] / this.largest, 1);
      pen.fillStyle = `rgb(${shade(this.bright ? Math.sqrt(share) : share).join(",")})`;
      pen.fillRect(left + (place % count) * size, top + Math.floor(place / count) * size, size - gap, size - gap);
    }
    pen.strokeStyle = theme.grid;
    pen.strokeRect(left - 0.5, top - 0.5, size * count + 1, size * this.rows.length + 1);
  }

  drawLabels(pen) {
    const { left, top, size } = this, every = Math.ceil(LABEL.font / size);
    pen.fillStyle = theme.text;
    pen.font = `${LABEL.font}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    this.rows.forEach((text, place) => {
      if (place % every === 0) pen.fillText(clipped(text), left - 5, top + (place + 0.5) * size);
    });
    pen.textAlign = "left";
    this.columns.forEach((text, place) => {
      if (place % every) return;
      pen.save();
      pen.translate(left + (place + 0.5) * size, top - 5);
      pen.rotate(-Math.PI / 2);
      pen.fillText(clipped(text), 0, 0);
      pen.restore();
    });
  }

  /** Draw a ring at the place of each row of P: the middle of its segment of the tokens, shifted for each head. */
  drawAnchors(pen) {
    const { left, top, size } = this, part = this.columns.length / this.rows.length;
    const aside = this.head === null ? 0 : (this.head + 0.5) / this.heads - 0.5;
    pen.strokeStyle = theme.dark ? "#ffb25e" : "#b85400";
    pen.lineWidth = 1.5;
    this.rows.forEach((_, row) => {
      const place = Math.min(Math.max((row + 0.5 + aside) * part, 0), this.columns.length);
      pen.beginPath();
      pen.arc(left + place * size, top + (row + 0.5) * size, Math.max(2, size / 4), 0, 2 * Math.PI);
      pen.stroke();
    });
  }

  drawRamp() {
    const pen = this.ramp.getContext("2d");
    for (let x = 0; x < 96; x++) {
      pen.fillStyle = `rgb(${shade(this.bright ? Math.sqrt(x / 95) : x / 95).join(",")})`;
      pen.fillRect(x, 0, 1, 10);
    }
    this.most.textContent = this.largest.toPrecision(3);
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.left) / this.size);
    const row = Math.floor((event.clientY - box.top - this.top) / this.size);
    const inside = column >= 0 && row >= 0 && column < this.columns.length && row < this.rows.length;
    this.mark(inside ? [row, column] : null);
  }

  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    const [row, column] = this.cell || [0, -step[1]];
    const clamp = (value, most) => Math.min(Math.max(value, 0), most - 1);
    this.mark([clamp(row + step[0], this.rows.length), clamp(column + step[1], this.columns.length)]);
    event.preventDefault();
  }

  mark(cell) {
    this.cell = cell;
    this.row.hidden = this.column.hidden = cell === null;
    if (cell === null) {
      this.readout.textContent = this.about;
      return;
    }
    const [row, column] = cell, { left, top, size } = this;
    const place = (node, x, y, width, height) => Object.assign(node.style,
      { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
    place(this.row, left - 1, top + row * size - 1, size * this.columns.length + 1, size + 1);
    place(this.column, left + column * size - 1, top - 1, size + 1, size * this.rows.length + 1);
    const value = this.values[row * this.columns.length + column];
    this.readout.textContent = `${this.relation(this.rows[row], this.columns[column])}: ${value.toPrecision(3)}`;
  }
}
