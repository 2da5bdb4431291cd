// Where tokens come from: names and order. Knows no page and no answer.

export const SOURCES = [
  { key: "draft_model", name: "draft model", says: "guessed by the draft model" },
  { key: "prompt_lookup", name: "prompt lookup", says: "copied from the prompt or this answer" },
  { key: "past_answers", name: "past answers", says: "copied from earlier answers" },
  { key: "recycled", name: "recycled", says: "from the target's own earlier candidates" },
  { key: "lookahead", name: "lookahead", says: "from the target's n-grams" },
  { key: "random", name: "random", says: "guessed at random, for load tests" },
  { key: "plain", name: "target", says: "chosen by the target in a plain round" },
  { key: "recovered", name: "recovered", says: "chosen by the target after a rejection" },
  { key: "bonus", name: "bonus", says: "chosen by the target after a whole block was accepted" },
];

const OWN = new Set(["plain", "recovered", "bonus"]);
const BY_KEY = new Map(SOURCES.map((source) => [source.key, source]));

// True for tokens that the target model chose itself.
export const isOwn = (key) => OWN.has(key);

export const nameOf = (key) => BY_KEY.get(key)?.name ?? key;

// Why a round had no draft block, in words.
export const PLAIN_REASONS = {
  speculation_off: "speculation off",
  no_drafter: "no drafter",
  no_draft: "no draft in time",
  not_worth: "a draft would not pay",
  budget: "time budget spent",
  no_room: "no room for a draft",
  probe: "probe of plain speed",
};
