// The rounds of one answer as bars on a time axis, which covers the rounds in view.

import { sourceOf } from "./answer.js";
import { byId, element } from "./dom.js";
import { isOwn } from "./sources.js";
import { duration, plural, roundLine, roundWords } from "./words.js";

// At most so many marks on the axis, at round times.
const NUM_MARKS = 6;

export class Waterfall {
  // `onPoint(number, row)` when a round is pointed at, `onPoint(null)` when none is any more.
  constructor(onPoint) {
    this.rows = byId("rows");
    this.axis = byId("axis");
    this.onPoint = onPoint;
    this.items = [];
    this.current = -1;
    this.follows = true;
    this.rows.addEventListener("scroll", () => this.#fit(), { passive: true });
    this.rows.addEventListener("pointerover", (event) => this.#pointed(event));
    this.rows.addEventListener("pointerleave", () => this.#leave());
    this.rows.addEventListener("keydown", (event) => this.#pressed(event));
    this.rows.addEventListener("focus", () => this.#enter());
    this.rows.addEventListener("blur", () => this.#leave());
    new ResizeObserver(() => this.#fit()).observe(this.rows);
  }

  // Shows another answer, from its first round.
  show(answer) {
    this.rows.replaceChildren();
    this.items = [];
    this.#choose(-1);
    this.follows = true;
    if (answer?.prefill) this.#append(promptItem(answer.prefill));
    for (const round of answer?.rounds ?? []) this.#append(roundItem(round));
    this.rows.scrollTop = 0;
    this.#fit();
  }

  // Adds the round that has just come.
  add(answer, round) {
    if (!this.items.length && answer.prefill) this.#append(promptItem(answer.prefill));
    if (this.items.some((item) => item.number === round.number)) return;
    this.#append(roundItem(round));
    if (this.follows) this.rows.scrollTop = this.rows.scrollHeight;
    this.#fit();
  }

  // Marks a round that is pointed at elsewhere and brings it into view; null marks none.
  mark(number) {
    this.#choose(this.items.findIndex((item) => item.number === number));
  }

  #append(item) {
    item.row.id = `row-${this.items.length}`;
    this.items.push(item);
    this.rows.append(item.row);
  }

  #choose(index) {
    this.items[this.current]?.row.removeAttribute("aria-selected");
    this.current = index;
    const chosen = this.items[index]?.row;
    if (!chosen) {
      this.rows.removeAttribute("aria-activedescendant");
      return;
    }
    chosen.setAttribute("aria-selected", "true");
    this.rows.setAttribute("aria-activedescendant", chosen.id);
    const { offsetTop, offsetHeight } = chosen;
    const { scrollTop, clientHeight } = this.rows;
    if (offsetTop < scrollTop) this.rows.scrollTop = offsetTop;
    else if (offsetTop + offsetHeight > scrollTop + clientHeight) {
      this.rows.scrollTop = offsetTop + offsetHeight - clientHeight;
    }
    this.#fit();
  }

  #go(index) {
    if (!this.items.length) return;
    this.#choose(Math.max(0, Math.min(index, this.items.length - 1)));
    const item = this.items[this.current];
    // A change of scroll hides tooltips; this one comes after it.
    requestAnimationFrame(() => requestAnimationFrame(() => {
      if (this.items[this.current] === item) this.onPoint(item.number, item.row, item.words);
    }));
  }

  #enter() {
    this.follows = false;
    if (this.rows.matches(":focus-visible")) this.#go(this.current < 0 ? 0 : this.current);
  }

  #leave() {
    this.follows = true;
    this.#choose(-1);
    this.onPoint(null);
  }

  #pointed(event) {
    const row = event.target.closest("[role=option]");
    const index = this.items.findIndex((item) => item.row === row);
    if (index < 0) return;
    this.follows = false;
    this.#choose(index);
    const item = this.items[index];
    this.onPoint(item.number, row, item.words);
  }

  #pressed(event) {
    const page = Math.max(1, Math.floor(this.rows.clientHeight / this.#rowHeight()) - 1);
    const last = this.items.length - 1;
    const to = {
      ArrowDown: this.current + 1,
      ArrowUp: this.current - 1,
      PageDown: this.current + page,
      PageUp: this.current - page,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#go(to);
  }

  #rowHeight() {
    return this.items[0]?.row.offsetHeight || 1;
  }

  // Fits the axis to the rows in view.
  #fit() {
    if (!this.items.length) {
      this.axis.replaceChildren();
      return;
    }
    const height = this.#rowHeight();
    const first = Math.min(Math.floor(this.rows.scrollTop / height), this.items.length - 1);
    const last = Math.ceil((this.rows.scrollTop + this.rows.clientHeight) / height);
    const shown = this.items.slice(first, Math.max(last, first + 1));
    const from = Math.min(...shown.map((item) => item.from));
    const to = Math.max(...shown.map((item) => item.to), from + 1);
    for (const part of [this.rows, this.axis]) {
      part.style.setProperty("--from", from);
      part.style.setProperty("--span", to - from);
    }
    this.axis.replaceChildren(...marksBetween(from, to).map((at) => {
      const mark = element("span", {}, duration(at));
      mark.style.setProperty("--at", at);
      return mark;
    }));
  }
}

// Round times in ms, evenly spaced.
function marksBetween(from, to) {
  const least = (to - from) / NUM_MARKS;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  const first = Math.ceil(from / step);
  const count = Math.floor(to / step) - first + 1;
  return Array.from({ length: count }, (_, index) => (first + index) * step);
}

function promptItem({ queueMs, prefillMs, num_prompt_tokens, num_cached_tokens }) {
  const words = {
    title: "Prompt",
    pairs: [
      ["queue", duration(queueMs)],
      ["prefill", duration(prefillMs)],
      ["tokens", `${num_prompt_tokens}, ${num_cached_tokens} of them cached`],
    ],
  };
  const track = element("span.track", {}, part("wait", 0, queueMs), part("prefill", queueMs, prefillMs));
  const label = `Prompt: ${plural(num_prompt_tokens, "token")}, prefill ${duration(prefillMs)}`;
  const row = element("div.bar", { role: "option", "aria-label": label, "data-prompt": true },
    element("span.number", {}, "prompt"), track, element("span.ticks", {}, ""));
  return { row, number: 0, words, from: 0, to: queueMs + prefillMs };
}

function roundItem(round) {
  const { report, startMs, draftMs, waitMs, verifyMs } = round;
  const verifyFrom = startMs + waitMs;
  const track = element("span.track", {},
    part("wait", startMs, waitMs),
    part("verify", verifyFrom, verifyMs),
    part("draft", Math.max(0, verifyFrom - draftMs), draftMs));
  const ticks = round.sources.map((source) =>
    element(`i.tick.${isOwn(source) ? "own" : "accepted"}`, { "data-source": source }));
  const share = report.num_drafted ? `${report.num_accepted}/${report.num_drafted}` : "";
  const row = element("div.bar", {
    role: "option",
    "aria-label": roundLine(round),
    "data-round": round.number,
    "data-source": sourceOf(round),
  }, element("span.number", {}, `${round.number}`), track,
  element("span.ticks", {}, ...ticks), element("span.share", {}, share));
  return { row, number: round.number, words: roundWords(round), from: startMs, to: round.endMs };
}

function part(kind, startMs, lengthMs) {
  const made = element(`i.part.${kind}`);
  made.style.setProperty("--start", startMs);
  made.style.setProperty("--length", lengthMs);
  return made;
}
