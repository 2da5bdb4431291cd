// The running figures of one answer. What they mean: docs/http.md, docs/bench.md.

import { byId, element } from "./dom.js";
import { NONE, fixed } from "./words.js";

const TILES = [
  ["tokensPerRound", "tokens per round", "1 without speculation", (value) => fixed(value)],
  ["acceptanceRate", "acceptance_rate", "accepted / tested", (value) => fixed(value)],
  ["draftEfficiency", "draft_efficiency", "accepted / drafted", (value) => fixed(value)],
  ["tokensPerS", "tokens/s", "after the first round", (value) => fixed(value, 1)],
  ["gain", "gain against plain", "", (value) => (value == null ? NONE : `${fixed(value)}\u00d7`)],
];
const ESTIMATED = "estimated by the ledger";
const MEASURED = "measured in the replay";

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
