// What went wrong, in words that help.

import { $, make } from "./dom.js";
import { apiKey } from "./server.js";

export class Problems {
  constructor(place) {
    this.place = place;
    this.timer = 0;
    this.status = null;
  }

  // `again` repeats what failed
  show(problem, again) {
    this.clear();
    this.status = problem.status;
    const retry = make("button", { type: "button", class: "plain", onclick: () => this.repeat(again) }, "Try again");
    this.place.replaceChildren(make("p", {}, said(problem)), ...(worthRepeating(problem.status) ? [retry] : []));
    this.place.hidden = false;
    if (problem.status === 429) this.countDown(retry, problem.retryAfter || 1, again);
    if (problem.status === 403) askForKey();
  }

  clear() {
    clearInterval(this.timer);
    this.status = null;
    this.place.hidden = true;
    this.place.replaceChildren();
  }

  repeat(again) {
    this.clear();
    again();
  }

  countDown(button, seconds, again) {
    const tick = () => {
      button.textContent = `Try again (${seconds} s)`;
      if (seconds-- <= 0) this.repeat(again);
    };
    tick();
    this.timer = setInterval(tick, 1000);
  }
}

function said({ status, message, retryAfter }) {
  if (status === 0) return "The server does not answer. Perhaps it has ended, or the network is down.";
  if (status === 429) return `The server is busy: too many texts are waiting. It asks for ${retryAfter || 1} s of patience.`;
  if (status === 403) return apiKey.get() ? "The server does not know this API key." : "This server wants an API key.";
  if (status === 413) return `This text is too long: ${detail(message)}.`;
  if (status === 503) return "The server is going down and takes nothing new.";
  if (status === 504 || status === 408) return "There was no answer in time. A shallower depth is faster.";
  if (status >= 500) return "Something broke on the server. Its log says what.";
  return `The server refused: ${message}.`;
}

const detail = (message) => message.replace(/^q: /, "");

const worthRepeating = (status) => [0, 408, 429, 500, 503, 504].includes(status);

function askForKey() {
  $("key-row").hidden = false;
  $("key").focus();
}
