// What the visitor wishes about depth: a quality, a budget, or a depth from the dial.

import { spoken } from "./depths.js";
import { Dial } from "./dial.js";
import { $, milliseconds } from "./dom.js";

const checked = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;
const radio = (name, value) => document.querySelector(`input[name=${name}][value=${value}]`);

export class Wish {
  constructor(changed) {
    this.changed = changed;
    this.dial = new Dial($("dial"), () => this.renew());
    for (const input of document.querySelectorAll("input[name=mode], input[name=quality]")) {
      input.addEventListener("change", () => this.renew());
    }
    $("budget").addEventListener("change", () => this.renew());
  }

  // what a run can do; a wish that it cannot grant becomes another
  offer(view, task) {
    const before = this.task === task ? this.quality : "";
    Object.assign(this, { view, task });
    const known = view.points.length > 0;
    const able = { fast: known, balanced: known && view.balanced, best: true, budget: known, adaptive: task === "classify" };
    for (const [quality, can] of Object.entries(able)) {
      radio("quality", quality).disabled = !can;
      radio("quality", quality).parentElement.hidden = !can && (quality === "adaptive" || task === "classify");
    }
    const usual = able.balanced ? "balanced" : able.adaptive ? "adaptive" : "best";
    radio("quality", able[before] ? before : usual).checked = true;
    this.dial.offer(view.depths, this.dial.depth);
    this.show();
  }

  get byHand() {
    return checked("mode") === "hand";
  }

  get quality() {
    return checked("quality");
  }

  get budget() {
    return !this.byHand && this.quality === "budget" ? Math.max(1, Number($("budget").value) || 1) : null;
  }

  get fields() {
    if (this.byHand) return { depth: this.dial.depth };
    if (this.budget) return { budget_ms: this.budget };
    return this.quality === "adaptive" ? { depth: "adaptive" } : { quality: this.quality };
  }

  // the depth that this should give, without load; "" where only the server can tell
  get expected() {
    const { points, fastest, balanced, deepest } = this.view;
    if (this.byHand) return this.dial.depth;
    if (!this.budget) return { fast: fastest, balanced, best: deepest, adaptive: "" }[this.quality];
    const inTime = points.filter(({ ms }) => ms <= this.budget).sort((a, b) => b.quality - a.quality);
    return (inTime[0] ?? points.reduce((one, other) => (other.ms < one.ms ? other : one))).depth;
  }

  choose(depth) {
    radio("mode", "hand").checked = true;
    this.dial.turn(depth);
    this.renew();
  }

  renew() {
    this.show();
    this.changed();
  }

  show() {
    $("automatic").hidden = this.byHand;
    $("dial").hidden = !this.byHand;
    $("budget-field").hidden = this.quality !== "budget";
    $("explained").textContent = this.explained();
  }

  explained() {
    if (this.byHand) return `Every text runs through ${spoken(this.dial.depth)}.`;
    const { points, fastest, balanced, deepest } = this.view;
    return {
      fast: `The fastest depth, ${fastest}.`,
      balanced: `The fastest depth that is not significantly worse than the best: ${balanced}, less under load.`,
      best: `The deepest, ${deepest}, whatever the load.${points.length ? "" : " Other wishes need a calibration."}`,
      budget: `The best depth that is predicted to answer within ${milliseconds(this.budget ?? 1)}, waiting included.`,
      adaptive: "Words, or texts, that need fewer layers get fewer.",
    }[this.quality];
  }
}
