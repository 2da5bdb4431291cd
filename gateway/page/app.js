// The live page: puts the conversation, the rounds and the gateway together.

import { Answer } from "./answer.js";
import { AnswerView } from "./answer-view.js";
import { Problem, chat, models } from "./api.js";
import { byId, element } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { Figures } from "./figures.js";
import { Legend } from "./legend.js";
import { Settings } from "./settings.js";
import { Tip } from "./tip.js";
import { Waterfall } from "./waterfall.js";
import { compared, verdictView } from "./verdict.js";
import { duration, fixed, plural } from "./words.js";

const MODEL_AGAIN_MS = 2000;

const tip = new Tip();
const legend = new Legend();
const figures = new Figures();
const settings = new Settings();
const waterfall = new Waterfall((number, row, words) => {
  current?.mark(number);
  if (number === null) tip.hide();
  else tip.show(words, row);
});

// Turns that the model is told of: {question, answer}.
let history = [];
// The answer whose rounds are shown, and gains measured by replays: Map of Answer -> ratio.
let current = null;
const gains = new Map();
// The request in flight.
let work = null;

const say = (text) => { byId("status").textContent = text; };

function complain(problem) {
  const place = byId("problem");
  place.textContent = problem?.message ?? "";
  place.hidden = !problem;
  if (!problem?.needsKey) return;
  byId("key-row").hidden = false;
  byId("key").focus();
}

function show(view) {
  if (current !== view) current?.mark(null);
  const isOther = current !== view;
  current = view;
  if (isOther) waterfall.show(view?.answer);
  refresh();
}

function refresh() {
  const answer = current?.answer;
  legend.show(answer);
  figures.show(answer?.figures(), gains.get(answer));
  byId("rounds-of").textContent = current ? `of ${current.root.getAttribute("aria-label").toLowerCase()}` : "";
}

function pointed(view, number, span, words, at) {
  view.mark(number);
  if (number === null) {
    waterfall.mark(null);
    tip.hide();
    return;
  }
  show(view);
  waterfall.mark(number);
  // Scrolling hides the tooltip, so it waits for what `mark` scrolls.
  requestAnimationFrame(() => requestAnimationFrame(() => {
    if (view.marked === number) tip.show(words, span, at);
  }));
}

// Streams an answer to `body` into a new view in `place`. Returns the view.
async function stream(body, title, place, signal) {
  const view = new AnswerView(new Answer(), title, pointed);
  place.append(view.root);
  show(view);
  try {
    for await (const choice of chat(body, settings.key, signal)) {
      const round = view.answer.take(choice);
      if (!round) continue;
      view.write(round);
      if (current === view) {
        waterfall.add(view.answer, round);
        refresh();
      }
      keepInView(view.root);
    }
  } finally {
    view.finish();
    if (!view.spans.size) view.root.remove();
    refresh();
  }
  return view;
}

// Follows the end of the text, unless the reader has gone elsewhere.
function keepInView(root) {
  const pane = byId("turns");
  const isNearEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 160;
  if (isNearEnd) pane.scrollTop = pane.scrollHeight;
}

async function replay(turn, speculative, signal) {
  turn.replayButton.hidden = true;
  say("Asking again without speculation.");
  const body = { ...turn.body, paceline: { speculation: "off" } };
  const plain = await stream(body, "Plain replay", turn.answers, signal);
  turn.answers.classList.add("pair");
  const { isIdentical, gain } = compared(speculative.answer, plain.answer);
  if (gain != null) gains.set(speculative.answer, gain);
  turn.root.append(verdictView(speculative.answer, plain.answer));
  show(speculative);
  byId("turns").scrollTop = byId("turns").scrollHeight;
  const pace = gain == null ? "" : ` ${fixed(gain)} times the speed of plain.`;
  say((isIdentical ? "The plain replay is identical." : "The plain replay is different.") + pace);
}

function newTurn(question, body) {
  const answers = element("div.answers");
  const replayButton = element("button.quiet", { type: "button", hidden: true }, "Replay plain");
  const root = element("article.turn", {},
    element("p.question", {}, element("span.unseen", {}, "You: "), question), answers,
    element("p.actions", {}, replayButton));
  byId("turns").append(root);
  byId("turns").scrollTop = byId("turns").scrollHeight;
  return { root, answers, replayButton, body };
}

async function ask(question) {
  const body = settings.body(history, question);
  const turn = newTurn(question, body);
  byId("welcome").hidden = true;
  await busy(async (signal) => {
    say("Answering.");
    const isPlain = body.paceline.speculation === "off";
    let view = null;
    try {
      view = await stream(body, isPlain ? "Plain answer" : "Speculative answer", turn.answers, signal);
    } catch (error) {
      if (!turn.answers.childElementCount) {
        turn.root.remove();
        byId("question").value ||= question;
        byId("welcome").hidden = history.length > 0 || byId("turns").querySelector(".turn") !== null;
      }
      throw error;
    }
    history.push({ question, answer: view.answer.text });
    settings.noteSeed(view.answer.seed);
    const { numTokens, tokensPerRound } = view.answer.figures();
    say(`Answer finished: ${plural(numTokens, "token")} in ${duration(view.answer.durationMs)}, `
      + `${fixed(tokensPerRound)} tokens per round.`);
    if (isPlain) return;
    turn.replayButton.addEventListener("click", () =>
      busy((replaySignal) => replay(turn, view, replaySignal)).catch(complain));
    turn.replayButton.hidden = false;
    if (settings.replays) await replay(turn, view, signal);
  });
}

// One thing at a time; the send button stops it.
async function busy(start) {
  if (work) return;
  work = new AbortController();
  complain(null);
  byId("send").textContent = "Stop";
  document.body.classList.add("busy");
  try {
    await start(work.signal);
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else if (error instanceof Problem) complain(error);
    else throw error;
  } finally {
    work = null;
    byId("send").textContent = "Send";
    document.body.classList.remove("busy");
  }
}

function startAgain() {
  work?.abort();
  history = [];
  gains.clear();
  for (const turn of byId("turns").querySelectorAll(".turn")) turn.remove();
  byId("welcome").hidden = false;
  complain(null);
  show(null);
  byId("question").focus();
}

async function findModel() {
  try {
    const [model] = await models(settings.key);
    byId("model").textContent = model
      ? `${model.id}, ${model.paceline.numerics} numerics`
      : "No verifier is ready yet\u2026";
    if (!model) setTimeout(findModel, MODEL_AGAIN_MS);
  } catch (problem) {
    byId("model").textContent = problem.needsKey ? "Needs an API key" : "Not reachable";
    complain(problem);
  }
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (work) {
    work.abort();
    return;
  }
  const question = byId("question").value.trim();
  if (!question) {
    byId("question").focus();
    return;
  }
  byId("question").value = "";
  ask(question);
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!work) byId("ask").requestSubmit();
});
byId("ask").addEventListener("invalid", () => {
  byId("settings").open = true;
}, { capture: true });
byId("key").addEventListener("change", () => {
  complain(null);
  findModel();
});
byId("fresh").addEventListener("click", startAgain);
for (const example of EXAMPLES) {
  const button = element("button", {
    type: "button",
    onclick: () => {
      settings.system = example.system ?? "";
      byId("question").focus();
      ask(example.question);
    },
  }, element("b", {}, example.name), element("small", {}, example.about));
  byId("examples").append(element("li", {}, button));
}
show(null);
findModel();
