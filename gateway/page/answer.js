// One answer as it comes in: its text by round and source, its rounds, its figures. Knows no page.

import { isOwn } from "./sources.js";

export class Answer {
  constructor() {
    this.text = "";
    this.tokenIds = [];
    this.sources = [];
    // Each {report, runs: [{source, text}], sources}; times in ms from `startUs`.
    this.rounds = [];
    this.prefill = null;
    this.startUs = null;
    this.seed = null;
    this.totals = null;
    this.finishReason = null;
    this.durationMs = null;
  }

  // Takes the choice of one chunk. Returns the round that came with it or grew, if one did.
  take(choice) {
    const report = choice.paceline;
    if (report.seed !== undefined) this.seed = report.seed;
    if (choice.finish_reason) {
      this.finishReason = choice.finish_reason;
      this.totals = report.totals;
      this.durationMs = report.duration_us / 1000;
    }
    const text = choice.delta.content ?? "";
    this.text += text;
    if (report.prefill) this.#takePrefill(report.prefill);
    if (report.round) return this.#takeRound(report, text);
    const last = this.rounds.at(-1);
    if (!text || !last) return null;
    last.runs.push({ source: last.runs.at(-1)?.source ?? "plain", text });
    return last;
  }

  #takePrefill(prefill) {
    // After a failover there is a second one; the answer began with the first.
    if (this.prefill) return;
    this.prefill = {
      ...prefill,
      queueMs: prefill.queue_us / 1000,
      prefillMs: prefill.prefill_us / 1000,
    };
    this.startUs = prefill.start_unix_us;
  }

  #takeRound(report, text) {
    this.tokenIds.push(...report.token_ids);
    this.sources.push(...report.sources);
    const said = report.round;
    this.startUs ??= said.start_unix_us;
    const startMs = (said.start_unix_us - this.startUs) / 1000;
    const [draftMs, waitMs, verifyMs] = [said.draft_us, said.wait_us, said.verify_us].map(ms);
    const round = {
      report: said,
      number: said.round,
      sources: report.sources,
      runs: runsOf(text, report.sources, report.lengths),
      startMs,
      draftMs,
      waitMs,
      verifyMs,
      endMs: startMs + waitMs + verifyMs,
    };
    this.rounds.push(round);
    return round;
  }

  // Figures over the rounds so far; null where there is nothing to divide by.
  figures() {
    const sum = (name) => this.rounds.reduce((total, { report }) => total + report[name], 0);
    const [first, last] = [this.rounds[0], this.rounds.at(-1)];
    const [drafted, tested, accepted] = ["num_drafted", "num_tested", "num_accepted"].map(sum);
    const spanMs = last ? last.endMs - first.endMs : 0;
    const stepsMs = this.rounds.reduce((total, round) => total + round.waitMs + round.verifyMs, 0);
    const ledgerMs = last ? last.report.ledger_us / 1000 : 0;
    return {
      numTokens: this.tokenIds.length,
      numRounds: this.rounds.length,
      drafted,
      tested,
      accepted,
      tokensPerRound: ratio(sum("num_output"), this.rounds.length),
      acceptanceRate: ratio(accepted, tested),
      draftEfficiency: ratio(accepted, drafted),
      // After the first round, so that the prompt's work counts for nothing.
      tokensPerS: first && ratio((this.tokenIds.length - first.sources.length) * 1000, spanMs),
      // What plain decoding would have taken, by the verifier's ledger, over what it took.
      estimatedGain: drafted ? ratio(stepsMs - ledgerMs, stepsMs) : null,
    };
  }

  // How many tokens each source gave: Map of key -> count.
  countsBySource() {
    const counts = new Map();
    for (const source of this.sources) counts.set(source, (counts.get(source) ?? 0) + 1);
    return counts;
  }
}

// Where two lists of token ids first differ; -1 when they are the same.
export function firstDifference(ours, theirs) {
  const size = Math.max(ours.length, theirs.length);
  for (let index = 0; index < size; index += 1) {
    if (ours[index] !== theirs[index]) return index;
  }
  return -1;
}

// The colour a round goes by: the source of its first accepted token, else the target's.
export function sourceOf(round) {
  return round.sources.find((source) => !isOwn(source)) ?? round.sources[0] ?? "plain";
}

const ms = (us) => us / 1000;

const ratio = (over, under) => (under > 0 ? over / under : null);

// Text cut into runs of one source, by how many characters each token gave.
function runsOf(text, sources, lengths) {
  const characters = Array.from(text);
  const runs = [];
  let at = 0;
  sources.forEach((source, index) => {
    const part = characters.slice(at, at + lengths[index]).join("");
    at += lengths[index];
    if (runs.at(-1)?.source === source) runs.at(-1).text += part;
    else runs.push({ source, text: part });
  });
  return runs.filter((run) => run.text);
}
