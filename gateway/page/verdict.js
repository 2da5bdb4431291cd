// The speculative answer against its plain replay: same tokens? which was faster? Pure but for its view.

import { firstDifference } from "./answer.js";
import { element } from "./dom.js";
import { duration, fixed, plural } from "./words.js";

// {isIdentical, position, gain}. `gain` is of tokens per second after the first round.
export function compared(speculative, plain) {
  const position = firstDifference(speculative.tokenIds, plain.tokenIds);
  const [fast, slow] = [speculative, plain].map((answer) => answer.figures().tokensPerS);
  return { isIdentical: position < 0, position, gain: fast && slow ? fast / slow : null };
}

export function verdictView(speculative, plain) {
  const { isIdentical, position, gain } = compared(speculative, plain);
  const said = isIdentical
    ? `Identical: all ${plural(plain.tokenIds.length, "token id")} are the same`
    : `Different from token ${position + 1} on`;
  const pace = gain == null ? "" : ` ${fixed(gain)}\u00d7 the tokens per second of plain decoding, one run each.`;
  const longest = Math.max(speculative.durationMs, plain.durationMs);
  return element("section.verdict", { "aria-label": "Verdict", "data-identical": `${isIdentical}` },
    element("p.said", {}, element("b", {}, said), "."), element("p", {}, pace),
    timeBar("speculative", speculative.durationMs, longest),
    timeBar("plain", plain.durationMs, longest));
}

function timeBar(name, timeMs, longestMs) {
  const bar = element(`i.${name}`, { "aria-hidden": "true" });
  bar.style.setProperty("--share", timeMs / longestMs);
  return element("p.race", {}, element("span", {}, name), element("span.lane", {}, bar),
    element("span.time", {}, duration(timeMs)));
}
