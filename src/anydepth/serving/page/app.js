// The page: which task and languages, what is asked, what is shown.

import * as answer from "./answer.js";
import { Columns } from "./columns.js";
import { $, make, options } from "./dom.js";
import { Front } from "./front.js";
import { Live } from "./live.js";
import { Problems } from "./problems.js";
import { apiKey, get, post, Problem, stream } from "./server.js";
import { Wish } from "./wish.js";

const TASKS = { translate: "Translate", summarize: "Summarize", classify: "Classify" };
const RECONNECT = 2000;
const SETTLE = 180; // milliseconds that a dial stands still before its depth is asked for

// `asked`: there is an answer, or one is on its way, that another wish would renew
const state = { settings: null, languages: [], task: "", run: null, view: null, asked: false, answered: null };
let asking = new AbortController();
let settling = 0;

const problems = new Problems($("problem"));
const wish = new Wish(wishChanged);
const front = new Front($("front"), (depth) => wish.choose(depth));
const live = new Live({ pulse: $("pulse"), about: $("now-about"), place: $("now") }, reachable);
const columns = new Columns({ place: $("columns"), add: $("add"), go: $("compare-go") }, answerAt, (problem) =>
  failed(problem, () => columns.compare()),
);

// ---- what there is to do

async function start() {
  try {
    [state.settings, state.languages] = await Promise.all([get("frontend/settings"), get("languages")]);
  } catch (problem) {
    problems.show(problem, start);
    setTimeout(() => state.settings || start(), RECONNECT);
    return;
  }
  problems.clear();
  $("key-row").hidden = !state.settings.keyRequired;
  $("key").value = apiKey.get();
  offerTasks();
  live.ask();
}

function offerTasks() {
  const known = Object.keys(TASKS).filter((task) => state.settings.runs.some((run) => run.task === task));
  const tabs = known.map((task) => {
    const input = make("input", { type: "radio", name: "task", value: task, onchange: () => choose(task) });
    return make("label", {}, input, make("span", {}, TASKS[task]));
  });
  $("tasks").replaceChildren(make("div", { class: "segmented", role: "radiogroup", "aria-label": "Task" }, ...tabs));
  $("tasks").hidden = known.length < 2;
  tabs[0].firstChild.checked = true;
  choose(known[0]);
}

function choose(task) {
  state.task = task;
  const translating = task === "translate";
  for (const id of ["source", "target", "swap", "draft-field", "detected"]) $(id).hidden = !translating;
  $("go").firstElementChild.textContent = TASKS[task];
  const runs = state.settings.runs.filter((run) => run.task === task);
  $("run").hidden = translating;
  options($("run"), runs.map(({ name }) => [name, name]), state.run?.name);
  if (translating) offerLanguages();
  else offerRun();
}

function offerLanguages() {
  const { language } = state.settings;
  const sources = state.languages.filter(({ targets }) => targets.length).map(({ code, name }) => [code, name]);
  options($("source"), [["auto", "Detect language"], ...sources], $("source").value || language.source?.code);
  offerTargets();
}

function offerTargets() {
  const source = $("source").value;
  const reached = state.languages.filter(({ code }) => source === "auto" || code === source).flatMap(({ targets }) => targets);
  const targets = state.languages.filter(({ code }) => reached.includes(code)).map(({ code, name }) => [code, name]);
  options($("target"), targets, $("target").value || state.settings.language.target?.code);
  offerPair();
}

function offerPair() {
  const source = $("source").value, target = $("target").value;
  $("swap").disabled = !state.languages.some(({ code, targets }) => code === target && targets.includes(source));
  offer(...between(source, target));
}

// the run that translates, and what it offers; of two the server takes the first
function between(source, target) {
  const fits = (pair) => pair.target === target && (source === "auto" || pair.source === source);
  const run = state.settings.runs.find(({ languages }) => languages.some(fits));
  return [run, run.languages.find(fits)];
}

function offerRun() {
  const run = state.settings.runs.find(({ name, task }) => task === state.task && name === $("run").value);
  offer(run, run.languages[0]);
}

function offer(run, view) {
  forget();
  adopt(run, view);
}

function adopt(run, view) {
  Object.assign(state, { run, view });
  wish.offer(view, state.task);
  columns.offer(view);
  $("compare").hidden = view.depths.length < 2;
  live.follow(run.name, view.deepest);
  showFront();
  showCount();
}

// ---- quality and time

function showFront() {
  const { view, run, answered, task } = state;
  $("front-card").hidden = task === "classify"; // nobody calibrates a classifier
  $("front-card").parentElement.classList.toggle("alone", task === "classify");
  if (!view.points.length) {
    front.hide();
    $("front-about").textContent = "";
    $("front").replaceChildren(...calibrate(run));
    return;
  }
  $("front-about").textContent = "Each point is a depth, as measured on this machine. On the line nothing faster is as good. Choose any.";
  front.show(view, answered?.depth ?? wish.expected, wish.budget);
}

