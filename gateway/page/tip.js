// The tooltip: what one round was, beside the thing that stands for it. One for the whole page.

import { byId, element } from "./dom.js";

const GAP = 8;

export class Tip {
  constructor() {
    this.element = byId("tip");
    addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
    addEventListener("scroll", () => this.hide(), { capture: true, passive: true });
  }

  // `words` is {title, pairs}; `anchor` the element it belongs to, `at` a client rectangle of it.
  show(words, anchor, at = anchor.getBoundingClientRect()) {
    this.hide();
    const pairs = words.pairs.flatMap(([name, value]) => [
      element("dt", {}, name),
      element("dd", {}, value),
    ]);
    this.element.replaceChildren(element("strong", {}, words.title), element("dl", {}, ...pairs));
    this.element.hidden = false;
    this.anchor = anchor;
    anchor.setAttribute("aria-describedby", "tip");
    const { width, height } = this.element.getBoundingClientRect();
    const fitsBelow = at.bottom + GAP + height < innerHeight;
    const top = fitsBelow ? at.bottom + GAP : Math.max(GAP, at.top - GAP - height);
    const left = Math.max(GAP, Math.min(at.left, innerWidth - width - GAP));
    this.element.style.top = `${top}px`;
    this.element.style.left = `${left}px`;
  }

  hide() {
    this.element.hidden = true;
    this.anchor?.removeAttribute("aria-describedby");
    this.anchor = null;
  }
}
