// The answer: empty, on its way, a draft, or there.

import { layersOf, spoken } from "./depths.js";
import { glyph } from "./dial.js";
import { compared, differences } from "./diff.js";
import { $, count, make, milliseconds } from "./dom.js";
import { labelled, marked } from "./texts.js";

export function inWords({ translatedText, summary, classification }) {
  if (classification) return `${classification.label} (${(100 * classification.probability).toFixed(1)} %)`;
  return translatedText ?? summary;
}

export function busy(yes) {
  $("result").setAttribute("aria-busy", String(yes));
  document.body.classList.toggle("working", yes);
  if (yes) $("copy").hidden = true;
  else document.body.classList.remove("drafting");
}

export function clear() {
  busy(false);
  $("result").replaceChildren();
  $("facts").replaceChildren();
  $("stage").textContent = $("detected").textContent = "";
  $("copy").hidden = true;
}

export function showDraft(said) {
  document.body.classList.add("drafting");
  $("result").replaceChildren(said.translatedText);
  $("stage").textContent = `draft at ${said.depth}`;
}

// in the place of a draft, if there was one: the words that are new light up
export function show(said, draft, view) {
  document.body.classList.remove("drafting");
  $("stage").textContent = "";
  $("copy").hidden = !navigator.clipboard; // which browsers keep from pages of other machines without TLS
  if (said.classification) {
    const layers = Math.max(...view.depths.map((depth) => layersOf(depth)[0]));
    $("result").replaceChildren(...labelled(said.classification, layers));
    return showFacts(said, view);
  }
  const parts = compared(inWords(said), inWords(draft ?? said));
  $("result").replaceChildren(...marked(parts.filter(({ word }) => word), "fresh"));
  showFacts(said, view, draft, differences(parts));
}

function showFacts({ depth, compute_ms, queue_ms }, view, draft, changed) {
  const picture = /^\d/.test(depth) ? glyph(depth, view.deepest) : null;
  const facts = [
    make("span", { class: "depth", title: spoken(depth) }, make("b", {}, depth), picture),
    make("span", {}, `${milliseconds(compute_ms)} computing`),
    make("span", {}, `${milliseconds(queue_ms)} waiting`),
  ];
  if (draft) {
    const found = changed ? `${count(changed, "change")} to` : "the same as";
    facts.push(make("span", {}, `${found} the draft of ${draft.depth}, shown after ${milliseconds(draft.after)}`));
  }
  $("facts").replaceChildren(...facts);
}
