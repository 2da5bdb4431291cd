"""Every instrument: name, unit, meaning, labels. docs/metrics.md is made from these lists.

Names of the GenAI server metrics follow semantic-conventions-genai v0.1.0. Knows no value.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """`unit` is a UCUM code: s, 1, or an annotation such as {token}."""

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """As Prometheus shows it; a histogram's series add _bucket, _sum and _count."""
        name = self.name.replace(".", "_")
        if self.unit == "s" and not name.endswith("_seconds"):
            name += "_seconds"
        if self.unit == "1" and self.kind is Kind.GAUGE:
            name += "_ratio"
        return f"{name}_total" if self.kind is Kind.COUNTER else name


@dataclass(frozen=True, slots=True)
class Alias:
    """The same numbers under a name that others' dashboards ask for.

    `labels` renames those that are kept; over all others the numbers are summed up. `only` keeps
    the points whose label has one of the values, "" standing for a point without that label.
    """

    name: str
    of: Instrument
    labels: tuple[tuple[str, str], ...] = ()
    only: tuple[str, tuple[str, ...]] | None = None


_GEN_AI = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
_ROUND = ("model", "workload", "source")
_REQUEST_BUCKETS = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
# The convention begins at 0.01; a fast target is below that, so three bounds stand before it.
_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5),
)
_STEP_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.5, 1.0, 2.5),
)
_WAIT_BUCKETS = (*(0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),)

