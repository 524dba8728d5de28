// How busy the server is: asked every other second while somebody looks.

import { glyph } from "./dial.js";
import { count, draw, make } from "./dom.js";
import { get } from "./server.js";

const PERIOD = 2000;
const KEPT = 45;

export class Live {
  // `changed` hears whether the server answers
  constructor({ pulse, about, place }, changed) {
    Object.assign(this, { pulse, about, place, changed });
    this.history = new Map();
    this.latest = [];
    this.run = "";
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
    setInterval(() => document.hidden || this.ask(), PERIOD);
  }

  follow(run, deepest) {
    this.run = run;
    this.deepest = deepest;
    this.show();
  }

  async ask() {
    try {
      this.latest = await get("frontend/load");
      for (const { run, waiting } of this.latest) {
        this.history.set(run, [...(this.history.get(run) ?? []), waiting].slice(-KEPT));
      }
      this.changed(true);
      this.show();
    } catch {
      this.latest = [];
      this.pulse.className = "pulse gone";
      this.pulse.lastElementChild.textContent = "no answer";
      this.changed(false);
    }
  }

  show() {
    const load = this.latest.find(({ run }) => run === this.run);
    if (!load) return;
    const state = load.waiting ? "busy" : "idle";
    this.pulse.className = `pulse ${load.lowered ? "lowered" : state}`;
    this.pulse.lastElementChild.textContent = load.waiting ? `${load.waiting} waiting` : "idle";
    this.about.textContent = explained(load);
    this.place.replaceChildren(
      make("div", { class: "current" }, make("b", {}, load.depth), glyph(load.depth, this.deepest)),
      sparkline(this.history.get(this.run) ?? []),
      make("p", { class: "quiet" }, make("span", {}, `${count(load.waiting, "text")} waiting`), make("span", {}, "last 90 s")),
    );
  }
}

function explained({ lowered, steps }) {
  if (lowered) return `Load has lowered the depth by ${count(lowered, "step")} of ${steps}. It rises again when it is calm.`;
  return steps ? "The depth that the load allows. It falls when many wait." : "Load does not change the depth of this run.";
}

function sparkline(numbers) {
  const width = 240, height = 48;
  const most = Math.max(4, ...numbers);
  const x = (place) => width - ((numbers.length - 1 - place) * width) / (KEPT - 1);
  const y = (number) => height - 2 - ((height - 6) * number) / most;
  const points = numbers.map((number, place) => `${x(place).toFixed(1)},${y(number).toFixed(1)}`);
  const attributes = { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  if (!points.length) return draw("svg", attributes);
  const area = [`${x(0)},${height}`, ...points, `${width},${height}`].join(" ");
  return draw("svg", attributes, draw("polygon", { points: area }), draw("polyline", { points: points.join(" ") }));
}
