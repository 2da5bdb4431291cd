// One answer on the page: its text, a span for each round, coloured by source.

import { sourceOf } from "./answer.js";
import { element } from "./dom.js";
import { duration, plural, roundWords } from "./words.js";

export class AnswerView {
  // `onPoint(view, number, span, words, at)` when a round is pointed at, with null when none is.
  constructor(answer, title, onPoint) {
    this.answer = answer;
    this.onPoint = onPoint;
    this.spans = new Map();
    this.marked = null;
    this.time = element("span.time");
    this.text = element("div.text", {
      role: "group",
      "aria-label": `${title}. Left and right arrow keys walk its rounds.`,
    });
    this.root = element("section.answer", { "aria-label": title, "aria-busy": "true" },
      element("header", {}, element("span", {}, title), this.time), this.text);
    this.text.addEventListener("pointerover", (event) => this.#pointed(event));
    this.text.addEventListener("click", (event) => this.#pointed(event));
    this.text.addEventListener("pointerleave", () => this.#leave());
    this.text.addEventListener("focusin", (event) => this.#pointed(event));
    this.text.addEventListener("focusout", () => this.#leave());
    this.text.addEventListener("keydown", (event) => this.#pressed(event));
  }

  // Writes a round that is new or has grown.
  write(round) {
    const runs = round.runs.map(({ source, text }) =>
      element("span.run", { "data-source": source }, text));
    let span = this.spans.get(round.number);
    if (!span) {
      if (!runs.length) return;
      const tabindex = this.spans.size ? -1 : 0;
      span = element("span.round", { "data-round": round.number, tabindex });
      this.spans.set(round.number, span);
      this.text.append(span);
    }
    span.replaceChildren(...runs);
    span.dataset.source = sourceOf(round);
  }

  finish() {
    this.root.setAttribute("aria-busy", "false");
    const { numTokens, numRounds } = this.answer.figures();
    const counts = `${plural(numTokens, "token")} in ${plural(numRounds, "round")}`;
    const time = this.answer.durationMs;
    this.time.textContent = time == null ? `${counts}, stopped: the model will not be told of it` : `${counts}, ${duration(time)}`;
  }

  mark(number) {
    this.spans.get(this.marked)?.classList.remove("marked");
    this.marked = number;
    this.spans.get(number)?.classList.add("marked");
  }

  #pointed(event) {
    const span = event.target.closest(".round");
    if (!span) return;
    const number = Number(span.dataset.round);
    const round = this.answer.rounds.find((candidate) => candidate.number === number);
    // A span may go over several lines; the tooltip belongs to the one that is pointed at.
    const boxes = [...span.getClientRects()];
    const isIn = ({ top, bottom }) => event.clientY >= top && event.clientY <= bottom;
    this.onPoint(this, number, span, roundWords(round), boxes.find(isIn) ?? boxes[0]);
  }

  #leave() {
    this.onPoint(this, null);
  }

  #pressed(event) {
    const spans = [...this.spans.values()];
    const at = spans.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (at < 0 || to === undefined || !spans[to]) return;
    event.preventDefault();
    spans[at].tabIndex = -1;
    spans[to].tabIndex = 0;
    spans[to].focus();
  }
}
