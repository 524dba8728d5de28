// The depth dial: for each stack a slider whose track is its layers.

import { choices, layersOf, nearest, snapped, stacksOf, STACKS } from "./depths.js";
import { make } from "./dom.js";

export class Dial {
  constructor(place, changed) {
    this.place = place;
    this.changed = changed;
    this.depths = [];
    this.layers = [];
  }

  get depth() {
    return this.layers.join("-");
  }

  // `depth` is the one to stand at, if there is such a one
  offer(depths, depth) {
    this.depths = depths;
    this.layers = layersOf(depths.includes(depth) ? depth : depths.at(-1));
    this.stacks = Array.from({ length: stacksOf(depths) }, (_, stack) => this.build(stack));
    this.place.replaceChildren(...this.stacks.map(({ element }) => element));
    this.show();
  }

  turn(depth) {
    if (!this.depths.includes(depth)) return;
    this.layers = layersOf(depth);
    this.show();
  }

  build(stack) {
    const most = Math.max(...choices(this.depths, stack));
    const name = stacksOf(this.depths) > 1 ? STACKS[stack] : "Layers";
    const input = make("input", { type: "range", min: 1, max: most, step: 1, "aria-label": `${name} depth` });
    input.addEventListener("input", () => this.move(stack, Number(input.value)));
    const bars = Array.from({ length: most }, () => make("i"));
    const number = make("output", { class: "number" });
    const track = make("div", { class: "track" }, make("div", { class: "bars", "aria-hidden": "true" }, ...bars), input);
    track.style.setProperty("--layers", most);
    const element = make("div", { class: "stack" }, make("span", { class: "name" }, name), track, number);
    return { element, input, bars, number, most };
  }

  move(stack, wanted) {
    const known = choices(this.depths, stack, this.layers.slice(0, stack));
    this.layers[stack] = snapped(known, wanted, this.layers[stack]);
    for (let later = stack + 1; later < this.layers.length; later++) {
      this.layers[later] = nearest(choices(this.depths, later, this.layers.slice(0, later)), this.layers[later]);
    }
    this.show();
    this.changed();
  }

  show() {
    this.stacks.forEach(({ input, bars, number, most }, stack) => {
      const layers = this.layers[stack];
      const known = choices(this.depths, stack, this.layers.slice(0, stack));
      input.value = layers;
      input.disabled = known.length === 1;
      input.setAttribute("aria-valuetext", `${layers} of ${most} layers`);
      number.textContent = layers;
      bars.forEach((bar, place) => {
        bar.className = `${place < layers ? "on" : ""} ${known.includes(place + 1) ? "" : "skipped"}`.trim();
      });
    });
  }
}

// a small picture of a depth: a row of layers for each stack
export function glyph(depth, deepest) {
  const most = layersOf(deepest);
  const rows = layersOf(depth).map((layers, stack) => {
    const bars = Array.from({ length: most[stack] ?? layers }, (_, place) => make("i", { class: place < layers ? "on" : "" }));
    return make("span", {}, ...bars);
  });
  return make("span", { class: "glyph", "aria-hidden": "true" }, ...rows);
}
