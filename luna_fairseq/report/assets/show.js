"use strict";
// The page of luna-show.

const ABOUT = {
  pack: "Weights of pack attention, from each row of P to each token.",
  unpack: "Weights of unpack attention, from each token to each row of P.",
  read: "Total weights, from each token to each token that it reads.",
};
const TITLES = { pack: "pack", unpack: "unpack", read: "read: unpack × pack" };

/** Return the weights of a map by head. The compressed bytes are decoded at the first call. */
async function weightsOf(map) {
  if (map.values) return map.values;
  const bytes = Uint8Array.from(atob(map.bytes), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const levels = new Uint8Array(await new Response(stream).arrayBuffer());
  const [heads, rows, columns] = map.shape;
  map.values = Array.from({ length: heads }, (_, head) => Float32Array.from(
    levels.subarray(head * rows * columns, (head + 1) * rows * columns), (level) => (level / 255) * map.largest[head]));
  return map.values;
}

/** Return the weights of one head, or the mean of all heads if ``head`` is null. */
function ofHead(values, head) {
  if (head !== null) return values[head];
  const mean = new Float32Array(values[0].length);
  for (const one of values) one.forEach((value, place) => { mean[place] += value / values.length; });
  return mean;
}

const title = (name) => {
  const [stack, layer, kind] = name.split(".");
  return `${stack} ${Number(layer) + 1}, ${kind === "self" ? "self-attention" : "cross-attention"}`;
};

class Show {
  constructor(data) {
    this.data = data;
    this.state = { text: 0, attention: 0, head: null, bright: false, figure: "entropy" };
    this.remember();
    this.maps = el("div", { className: "maps" });
    this.words = el("div", {});
    this.overview = el("div", {});
    this.strengths = el("div", {});
    this.build();
  }

  get text() {
    return this.data.texts[this.state.text];
  }

  get attention() {
    return this.text.attentions[this.state.attention];
  }

  remember() {
    const kept = new URLSearchParams(location.hash.slice(1));
    const within = (name, most) => Math.min(Math.max(Number(kept.get(name)) || 0, 0), most - 1);
    this.state.text = within("text", this.data.texts.length);
    this.state.attention = within("attention", this.text.attentions.length);
    if (kept.get("head")) this.state.head = within("head", this.heads());
  }

  keep() {
    const { text, attention, head } = this.state;
    keepInAddress({ text, attention, ...(head === null ? {} : { head }) });
  }

  heads() {
    return Math.max(...Object.values(this.attention.maps).map((map) => map.shape[0]));
  }

  build() {
    document.body.append(el("h1", {}, this.data.title), el("p", { className: "faint" }, this.data.path), this.bar(),
      el("main", {}, this.words, this.strengths,
        el("p", { className: "faint screen" }, "Hover over a map, or read it with the arrow keys. The keys [ and ] change the layer, < and > the head."),
        this.maps, el("h2", {}, "All heads"), this.overview));
    document.addEventListener("keydown", (event) => this.key(event));
    onThemeChange(() => this.draw());
    this.draw();
  }

  bar() {
    const choice = (id, name, change) => el("label", {}, `${name} `, el("select", { id, onchange: change }));
    const texts = this.data.texts.map((text, place) => el("option", { value: place }, short(Object.values(text.texts)[0] || "")));
    const bar = el("nav", { className: "bar", ariaLabel: "what is shown" },
      choice("text", "text", (event) => this.choose({ text: Number(event.target.value) })),
      choice("attention", "attention", (event) => this.choose({ attention: Number(event.target.value) })),
      choice("head", "head", (event) => this.choose({ head: event.target.value === "" ? null : Number(event.target.value) })),
      el("label", { className: "screen" }, el("input", {
        type: "checkbox", id: "bright", onchange: (event) => this.choose({ bright: event.target.checked }),
      }), "brighten small weights"));
    bar.querySelector("#text").append(...texts);
    bar.querySelector("#text").parentNode.hidden = texts.length < 2;
    return bar;
  }

  offer() {
    const fill = (id, options, chosen) => {
      const select = document.getElementById(id);
      select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
      select.value = chosen;
    };
    document.getElementById("text").value = this.state.text;
    fill("attention", this.text.attentions.map((one, place) => [place, title(one.name)]), this.state.attention);
    const heads = Array.from({ length: this.heads() }, (_, head) => [head, String(head + 1)]);
    fill("head", [["", "mean of heads"], ...heads], this.state.head === null ? "" : this.state.head);
  }

  choose(change) {
    Object.assign(this.state, change);
    this.state.attention = Math.min(this.state.attention, this.text.attentions.length - 1);
    if (this.state.head !== null && this.state.head >= this.heads()) this.state.head = null;
    this.keep();
    return this.draw();
  }

  key(event) {
    if (["SELECT", "INPUT"].includes(event.target.tagName) || event.ctrlKey || event.altKey || event.metaKey) return;
    const layers = this.text.attentions.length, heads = this.heads(), head = this.state.head === null ? -1 : this.state.head;
    const change = {
      "[": { attention: (this.state.attention + layers - 1) % layers }, "]": { attention: (this.state.attention + 1) % layers },
      "<": { head: head <= 0 ? (head === 0 ? null : heads - 1) : head - 1 }, ">": { head: head + 1 >= heads ? null : head + 1 },
    }[event.key];
    if (change) this.choose(change);
  }

  /** Draw the chosen attention. If another choice is made while weights are being decoded, only the last one is drawn. */
  async draw() {
    const turn = (this.turn = (this.turn || 0) + 1);
    this.offer();
    const attention = this.attention;
    const kinds = Object.keys(attention.maps);
    const values = await Promise.all(kinds.map((kind) => weightsOf(attention.maps[kind])));
    const words = await this.alignment();
    if (turn !== this.turn) return;
    const drawn = kinds.map((kind, place) => this.heatmap(attention, kind, values[place]));
    this.drawn = drawn;
    this.maps.replaceChildren(...drawn.map((map) => map.node));
    drawn.forEach((map) => map.draw());
    this.words.replaceChildren(...words);
    this.strengths.replaceChildren(...this.learned(attention));
    this.overview.replaceChildren(...this.all());
    document.body.dataset.drawn = "yes";
    document.body.dataset.turn = String(turn);
  }

  heatmap(attention, kind, values) {
    const map = attention.maps[kind], { head } = this.state;
    const rowsOfP = (count) => Array.from({ length: count }, (_, row) => `P${row + 1}`);
    const rows = kind === "pack" ? rowsOfP(map.shape[1]) : attention.rows;
    const columns = kind === "unpack" ? rowsOfP(map.shape[2]) : attention.columns;
    const known = head !== null && head < map.shape[0] ? head : null;
    const which = map.shape[0] === 1 ? "" : known === null ? ` (mean of ${map.shape[0]} heads)` : ` (head ${known + 1})`;
    const verb = { pack: "packs", unpack: "unpacks", read: "reads" }[kind];
    const heat = new Heatmap({
      name: `${attention.maps.unpack ? TITLES[kind] : kind}${which}`, about: ABOUT[kind], rows, columns,
      relation: (row, column) => `${row} ${verb} ${column}`,
      anchors: kind === "pack" && "pack gamma" in attention.strengths,
    });
    Object.assign(heat, { values: ofHead(values, known), head: known, heads: map.shape[0], bright: this.state.bright });
    heat.largest = heat.values.reduce((most, value) => Math.max(most, value), 1e-12);
    return heat;
  }

  /** Return the texts and, for a translation, the tokens of both sides. Pointing at a token highlights the tokens aligned with it. */
  async alignment() {
    const parts = Object.entries(this.text.texts).map(([name, text]) =>
      el("p", {}, el("span", { className: "faint" }, `${name}: `), el("span", { dir: "auto" }, text)));
    const chosen = this.attention.name.endsWith("cross") ? this.attention
      : this.text.attentions.filter((one) => one.name.endsWith("cross")).at(-1);
    if (!chosen || !chosen.maps.read) return parts;
    const head = chosen === this.attention ? this.state.head : null;
    const weights = ofHead(await weightsOf(chosen.maps.read), head !== null && head < chosen.maps.read.shape[0] ? head : null);
    return [...parts, el("h2", {}, "Alignment"), el("p", { className: "faint" },
      `What the ${title(chosen.name)}, ${head === null ? "mean of heads" : `head ${head + 1}`}, reads. Point at a token, or move to it with Tab.`),
    ...aligned(chosen.columns, chosen.rows, weights)];
  }

  learned(attention) {
    const names = Object.keys(attention.strengths);
    if (!names.length) return [];
    const heads = Math.max(...names.map((name) => attention.strengths[name].length));
    const columns = Array.from({ length: heads }, (_, head) => `head ${head + 1}`);
    return [el("h2", {}, "Anchors"), el("p", { className: "faint" }, "Learned strength of the distance penalty (gamma) by head. Rings on the pack map "
      + "show the place of each row of P."), table(["", ...columns],
      names.map((name) => [name, ...columns.map((_, head) => shown(attention.strengths[name][head]))]), "anchors")];
  }

  /** Return a table with the entropy or coverage of every head. Each cell is a button that shows the head. */
  all() {
    const { figure } = this.state;
    const select = el("select", { id: "figure", onchange: (event) => this.choose({ figure: event.target.value }) },
      ["entropy", "coverage"].map((name) => el("option", { value: name, selected: name === figure }, name)));
    const said = { entropy: "0: every row has a single nonzero weight. 1: all weights are equal.", coverage: "Fraction of the columns that have the largest weight of some row." };
    const most = Math.max(...this.text.attentions.flatMap((one) => Object.values(one.maps).map((map) => map.shape[0])));
    const rows = this.text.attentions.flatMap((one, place) => Object.entries(one.maps).map(([kind, map]) =>
      el("tr", {}, el("th", { scope: "row" }, `${title(one.name)}: ${kind}`), map[figure].map((value, head) => el("td", {}, this.cell(value, place, head))))));
    const head = el("tr", {}, el("th", {}), Array.from({ length: most }, (_, number) => el("th", { scope: "col" }, String(number + 1))));
    return [el("p", {}, select, " ", el("span", { className: "faint" }, said[figure])), el("div", { className: "scroll", tabIndex: 0 },
      el("table", { className: "overview" }, el("thead", {}, head), el("tbody", {}, rows)))];
  }

  cell(value, place, head) {
    const button = el("button", { type: "button", onclick: () => this.choose({ attention: place, head }) }, value.toFixed(2));
    const colour = shade(value * 0.8);
    button.style.background = `rgb(${colour.join(",")})`;
    button.style.color = colour[0] * 0.3 + colour[1] * 0.6 + colour[2] * 0.1 > 120 ? "#000" : "#fff";
    button.setAttribute("aria-pressed", String(place === this.state.attention && head === this.state.head));
    return button;
  }
}

const short = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

/** Create two lines of tokens. Pointing at a token colours the other line by the weights, whose rows are the target tokens. */
function aligned(source, target, weights) {
  const item = (text, point) => {
    const button = el("button", { type: "button", onmouseenter: point, onfocus: point, onclick: point }, text);
    return [button, el("li", {}, button)];
  };
  const light = (nodes, values) => {
    const most = Math.max(...values, 1e-12);
    nodes.forEach((node, place) => {
      const colour = shade(values[place] / most * 0.8);
      node.style.background = `rgb(${colour.join(",")})`;
      node.style.color = colour[0] * 0.3 + colour[1] * 0.6 + colour[2] * 0.1 > 120 ? "#000" : "#fff";
    });
  };
  const clear = (nodes, pressed) => nodes.forEach((node) => {
    node.style.background = node.style.color = "";
    node.setAttribute("aria-pressed", String(node === pressed));
  });
  const columns = source.length;
  const sources = source.map((text, place) => item(text, () => {
    clear(sourceNodes, sourceNodes[place]);
    light(targetNodes, target.map((_, row) => weights[row * columns + place]));
  }));
  const targets = target.map((text, row) => item(text, () => {
    clear(targetNodes, targetNodes[row]);
    light(sourceNodes, Array.from(weights.subarray(row * columns, (row + 1) * columns)));
  }));
  const sourceNodes = sources.map(([node]) => node), targetNodes = targets.map(([node]) => node);
  return [el("ul", { className: "tokens", id: "source", ariaLabel: "source" }, sources.map(([, node]) => node)),
    el("ul", { className: "tokens", id: "target", ariaLabel: "translation" }, targets.map(([, node]) => node))];
}

const view = new Show(pageData());
