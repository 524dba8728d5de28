// The same text at several depths, side by side, each compared with the last.

import { telling } from "./depths.js";
import { glyph } from "./dial.js";
import { compared, differences } from "./diff.js";
import { count, make, milliseconds, options } from "./dom.js";
import { marked } from "./texts.js";

const MOST = 6;

export class Columns {
  // `ask` a depth: a promise of { text, depth, compute_ms }; `failed` hears problems
  constructor({ place, add, go }, ask, failed) {
    Object.assign(this, { place, add, go, ask, failed });
    this.columns = [];
    add.addEventListener("click", () => this.append());
    go.addEventListener("click", () => this.compare());
  }

  offer(view) {
    this.view = view;
    this.columns = [];
    this.place.replaceChildren();
    telling(view).forEach((depth) => this.column(depth));
    this.count();
  }

  clear() {
    for (const column of this.columns) column.answer = null;
    this.show();
  }

  column(depth) {
    const select = make("select", { "aria-label": "Depth", class: "language" });
    options(select, this.view.depths.map((name) => [name, name]), depth);
    const picture = make("span", { class: "picture" });
    const close = make("button", { type: "button", class: "icon", "aria-label": "Remove this depth" }, "×");
    const time = make("span", { class: "quiet time" });
    const text = make("div", { class: "said" });
    const note = make("p", { class: "quiet note" });
    const head = make("div", { class: "head" }, select, picture, time, close);
    const column = { select, picture, time, text, note, close, answer: null };
    column.element = make("article", { class: "card column" }, head, text, note);
    select.addEventListener("change", () => this.renew(column));
    close.addEventListener("click", () => this.remove(column));
    this.columns.push(column);
    this.place.append(column.element);
    this.show();
    return column;
  }

  append() {
    const used = new Set(this.columns.map(({ select }) => select.value));
    const depth = this.view.depths.find((name) => !used.has(name)) ?? this.view.depths[0];
    this.column(depth).select.focus();
    this.count();
  }

  remove(column) {
    this.columns = this.columns.filter((one) => one !== column);
    column.element.remove();
    this.count();
    this.show();
    this.add.focus();
  }

  count() {
    this.add.disabled = this.columns.length >= MOST;
    for (const { close } of this.columns) close.disabled = this.columns.length <= 2;
  }

  async renew(column) {
    const answered = column.answer;
    column.answer = null;
    this.show();
    if (answered) await this.compare([column]);
  }

  // one after the other: at once they would make each other wait
  async compare(columns = this.columns) {
    this.go.disabled = true;
    for (const column of columns) column.element.setAttribute("aria-busy", "true");
    try {
      for (const column of columns) {
        column.answer = await this.ask(column.select.value);
        column.element.removeAttribute("aria-busy");
        this.show();
      }
    } catch (problem) {
      this.failed(problem);
    } finally {
      this.go.disabled = false;
      for (const column of columns) column.element.removeAttribute("aria-busy");
    }
  }

  show() {
    const last = this.columns.at(-1);
    for (const column of this.columns) {
      const { answer, select, picture, time, text, note } = column;
      picture.replaceChildren(glyph(select.value, this.view.deepest));
      time.textContent = answer ? milliseconds(answer.compute_ms) : "";
      if (!answer || !last.answer || column === last) {
        text.replaceChildren(answer ? answer.text : "");
        note.textContent = "";
        continue;
      }
      const parts = compared(answer.text, last.answer.text);
      text.replaceChildren(...marked(parts));
      const found = differences(parts);
      note.textContent = found ? `differs from ${last.select.value} in ${count(found, "place")}` : `the same as ${last.select.value}`;
    }
  }
}
