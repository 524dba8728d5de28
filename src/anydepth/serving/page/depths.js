// Depths are names such as "6-2" (encoder and decoder layers) or "6" (a model without a decoder).

export const STACKS = ["Encoder", "Decoder"];

export const layersOf = (depth) => depth.split("-").map(Number);

const total = (depth) => layersOf(depth).reduce((sum, layers) => sum + layers, 0);

// the numbers of layers that a stack has, given those of the stacks before it
export function choices(depths, stack, before = []) {
  const fitting = depths.map(layersOf).filter((layers) => before.every((number, place) => layers[place] === number));
  return [...new Set(fitting.map((layers) => layers[stack]))].sort((a, b) => a - b);
}

export const stacksOf = (depths) => layersOf(depths[0]).length;

// the next number that exists in the direction of a movement: between two depths there may be a gap
export function snapped(known, wanted, before) {
  const onward = known.filter((number) => (wanted > before ? number >= wanted : number <= wanted));
  if (onward.length) return wanted > before ? onward[0] : onward.at(-1);
  return wanted > before ? known.at(-1) : known[0];
}

export function nearest(known, wanted) {
  return known.reduce((best, number) => (Math.abs(number - wanted) < Math.abs(best - wanted) ? number : best));
}

// three that show the range: the shallowest, one between, the deepest
export function telling({ depths, fastest, deepest, balanced }) {
  const ordered = [...depths].sort((a, b) => total(a) - total(b));
  const between = balanced && ![fastest, deepest].includes(balanced) ? balanced : ordered[Math.floor(ordered.length / 2)];
  const found = [...new Set([fastest, between, deepest])];
  return found.sort((a, b) => total(a) - total(b));
}

export function spoken(depth) {
  const layers = layersOf(depth);
  if (layers.some(Number.isNaN)) return depth;
  if (layers.length === 1) return layers[0] === 1 ? "1 layer" : `${layers[0]} layers`;
  return `${layers[0]} encoder and ${layers[1]} decoder layers`;
}
