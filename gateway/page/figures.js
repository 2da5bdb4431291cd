// The running figures of one answer. What they mean: docs/http.md, docs/bench.md.

import { byId, element } from "./dom.js";
import { NONE, fixed } from "./words.js";

const TILES = [
  ["tokensPerRound", "tokens per round", "plain: 1", (value) => fixed(value)],
  ["acceptanceRate", "acceptance_rate", "accepted / tested", (value) => fixed(value)],
  ["draftEfficiency", "draft_efficiency", "accepted / drafted", (value) => fixed(value)],
  ["tokensPerS", "tokens/s", "after round 1", (value) => fixed(value, 1)],
  ["gain", "gain against plain", "", (value) => (value == null ? NONE : `${fixed(value)}\u00d7`)],
];
const ESTIMATED = "by the ledger";
const MEASURED = "as measured";

export class Figures {
  constructor() {
    this.tiles = new Map();
    for (const [key, name, note, write] of TILES) {
      const value = element("b", {}, NONE);
      const small = element("small", {}, note);
      this.tiles.set(key, { value, small, write });
      const about = element("dt", {}, name);
      byId("figures").append(element("div", { "data-figure": key }, about, element("dd", {}, value, small)));
    }
  }

  // `measuredGain` replaces the estimate once plain was replayed.
  show(figures, measuredGain = null) {
    const gain = measuredGain ?? figures?.estimatedGain;
    for (const [key, { value, write }] of this.tiles) {
      value.textContent = write(key === "gain" ? gain : figures?.[key]);
    }
    this.tiles.get("gain").small.textContent = measuredGain == null ? ESTIMATED : MEASURED;
  }
}
