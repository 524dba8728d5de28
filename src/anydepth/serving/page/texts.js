// Texts on the page: with their differences, or as labels with the depths of words.

import { make } from "./dom.js";

// the parts of a comparison; `words` is the class of the marks
export function marked(parts, words = "") {
  return parts.map((part) => {
    if ("missing" in part) {
      const said = `missing: ${part.missing.trim()}`;
      return make("span", { class: "missing", title: said }, "‸", make("span", { class: "hidden" }, ` (${said}) `));
    }
    return part.same ? part.word : make("mark", { class: words }, part.word);
  });
}

// a label, the chances of all of them, and the words in the colours of their depths
export function labelled({ label, probabilities, words }, layers) {
  const rows = Object.entries(probabilities)
    .sort(([, a], [, b]) => b - a)
    .map(([name, chance]) => chanceRow(name, chance, name === label));
  const chances = make("ul", { class: "chances" }, ...rows);
  return [make("p", { class: "verdict" }, label), chances, ...(words.length ? coloured(words, layers) : [])];
}

function chanceRow(name, chance, best) {
  const bar = make("i", { "aria-hidden": "true" });
  bar.style.setProperty("--share", chance);
  return make("li", { class: best ? "best" : "" }, make("span", {}, name), bar, make("b", {}, `${(100 * chance).toFixed(1)} %`));
}

function coloured(words, layers) {
  const deepest = Math.max(layers, ...words.map(([, depth]) => depth));
  const shown = joined(words).map(({ text, depth, special, begins }) => {
    const look = { class: special ? "word special" : "word", title: `${depth} of ${deepest} layers` };
    const word = make("span", look, text, make("sub", {}, depth));
    shade(word, depth, deepest);
    return [begins ? " " : "", word];
  });
  return [make("h3", {}, "Layers for each word"), make("p", { class: "words" }, ...shown.flat()), legend(deepest)];
}

// a tokenizer's pieces: those that go on with a word join it where they are as deep
function joined(pieces) {
  const words = [];
  for (const [piece, depth] of pieces) {
    const special = /^(<\w+>|\[[A-Z]+\])$/.test(piece);
    const goesOn = !special && !words.at(-1)?.special && !piece.startsWith("▁") && words.at(-1)?.depth === depth;
    const text = piece.replace(/^##/, "").replaceAll("▁", "");
    if (goesOn) words.at(-1).text += text;
    else words.push({ text: text || "␣", depth, special, begins: special || piece.startsWith("▁") });
  }
  return words;
}

function legend(deepest) {
  const steps = Array.from({ length: deepest }, (_, place) => {
    const step = make("i");
    shade(step, place + 1, deepest);
    return step;
  });
  return make("p", { class: "scale", "aria-hidden": "true" }, "1", ...steps, String(deepest));
}

function shade(element, depth, deepest) {
  const share = (depth - 1) / Math.max(1, deepest - 1);
  element.style.setProperty("--share", `${Math.round(100 * share)}%`);
}
