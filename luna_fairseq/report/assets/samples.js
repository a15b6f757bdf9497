"use strict";
// Translations side by side. Words that are not in the reference are marked by colour and underlined.

/** Return a boolean for each word: true if the word is not part of the longest common subsequence with ``reference``. */
function differing(words, reference) {
  const n = words.length, m = reference.length;
  const longest = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      longest[i][j] = words[i] === reference[j]
        ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const differs = words.map(() => true);
  for (let i = 0, j = 0; i < n && j < m;) {
    if (words[i] === reference[j]) {
      differs[i++] = false;
      j++;
    } else if (longest[i + 1][j] >= longest[i][j + 1]) i++;
    else j++;
  }
  return differs;
}

function marked(text, reference) {
  const words = text.split(/\s+/).filter(Boolean);
  const differs = differing(words, reference.split(/\s+/).filter(Boolean));
  return words.flatMap((word, place) => [place ? " " : "", differs[place] ? el("mark", {}, word) : word]);
}

class Samples {
  constructor(board) {
    this.board = board;
    this.page = 20;
    this.count = this.page;
    this.order = el("select", { onchange: () => this.draw(), ariaLabel: "order of the samples" });
    this.filter = el("input", {
      type: "search", placeholder: "filter by text …", ariaLabel: "only samples with this text",
      oninput: () => this.draw(),
    });
    this.list = el("div", {});
    this.more = el("button", { type: "button", className: "screen", onclick: () => this.showMore() }, "show more");
    this.node = el("section", { id: "samples" }, el("h2", {}, "Translations"),
      el("p", { className: "faint" }, "Sentences chosen evenly from the text. Marked words are not in the reference. The number "
        + "is the chrF of the sentence."),
      el("p", { className: "screen" }, this.order, " ", this.filter), this.list, this.more);
    this.offer();
  }

  offer() {
    const several = this.board.data.runs.filter((_, run) => this.board.data.samples.some((row) => row.runs[run])).length > 1;
    this.order.append(el("option", { value: "given" }, several ? "largest difference first" : "lowest chrF first"));
    this.board.data.runs.forEach((run, place) => {
      this.order.append(el("option", { value: `low ${place}` }, `lowest chrF of ${run.name} first`));
    });
  }

  showMore() {
    this.count += this.page;
    this.draw();
  }

  rows() {
    const wanted = this.filter.value.toLowerCase();
    const has = (row) => [row.source, row.reference, ...row.runs.map((run) => (run ? run[0] : ""))]
      .some((text) => text.toLowerCase().includes(wanted));
    const rows = this.board.data.samples.filter(has);
    const [kind, run] = this.order.value.split(" ");
    const score = (row) => (row.runs[run] ? row.runs[run][1] : Infinity);
    return kind === "low" ? rows.slice().sort((one, other) => score(one) - score(other)) : rows;
  }

  draw() {
    const rows = this.rows();
    this.list.replaceChildren(...rows.slice(0, this.count).map((row) => this.card(row)));
    this.more.hidden = rows.length <= this.count;
  }

  card(row) {
    const lines = [["source", row.source], ["reference", row.reference]]
      .map(([name, text]) => [el("dt", {}, name), el("dd", { dir: "auto" }, text)]);
    row.runs.forEach((run, place) => {
      if (!run || this.board.state.off.has(place)) return;
      lines.push([
        el("dt", {}, swatch(place), " ", this.board.data.runs[place].name),
        el("dd", { dir: "auto" }, marked(run[0], row.reference), el("span", { className: "score" }, `  ${run[1].toFixed(1)}`)),
      ]);
    });
    return el("article", { className: "card" }, el("dl", {}, lines.flat()));
  }
}

/** BLEU and length ratio by the length of the source, with bars. */
function lengthTable(board) {
  const { lengths, runs } = board.data;
  const shownRuns = board.shownRuns().filter((run) => lengths.some((row) => row.runs[run]));
  const highest = Math.max(1, ...lengths.flatMap((row) => row.runs.filter(Boolean).map((run) => run[1])));
  const cell = (entry, run) => {
    if (!entry) return "–";
    const meter = el("span", { className: "meter" });
    meter.style.width = `${(100 * entry[1]) / highest}%`;
    meter.style.background = theme.colour(run);
    return el("div", {}, `${entry[1].toFixed(2)}`, el("span", { className: "faint" }, `  ratio ${entry[2].toFixed(3)}, ${entry[0]} sent.`), meter);
  };
  return table(["words of the source", ...shownRuns.map((run) => runs[run].name)],
    lengths.map((row) => [row.words, ...shownRuns.map((run) => cell(row.runs[run], run))]), "BLEU by length of the source");
}
