// Where two texts differ, word by word.

const words = (text) => text.match(/\s+|[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]/gu) ?? [];

// the words of `text`, and where words of `other` are missing: { word, same } and { missing }
export function compared(text, other) {
  const theirs = other.split("\n");
  // line by line, because models translate so: it also bounds the work
  return text.split("\n").flatMap((line, place) => {
    const parts = comparedLine(line, theirs[place] ?? "");
    return place ? [{ word: "\n", same: true }, ...parts] : parts;
  });
}

function comparedLine(text, other) {
  const ours = words(text), theirs = words(other);
  const common = table(ours, theirs);
  const parts = [];
  let i = 0, j = 0;
  while (i < ours.length || j < theirs.length) {
    if (i < ours.length && j < theirs.length && ours[i] === theirs[j]) {
      parts.push({ word: ours[i], same: true });
      i++, j++;
    } else if (j === theirs.length || (i < ours.length && common[i + 1][j] >= common[i][j + 1])) {
      parts.push({ word: ours[i++], same: false });
    } else {
      parts.push({ missing: theirs[j++] });
    }
  }
  return joined(parts);
}

// how long a common subsequence the rest of both has
function table(a, b) {
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  return lengths;
}

// neighbours of a kind become one part; what was replaced is not also missing, and spaces alone are no difference
function joined(parts) {
  const merged = [];
  for (const part of parts) {
    const last = merged.at(-1);
    if (last && kind(last) === kind(part)) {
      if ("missing" in part) last.missing += part.missing;
      else last.word += part.word;
    } else merged.push({ ...part });
  }
  const beside = (place) => [merged[place - 1], merged[place + 1]].some((one) => one && kind(one) === "other");
  return merged
    .filter((part, place) => !("missing" in part) || (part.missing.trim() && !beside(place)))
    .map((part) => ("word" in part && !part.word.trim() ? { ...part, same: true } : part));
}

const kind = (part) => ("missing" in part ? "missing" : part.same ? "same" : "other");

export const differences = (parts) => parts.filter((part) => kind(part) !== "same").length;
