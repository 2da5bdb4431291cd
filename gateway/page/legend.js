// The legend: every source with its mark, and how many tokens of an answer it gave.

import { byId, element } from "./dom.js";
import { SOURCES } from "./sources.js";

// Shown only once a token came from them.
const RARE = new Set(["random"]);

export class Legend {
  constructor() {
    this.entries = new Map();
    for (const { key, name, says } of SOURCES) {
      const count = element("b");
      const sample = element("span.run", { "data-source": key }, name);
      const item = element("li", { title: says, hidden: RARE.has(key) }, sample, count);
      this.entries.set(key, { item, count });
    }
    byId("legend").append(...[...this.entries.values()].map(({ item }) => item));
  }

  show(answer) {
    const counts = answer?.countsBySource() ?? new Map();
    for (const [key, { item, count }] of this.entries) {
      const number = counts.get(key) ?? 0;
      count.textContent = number || "";
      item.classList.toggle("absent", Boolean(answer) && !number);
      item.hidden = RARE.has(key) && !number;
    }
  }
}
