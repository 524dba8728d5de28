// The calibrated depths as a picture: time to the right, quality upwards, the best for each time on a line.

import { spoken } from "./depths.js";
import { draw, milliseconds } from "./dom.js";

const HEIGHT = 268;
const MARGIN = { top: 16, right: 20, bottom: 40, left: 46 };

export class Front {
  constructor(place, choose) {
    this.place = place;
    this.choose = choose;
    this.shown = null;
    new ResizeObserver(() => this.shown && this.render()).observe(place);
  }

  // `chosen` is a depth, `budget` milliseconds or nothing
  show(view, chosen, budget) {
    this.shown = { view, chosen, budget };
    this.render();
  }

  hide() {
    this.shown = null;
  }

  render() {
    const { view, chosen, budget } = this.shown;
    const focused = this.place.contains(document.activeElement) ? document.activeElement.dataset.depth : null;
    const width = Math.max(260, this.place.clientWidth);
    const scale = scales(view.points, width);
    const point = view.points.find(({ depth }) => depth === chosen);
    const picture = draw(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "group", "aria-label": said(view, point) },
      axes(scale, view.metric, width),
      budget ? budgetLine(scale, budget) : null,
      line(view.points, scale),
      ...inOrder(view.points, chosen).map((one) => this.dot(one, scale, view.metric, one === point)),
      point ? label(point, scale, view.metric, width) : null,
    );
    this.place.replaceChildren(picture);
    if (focused) picture.querySelector(`[data-depth="${focused}"]`)?.focus();
  }

  dot(point, scale, metric, chosen) {
    const [x, y] = scale.of(point);
    const name = `${spoken(point.depth)}: ${metric} ${point.quality.toFixed(1)}, ${milliseconds(point.ms)}`;
    const choose = () => this.choose(point.depth);
    const attributes = {
      class: `dot ${point.front ? "front" : ""} ${chosen ? "chosen" : ""}`,
      "data-depth": point.depth,
      role: "button",
      tabindex: point.front || chosen ? 0 : -1,
      "aria-label": name,
      "aria-pressed": String(chosen),
      onclick: choose,
      onkeydown: (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      },
    };
    return draw(
      "g",
      attributes,
      draw("title", {}, `${point.depth} · ${metric} ${point.quality.toFixed(1)} · ${milliseconds(point.ms)}`),
      draw("circle", { cx: x, cy: y, r: 12, class: "reach" }),
      chosen ? draw("circle", { cx: x, cy: y, r: 9.5, class: "halo" }) : null,
      draw("circle", { cx: x, cy: y, r: chosen ? 5 : point.front ? 4 : 2.5, class: "mark" }),
    );
  }
}

// from left to right, for the keyboard; the chosen one last, so that it lies on top
function inOrder(points, chosen) {
  const sorted = [...points].sort((a, b) => Number(a.front) - Number(b.front) || a.ms - b.ms);
  return [...sorted.filter(({ depth }) => depth !== chosen), ...sorted.filter(({ depth }) => depth === chosen)];
}

function scales(points, width) {
  const times = ticks(0, Math.max(...points.map(({ ms }) => ms)), width < 420 ? 4 : 6);
  const qualities = points.map(({ quality }) => quality);
  const heights = ticks(Math.min(...qualities), Math.max(...qualities), 5);
  const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
  const x = (ms) => MARGIN.left + (inner.width * ms) / times.at(-1);
  const share = (quality) => (quality - heights[0]) / (heights.at(-1) - heights[0]);
  const y = (quality) => MARGIN.top + inner.height * (1 - share(quality));
  return { times, heights, x, y, of: ({ ms, quality }) => [x(ms), y(quality)] };
}

// round numbers around a range
function ticks(low, high, most) {
  const rough = Math.max(high - low, 1e-6) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  const first = Math.floor(low / step), last = Math.max(first + 1, Math.ceil(high / step));
  return Array.from({ length: last - first + 1 }, (_, place) => Number(((first + place) * step).toPrecision(6)));
}

function axes({ times, heights, x, y }, metric, width) {
  const bottom = HEIGHT - MARGIN.bottom;
  return draw(
    "g",
    { class: "axes", "aria-hidden": "true" },
    ...heights.flatMap((quality) => [
      draw("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(quality), y2: y(quality) }),
      draw("text", { x: MARGIN.left - 10, y: y(quality) + 4, "text-anchor": "end" }, String(quality)),
    ]),
    ...times.map((ms) => draw("text", { x: x(ms), y: bottom + 18, "text-anchor": "middle" }, String(ms))),
    draw("text", { x: width - MARGIN.right, y: bottom + 36, "text-anchor": "end", class: "unit" }, "ms for a usual text →"),
    draw("text", { x: MARGIN.left, y: bottom + 36, class: "unit" }, `↑ ${metric}`),
  );
}

function line(points, scale) {
  const front = points.filter((point) => point.front).sort((a, b) => a.ms - b.ms);
  return draw("polyline", { class: "line", points: front.map((point) => scale.of(point).join(",")).join(" ") });
}

function budgetLine({ times, x }, budget) {
  if (budget > times.at(-1)) return null;
  const attributes = { class: "limit", x1: x(budget), x2: x(budget), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom };
  return draw("line", attributes);
}

// beside the point, on the side with room; below the line, because points above it are few
function label(point, scale, metric, width) {
  const [x, y] = scale.of(point);
  const left = x > width * 0.6;
  const high = y > HEIGHT - MARGIN.bottom - 34;
  return draw(
    "text",
    { class: "label", x: x + (left ? -14 : 14), y: y + (high ? -14 : 24), "text-anchor": left ? "end" : "start", "aria-hidden": "true" },
    draw("tspan", { class: "depth" }, point.depth),
    `  ${point.quality.toFixed(1)} · ${milliseconds(point.ms)}`,
  );
}

function said(view, point) {
  const best = view.points.reduce((one, other) => (other.quality > one.quality ? other : one));
  const all = `${view.points.length} depths by ${view.metric} and time; the best has ${best.quality.toFixed(1)} in ${milliseconds(best.ms)}`;
  return point ? `${all}; chosen is ${point.depth} with ${point.quality.toFixed(1)} in ${milliseconds(point.ms)}` : all;
}
