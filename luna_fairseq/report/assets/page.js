"use strict";
// Functions that all pages share. Text is inserted as text nodes only, and no function accepts HTML.

const pageData = () => JSON.parse(document.getElementById("data").textContent);

/** Create an element with attributes or properties (names that begin with "on" are listeners) and children (nodes or text). */
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// These colours differ for every common colour blindness and have a contrast of 3 to the background. A test checks this.
const PALETTE = {
  light: ["#015a97", "#ef4235", "#c31eff", "#7490a9", "#9b0000", "#221b44"],
  dark: ["#0298e3", "#d55303", "#7cffc4", "#ffff3e", "#d59e8c", "#c1c1ff"],
};
const DASHES = [[], [9, 4], [3, 3], [10, 3, 2, 3]];

const theme = {
  printing: false,
  get dark() {
    return !this.printing && matchMedia("(prefers-color-scheme: dark)").matches;
  },
  colour(place) {
    const colours = PALETTE[this.dark ? "dark" : "light"];
    return colours[place % colours.length];
  },
  // Neighbouring runs differ in colour and dashes, and any two of the first 24 differ in at least one of them.
  dash(place) {
    return DASHES[(place + Math.floor(place / PALETTE.light.length)) % DASHES.length];
  },
  get text() {
    return this.dark ? "#c9d0da" : "#3a4250";
  },
  get grid() {
    return this.dark ? "#2b323c" : "#e4e7ec";
  },
};

/** Call ``redraw`` when the colours change: with the dark mode of the system, or for printing, which is always light. */
function onThemeChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const print = (printing) => {
    theme.printing = printing;
    redraw();
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
}

/** Create an image of a line in the colour and dashes of a run. */
function swatch(place) {
  const canvas = el("canvas", { className: "swatch", width: 64, height: 32, ariaHidden: "true" });
  const draw = () => {
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, 64, 32);
    pen.strokeStyle = theme.colour(place);
    pen.lineWidth = 8;
    pen.setLineDash(theme.dash(place).map((length) => length * 2));
    pen.beginPath();
    pen.moveTo(0, 16);
    pen.lineTo(64, 16);
    pen.stroke();
  };
  draw();
  canvas.redraw = draw;
  return canvas;
}

/** Create a table with a heading for each row and column. A cell is text or a node. */
function table(headings, rows, caption) {
  const head = el("tr", {}, headings.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map(([heading, ...cells]) =>
    el("tr", {}, el("th", { scope: "row" }, heading), cells.map((cell) => el("td", {}, cell))),
  );
  const label = { tabIndex: 0, role: "region", "aria-label": caption };
  return el("div", { className: "scroll", ...label }, el("table", { className: "plain" },
    el("thead", {}, head), el("tbody", {}, body)));
}

const shown = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 7 : 5 });
};

/** Store the choices in the address, so that a reload restores them. The frame of a notebook does not allow this. */
function keepInAddress(choices) {
  try {
    history.replaceState(null, "", `#${new URLSearchParams(choices)}`);
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
  }
}
