// Numbers and rounds in words. Pure.

import { PLAIN_REASONS, nameOf } from "./sources.js";

export const NONE = "\u2013";

export const fixed = (value, digits = 2) => (value == null ? NONE : value.toFixed(digits));

export function duration(ms) {
  if (ms == null) return NONE;
  if (ms < 0.05) return ms > 0 ? "< 0.1 ms" : "0 ms";
  return ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// Lines about one round: a title, then pairs of a name and a value.
export function roundWords({ report, number, sources, draftMs, waitMs, verifyMs }) {
  const isPlain = report.num_drafted === 0;
  const reason = PLAIN_REASONS[report.plain_reason];
  const pairs = isPlain
    ? [["draft tokens", reason ? `none: ${reason}` : "none"]]
    : [["drafted", `${report.num_drafted}`], ["accepted", `${report.num_accepted}`]];
  pairs.push(["draft", duration(draftMs)], ["wait", duration(waitMs)]);
  pairs.push(["verify", duration(verifyMs)], ["tokens", sourcesInWords(sources)]);
  return { title: `Round ${number}`, pairs };
}

export function roundLine(round) {
  const { title, pairs } = roundWords(round);
  return `${title}: ${pairs.map(([name, value]) => `${name} ${value}`).join(", ")}`;
}

function sourcesInWords(sources) {
  const counts = new Map();
  for (const source of sources) counts.set(source, (counts.get(source) ?? 0) + 1);
  return [...counts].map(([source, count]) => `${count} ${nameOf(source)}`).join(", ") || "none";
}
