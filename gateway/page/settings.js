// The form's settings, and the request that they make. Knows the fields of the page and of the API.

import { byId } from "./dom.js";

export class Settings {
  get key() {
    return byId("key").value.trim();
  }

  get replays() {
    return byId("replay").checked;
  }

  set system(text) {
    byId("system").value = text;
  }

  // The body of a chat completion. `history` is a list of {question, answer}.
  body(history, question) {
    const system = byId("system").value.trim();
    const messages = history.flatMap((turn) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.answer },
    ]);
    if (system) messages.unshift({ role: "system", content: system });
    messages.push({ role: "user", content: question });
    return {
      messages,
      temperature: byId("temperature").valueAsNumber,
      max_tokens: byId("max-tokens").valueAsNumber,
      // The page draws it: a seed of 64 bits would not survive JavaScript's numbers.
      seed: byId("seed").value === "" ? drawnSeed() : byId("seed").valueAsNumber,
      paceline: { speculation: byId("speculation").value },
    };
  }

  // Shows which seed was drawn, for whoever wants it again.
  noteSeed(seed) {
    byId("seed").placeholder = `drawn: ${seed}`;
  }
}

const drawnSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];