# Gateway: what was delivered to clients. Every number comes from the verifier's round reports.
REQUEST_DURATION = Instrument(
    "gen_ai.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "Request received to the end of its answer",
    (*_GEN_AI, "error.type"),
    _REQUEST_BUCKETS,
)
TIME_TO_FIRST_TOKEN = Instrument(
    "gen_ai.server.time_to_first_token",
    Kind.HISTOGRAM,
    "s",
    "Request received to its first tokens: queue and prefill included",
    _GEN_AI,
    _FIRST_TOKEN_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = Instrument(
    "gen_ai.server.time_per_output_token",
    Kind.HISTOGRAM,
    "s",
    "Of a finished answer: (duration - time to first token) / (tokens - 1)",
    _GEN_AI,
    _TOKEN_BUCKETS,
)
INTER_TOKEN_LATENCY = Instrument(
    "paceline.inter_token.latency",
    Kind.HISTOGRAM,
    "s",
    "Gap between two deliveries of one answer; a delivery is a round and may be several tokens",
    ("model",),
    _TOKEN_BUCKETS,
)
REQUESTS = Instrument(
    "paceline.requests",
    Kind.COUNTER,
    "{request}",
    "Answers ended, by finish reason or error",
    ("model", "workload", "outcome"),
)
REQUESTS_ACTIVE = Instrument(
    "paceline.requests.active", Kind.GAUGE, "{request}", "Answers that run at the gateway now"
)
REQUESTS_QUEUED = Instrument(
    "paceline.requests.queued", Kind.GAUGE, "{request}", "Requests that wait for a place"
)
FAILOVERS = Instrument(
    "paceline.failovers",
    Kind.COUNTER,
    "{failover}",
    "Answers that went on at another verifier, by what became of the one before",
    ("model", "cause"),
)
VERIFIERS_READY = Instrument(
    "paceline.verifiers.ready", Kind.GAUGE, "{verifier}", "Verifiers that a request can go to"
)
PROMPT_TOKENS = Instrument(
    "paceline.prompt.tokens", Kind.COUNTER, "{token}", "Prompt tokens", ("model",)
)
CACHED_TOKENS = Instrument(
    "paceline.prompt.cached.tokens",
    Kind.COUNTER,
    "{token}",
    "Prompt tokens whose KV entries were reused",
    ("model",),
)
OUTPUT_TOKENS = Instrument(
    "paceline.output.tokens", Kind.COUNTER, "{token}", "Tokens delivered", _ROUND
)
ROUNDS = Instrument(
    "paceline.rounds",
    Kind.COUNTER,
    "{round}",
    "Rounds: forwards of the target model for one sequence; source none is a plain round",
    _ROUND,
)
DRAFT_TOKENS = Instrument(
    "paceline.draft.tokens", Kind.COUNTER, "{token}", "Draft tokens in verified blocks", _ROUND
)
TESTED_TOKENS = Instrument(
    "paceline.tested.tokens",
    Kind.COUNTER,
    "{token}",
    "Draft tokens compared with the target: accepted, plus one per rejection",
    _ROUND,
)
ACCEPTED_TOKENS = Instrument(
    "paceline.accepted.tokens", Kind.COUNTER, "{token}", "Draft tokens accepted", _ROUND
)
ACCEPTED_BY_POSITION = Instrument(
    "paceline.accepted.tokens_per_position",
    Kind.COUNTER,
    "{token}",
    "Rounds in which the draft token at this position of the block was accepted",
    ("model", "workload", "position"),
)
ROUND_ACCEPTED = Instrument(
    "paceline.round.accepted",
    Kind.HISTOGRAM,
    "{token}",
    "Accepted tokens of one round with a draft block",
    ("workload",),
    (*(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0, 32.0),),
)
ROUND_DURATION = Instrument(
    "paceline.round.duration",
    Kind.HISTOGRAM,
    "s",
    "Time of one round by phase: the drafter's work (it overlaps the other two), the wait for a "
    "draft, and the step that verifies",
    ("phase",),
    _STEP_BUCKETS,
)
DECODE_TIME = Instrument(
    "paceline.decode.time",
    Kind.COUNTER,
    "s",
    "Time of all rounds after an answer's first",
    _ROUND,
)
PLAIN_TIME = Instrument(
    "paceline.plain.time",
    Kind.COUNTER,
    "s",
    "What the same tokens would have taken without speculation, by the ledger",
    _ROUND,
)
SPEEDUP = Instrument(
    "paceline.speedup.estimate",
    Kind.GAUGE,
    "{factor}",
    "Time of plain decoding / time spent, over the answers that ended last; 1 is no gain",
    ("model",),
)
ANSWER_LOSS = Instrument(
    "paceline.answer.loss",
    Kind.HISTOGRAM,
    "s",
    "The ledger at an answer's end: what speculation cost it; 0 when it gained",
    ("workload",),
    (*(0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),),
)
FALLBACK_ROUNDS = Instrument(
    "paceline.fallbacks",
    Kind.COUNTER,
    "{round}",
    "Plain rounds although speculation was on, by reason",
    ("model", "reason"),
)

# Verifier: what was computed, whoever it was for.
RUNNING = Instrument(
    "paceline.sequences.running", Kind.GAUGE, "{sequence}", "Sequences that have a place"
)
WAITING = Instrument(
    "paceline.sequences.waiting", Kind.GAUGE, "{sequence}", "Sequences in the queue"
)
KV_USAGE = Instrument("paceline.kv.usage", Kind.GAUGE, "1", "Used share of the KV cache")
QUEUE_DURATION = Instrument(
    "paceline.queue.duration", Kind.HISTOGRAM, "s", "Wait for a place", (), _WAIT_BUCKETS
)
PREFILL_DURATION = Instrument(
    "paceline.prefill.duration",
    Kind.HISTOGRAM,
    "s",
    "From a place to the first tokens",
    (),
    _WAIT_BUCKETS,
)
STEPS = Instrument("paceline.steps", Kind.COUNTER, "{step}", "Forwards of the target model")
STEP_DURATION = Instrument(
    "paceline.step.duration",
    Kind.HISTOGRAM,
    "s",
    "One forward and its verification",
    (),
    _STEP_BUCKETS,
)
STEP_SEQUENCES = Instrument(
    "paceline.step.sequences",
    Kind.HISTOGRAM,
    "{sequence}",
    "Sequences that shared a forward",
    (),
    (*(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),),
)
STEP_ROWS = Instrument(
    "paceline.step.rows",
    Kind.HISTOGRAM,
    "{row}",
    "Rows of a forward: prompt, decoded and draft tokens",
    (),
    (*(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0),),
)
VERIFIED_ROUNDS = Instrument(
    "paceline.verified.rounds", Kind.COUNTER, "{round}", "Rounds, those nobody received included"
)
VERIFIED_DRAFT_TOKENS = Instrument(
    "paceline.verified.draft.tokens", Kind.COUNTER, "{token}", "Draft tokens of those rounds"
)
VERIFIED_ACCEPTED_TOKENS = Instrument(
    "paceline.verified.accepted.tokens",
    Kind.COUNTER,
    "{token}",
    "Accepted draft tokens of those rounds",
)
PREFIX_QUERIES = Instrument(
    "paceline.prefix.queries", Kind.COUNTER, "{token}", "Prompt tokens looked up in the KV cache"
)
PREFIX_HITS = Instrument(
    "paceline.prefix.hits", Kind.COUNTER, "{token}", "Prompt tokens found in the KV cache"
)
LINK_READY = Instrument(
    "paceline.drafter.ready",
    Kind.GAUGE,
    "{drafter}",
    "1 while the drafter is connected",
    ("drafter",),
)
LINK_SEQUENCES = Instrument(
    "paceline.drafter.attached", Kind.GAUGE, "{sequence}", "Sequences it drafts for", ("drafter",)
)
LINK_BLOCKS = Instrument(
    "paceline.drafter.blocks", Kind.COUNTER, "{block}", "Draft blocks received", ("drafter",)
)
LINK_STALE = Instrument(
    "paceline.drafter.blocks.stale",
    Kind.COUNTER,
    "{block}",
    "Blocks that came too late",
    ("drafter",),
)
LINK_MALFORMED = Instrument(
    "paceline.drafter.blocks.malformed",
    Kind.COUNTER,
    "{block}",
    "Blocks that made no sense",
    ("drafter",),
)
LINK_CONNECTS = Instrument(
    "paceline.drafter.connects", Kind.COUNTER, "{connection}", "Connections made", ("drafter",)
)

# Drafter: what was drafted, and what of it was for nothing.
DRAFTER_SEQUENCES = Instrument(
    "paceline.drafter.sequences", Kind.GAUGE, "{sequence}", "Sequences of all verifiers"
)
DRAFTER_CAPACITY = Instrument(
    "paceline.drafter.capacity", Kind.GAUGE, "{sequence}", "Sequences there is room for"
)
DRAFTER_STEPS = Instrument("paceline.drafter.steps", Kind.COUNTER, "{step}", "Drafting steps")
DRAFTER_STEP_DURATION = Instrument(
    "paceline.drafter.step.duration",
    Kind.HISTOGRAM,
    "s",
    "One drafting step",
    (),
    (*(0.00001, 0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.2, 1.0),),
)
DRAFTER_BUSY = Instrument(
    "paceline.drafter.busy",
    Kind.COUNTER,
    "s",
    "Time spent drafting; its rate is the drafter's utilisation",
)
DRAFTER_TOKENS = Instrument("paceline.drafter.tokens", Kind.COUNTER, "{token}", "Tokens drafted")
DRAFTER_WASTED_TOKENS = Instrument(
    "paceline.drafter.wasted.tokens",
    Kind.COUNTER,
    "{token}",
    "Tokens drafted and thrown away: the target went another way, or the answer ended",
)
DRAFTER_WASTED = Instrument(
    "paceline.drafter.wasted",
    Kind.COUNTER,
    "s",
    "Drafting time of the wasted tokens, at the mean time of a token",
)

GATEWAY = (
    *(REQUEST_DURATION, TIME_TO_FIRST_TOKEN, TIME_PER_OUTPUT_TOKEN, INTER_TOKEN_LATENCY),
    *(REQUESTS, REQUESTS_ACTIVE, VERIFIERS_READY, PROMPT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS),
    *(ROUNDS, DRAFT_TOKENS, TESTED_TOKENS, ACCEPTED_TOKENS, ACCEPTED_BY_POSITION),
    *(ROUND_ACCEPTED, ROUND_DURATION, DECODE_TIME, PLAIN_TIME, SPEEDUP, ANSWER_LOSS),
    *(FALLBACK_ROUNDS, REQUESTS_QUEUED, FAILOVERS),
)
VERIFIER = (
    *(RUNNING, WAITING, KV_USAGE, QUEUE_DURATION, PREFILL_DURATION, STEPS, STEP_DURATION),
    *(STEP_SEQUENCES, STEP_ROWS, VERIFIED_ROUNDS, VERIFIED_DRAFT_TOKENS),
    *(VERIFIED_ACCEPTED_TOKENS, PREFIX_QUERIES, PREFIX_HITS),
    *(LINK_READY, LINK_SEQUENCES, LINK_BLOCKS, LINK_STALE, LINK_MALFORMED, LINK_CONNECTS),
)
DRAFTER = (
    *(DRAFTER_SEQUENCES, DRAFTER_CAPACITY, DRAFTER_STEPS, DRAFTER_STEP_DURATION, DRAFTER_BUSY),
    *(DRAFTER_TOKENS, DRAFTER_WASTED_TOKENS, DRAFTER_WASTED),
)