function calibrate({ name }) {
  return [
    make("p", { class: "empty" }, "This run was not calibrated on this machine, so nobody knows yet how good its depths are and how long they take. On the server, with RUN the folder of ", make("b", {}, name), ":"),
    make("pre", {}, make("code", {}, "anydepth evaluate RUN\nanydepth calibrate RUN")),
    make("p", { class: "empty" }, "Until then every depth can be chosen by hand; restart the server afterwards."),
  ];
}

function wishChanged() {
  state.answered = null;
  showFront();
  clearTimeout(settling);
  if (state.asked) settling = setTimeout(ask, SETTLE);
}

// ---- asking

const text = () => $("text").value;
const length = () => [...text()].length; // of characters, as the server counts them

function fields() {
  if (state.task !== "translate") return { q: text(), run: state.run.name };
  return { q: text(), source: $("source").value, target: $("target").value };
}

async function ask() {
  problems.clear();
  if (!text().trim()) return $("text").focus();
  if (length() > state.settings.charLimit) {
    return failed(new Problem(`${length()} characters, but this server takes ${state.settings.charLimit} at most`, 413), ask);
  }
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  state.asked = true;
  answer.busy(true);
  try {
    const asked = { ...fields(), ...wish.fields };
    if (state.task === "translate" && $("draft").checked) await refine(asked, signal);
    else show(await post(state.task, asked, signal));
  } catch (problem) {
    if (problem.name === "AbortError") return;
    state.answered = null;
    answer.clear();
    failed(problem, ask);
  }
  if (!signal.aborted) answer.busy(false);
}

async function refine(asked, signal) {
  const begun = performance.now();
  let draft = null;
  for await (const [name, said] of stream("translate", asked, signal)) {
    said.after = performance.now() - begun;
    if (name === "final") return show(said, draft);
    draft = said;
    answer.showDraft(said);
    showDetected(said);
  }
  throw new Problem("the answer broke off");
}

async function answerAt(depth) {
  if (!text().trim()) {
    $("text").focus();
    throw new Problem("there is no text yet", 400);
  }
  problems.clear();
  const said = await post(state.task, { ...fields(), depth });
  return { ...said, text: answer.inWords(said) };
}

function failed(problem, again) {
  if (!(problem instanceof Problem)) throw problem;
  problems.show(problem, again);
}

// whether the server answers, from those who ask all the time
function reachable(yes) {
  if (yes && problems.status === 0) problems.clear();
}

// ---- answers

function forget() {
  asking.abort();
  clearTimeout(settling);
  state.asked = false;
  state.answered = null;
  answer.clear();
  columns.clear();
}

function show(said, draft) {
  state.answered = said;
  if (said.detectedLanguage) {
    const [run, view] = between(said.detectedLanguage.language, $("target").value);
    if (view !== state.view) adopt(run, view); // it may have other depths
  }
  answer.show(said, draft, state.view);
  showDetected(said);
  showFront();
}

function showDetected({ detectedLanguage }) {
  const known = detectedLanguage && state.languages.find(({ code }) => code === detectedLanguage.language);
  $("detected").textContent = known ? `${known.name}, ${Math.round(detectedLanguage.confidence)} % sure` : "";
}

function showCount() {
  const { charLimit } = state.settings;
  $("count").textContent = `${length().toLocaleString("en")} / ${charLimit.toLocaleString("en")}`;
  $("count").classList.toggle("over", length() > charLimit);
  $("clear").hidden = !length();
}

// ---- hands

function swap() {
  const [source, target] = [$("source").value, $("target").value];
  const answer = state.answered?.translatedText;
  $("source").value = target;
  offerTargets();
  $("target").value = source;
  offerPair();
  if (answer) {
    $("text").value = answer;
    showCount();
    ask();
  }
}

function languageChanged(offerNew) {
  const { asked } = state;
  offerNew();
  if (asked) ask();
}

async function copy() {
  await navigator.clipboard.writeText(answer.inWords(state.answered));
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

$("work").addEventListener("submit", (event) => (event.preventDefault(), ask()));
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
});
$("text").addEventListener("input", () => (showCount(), columns.clear()));
$("source").addEventListener("change", () => languageChanged(offerTargets));
$("target").addEventListener("change", () => languageChanged(offerPair));
$("run").addEventListener("change", () => languageChanged(offerRun));
$("swap").addEventListener("click", swap);
$("copy").addEventListener("click", copy);
$("key").addEventListener("input", () => apiKey.set($("key").value));
$("clear").addEventListener("click", () => {
  $("text").value = "";
  forget();
  showCount();
  $("text").focus();
});

start();
