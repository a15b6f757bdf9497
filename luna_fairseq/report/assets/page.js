"use strict";
// What all pages share. Text goes on the page as text nodes only: nothing here takes HTML.

const pageData = () => JSON.parse(document.getElementById("data").textContent);

/** An element: its attributes and properties ("on..." are listeners), then its children: nodes or text. */
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

// Told apart with every common colour blindness, at a contrast of 3 to the ground: see the test of the palette.
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
  // Neighbours differ in both, and every run in one of the two.
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

/** Call back when colours change: the system's dark mode, and printing, which is always light. */
function onThemeChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const print = (printing) => {
    theme.printing = printing;
    redraw();
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
}

/** A line of a run's colour and dashes, as an image. */
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

/** A table with a heading for each row and column; a cell may be a node. */
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

/** Keep choices in the address, so that a reload finds them; in a notebook's frame there is none to keep them in. */
function keepInAddress(choices) {
  try {
    history.replaceState(null, "", `#${new URLSearchParams(choices)}`);
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
  }
}
