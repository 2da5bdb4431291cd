"""What the dashboard shows: rows of panels, each a title and its PromQL.

generate.py turns them into Grafana's JSON; the tests run every expression.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""
    exemplar: bool = False
    heatmap: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    # A line to compare with.
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...] = field(default=())


R = "[$__rate_interval]"
MODEL = 'model=~"$model"'
GEN_AI = 'gen_ai_request_model=~"$model"'
ROUND = f'{MODEL}, workload=~"$workload"'


def quantiles(metric: str, labels: str, *, exemplar: bool = True) -> tuple[Query, ...]:
    buckets = f"sum by (le) (rate({metric}_bucket{{{labels}}}{R}))"
    return tuple(
        Query(f"histogram_quantile({q}, {buckets})", f"p{round(100 * q)}", exemplar=exemplar)
        for q in (0.5, 0.95, 0.99)
    )


def ratio(over: str, under: str, labels: str, by: str = "") -> str:
    group = f"by ({by}) " if by else ""
    return f"sum {group}(rate({over}{{{labels}}}{R})) / sum {group}(rate({under}{{{labels}}}{R}))"


def glance(title: str, description: str, expr: str, unit: str = "short", **more: Any) -> Panel:
    """The last value, in large."""
    return Panel(title, description, (Query(expr),), unit, kind="stat", width=4, height=4, **more)


ROWS = (
    Row(
        "At a glance",
        (
            glance(
                "Gain against plain",
                "Of the time of decoding, all answers; below 1 speculation loses.",
                ratio(
                    "paceline_plain_time_seconds_total",
                    "paceline_decode_time_seconds_total",
                    ROUND,
                ),
                "factor",
                threshold=1.0,
            ),
            glance(
                "Acceptance rate",
                "accepted / tested, all answers.",
                ratio("paceline_accepted_tokens_total", "paceline_tested_tokens_total", ROUND),
                "percentunit",
            ),
            glance(
                "Tokens per second",
                "Delivered, all answers together.",
                f"sum(rate(paceline_output_tokens_total{{{ROUND}}}{R}))",
            ),
            glance(
                "Time to first token, p95",
                "Request received to its first tokens.",
                quantiles("gen_ai_server_time_to_first_token_seconds", GEN_AI)[1].expr,
                "s",
            ),
            glance(
                "Time per token, p95",
                "Of finished answers, after the first token.",
                quantiles("gen_ai_server_time_per_output_token_seconds", GEN_AI)[1].expr,
                "s",
            ),
            glance(
                "Answers running",
                "At the gateways.",
                "sum(paceline_requests_active)",
            ),
        ),
    ),
    Row(
        "Service levels",
        (
            Panel(
                "Time to first token",
                "Request received to its first tokens, queue and prefill included.",
                quantiles("gen_ai_server_time_to_first_token_seconds", GEN_AI),
                "s",
            ),
            Panel(
                "Time per output token",
                "(duration - time to first token) / (tokens - 1), per finished answer.",
                quantiles("gen_ai_server_time_per_output_token_seconds", GEN_AI),
                "s",
            ),
            Panel(
                "Time between deliveries",
                "A delivery is a round and may be several tokens: this is larger than the time per "
                "token by the acceptance length.",
                quantiles("paceline_inter_token_latency_seconds", MODEL),
                "s",
            ),
            Panel(
                "Request duration",
                "Request received to the end of its answer.",
                quantiles("gen_ai_server_request_duration_seconds", GEN_AI),
                "s",
            ),
            Panel(
                "Answers per second",
                "By finish reason, or by error.",
                (
                    Query(
                        f"sum by (outcome) (rate(paceline_requests_total{{{ROUND}}}{R}))",
                        "{{outcome}}",
                    ),
                ),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Share of answers that failed",
                "A client that left counts as cancelled, not as failed.",
                (
                    Query(
                        "(sum(rate(paceline_requests_total"
                        f'{{{ROUND}, outcome!~"stop|length|cancelled"}}{R})) or vector(0))'
                        f" / sum(rate(paceline_requests_total{{{ROUND}}}{R}))",
                        "failed",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Tokens per second",
                "Prompt tokens read and tokens delivered, all answers together.",
                (
                    Query(f"sum(rate(paceline_prompt_tokens_total{{{MODEL}}}{R}))", "prompt"),
                    Query(f"sum(rate(paceline_output_tokens_total{{{ROUND}}}{R}))", "delivered"),
                ),
                width=16,
            ),
            Panel(
                "Failovers",
                "Answers that went on at another verifier, by what became of the one before.",
                (
                    Query(
                        f"sum by (cause) (rate(paceline_failovers_total{{{MODEL}}}{R}))",
                        "{{cause}}",
                    ),
                ),
                "cps",
            ),
        ),
    ),
    Row(
        "Speculation",
        (
            Panel(
                "Gain against plain decoding",
                "Time that plain decoding would have taken / time spent, by the verifiers' ledger. "
                "Below 1 speculation loses.",
                (
                    Query(
                        ratio(
                            "paceline_plain_time_seconds_total",
                            "paceline_decode_time_seconds_total",
                            ROUND,
                            "workload",
                        ),
                        "{{workload}}",
                    ),
                    Query(
                        ratio(
                            "paceline_plain_time_seconds_total",
                            "paceline_decode_time_seconds_total",
                            ROUND,
                        ),
                        "all",
                    ),
                ),
                threshold=1.0,
            ),
            Panel(
                "Acceptance rate",
                "accepted / tested: how often draft and target model agree.",
                (
                    Query(
                        ratio(
                            "paceline_accepted_tokens_total",
                            "paceline_tested_tokens_total",
                            ROUND,
                            "workload",
                        ),
                        "{{workload}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Mean acceptance length",
                "Tokens per round with a draft block: 1 + accepted / rounds.",
                (
                    Query(
                        "1 + sum by (workload) "
                        f"(rate(paceline_accepted_tokens_total{{{ROUND}}}{R}))"
                        " / sum by (workload) "
                        f'(rate(paceline_rounds_total{{{ROUND}, source!="none"}}{R}))',
                        "{{workload}}",
                    ),
                ),
                threshold=1.0,
            ),
            Panel(
                "Acceptance by position",
                "Share of the rounds with a block that accepted the draft token at this position; "
                "the first eight.",
                (
                    Query(
                        "sum by (position) (rate(paceline_accepted_tokens_per_position_total"
                        f'{{{ROUND}, position=~"[0-7]"}}{R}))'
                        " / on () group_left () "
                        f'sum(rate(paceline_rounds_total{{{ROUND}, source!="none"}}{R}))',
                        "{{position}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Accepted tokens per round",
                "Rounds by how many draft tokens they accepted.",
                (
                    Query(
                        "sum by (le) (increase(paceline_round_accepted_bucket"
                        f'{{workload=~"$workload"}}{R}))',
                        "{{le}}",
                        heatmap=True,
                    ),
                ),
                kind="heatmap",
            ),
            Panel(
                "Draft efficiency",
                "accepted / drafted, vLLM's draft acceptance rate: low with high acceptance means "
                "blocks that are too long.",
                (
                    Query(
                        ratio(
                            "paceline_accepted_tokens_total",
                            "paceline_draft_tokens_total",
                            ROUND,
                            "source",
                        ),
                        "{{source}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Rounds by source of their draft",
                "none is a plain round.",
                (
                    Query(
                        f"sum by (source) (rate(paceline_rounds_total{{{ROUND}}}{R}))",
                        "{{source}}",
                    ),
                ),
                "ops",
                stacked=True,
            ),
            Panel(
                "Fallbacks",
                "Plain rounds although speculation was on, by reason.",
                (
                    Query(
                        f"sum by (reason) (rate(paceline_fallbacks_total{{{MODEL}}}{R}))",
                        "{{reason}}",
                    ),
                ),
                "ops",
                stacked=True,
            ),
            Panel(
                "What speculation cost an answer",
                "The ledger at an answer's end; 0 for those that gained.",
                quantiles("paceline_answer_loss_seconds", 'workload=~"$workload"'),
                "s",
            ),
        ),
    ),
    Row(
        "Round anatomy",
        (
            Panel(
                "Mean time of a round",
                "Wait and verify follow each other; the drafter's work overlaps them.",
                (
                    Query(
                        f"sum by (phase) (rate(paceline_round_duration_seconds_sum{R})) / "
                        f"sum by (phase) (rate(paceline_round_duration_seconds_count{R}))",
                        "{{phase}}",
                        exemplar=True,
                    ),
                ),
                "s",
            ),
            Panel(
                "p95 of a round",
                "By phase.",
                (
                    Query(
                        "histogram_quantile(0.95, sum by (le, phase) "
                        f"(rate(paceline_round_duration_seconds_bucket{R})))",
                        "{{phase}}",
                        exemplar=True,
                    ),
                ),
                "s",
            ),
            Panel(
                "Forward of the target model",
                "Verification included.",
                quantiles("paceline_step_duration_seconds", "", exemplar=False),
                "s",
            ),
            Panel(
                "Drafter utilisation",
                "Share of its time that a drafter drafts, and that it drafts for nothing.",
                (
                    Query(f"rate(paceline_drafter_busy_seconds_total{R})", "busy {{instance}}"),
                    Query(f"rate(paceline_drafter_wasted_seconds_total{R})", "wasted {{instance}}"),
                ),
                "percentunit",
                width=12,
            ),
            Panel(
                "Drafted tokens thrown away",
                "The target went another way, or the answer ended.",
                (
                    Query(
                        f"sum by (instance) (rate(paceline_drafter_wasted_tokens_total{R}))"
                        f" / sum by (instance) (rate(paceline_drafter_tokens_total{R}))",
                        "{{instance}}",
                    ),
                ),
                "percentunit",
                width=12,
            ),
        ),
    ),
    Row(
        "Capacity",
        (
            Panel(
                "Sequences",
                "With a place, and in the queue.",
                (
                    Query("sum(paceline_sequences_running)", "running"),
                    Query("sum(paceline_sequences_waiting)", "waiting"),
                    Query("sum(paceline_requests_active)", "at the gateways"),
                    Query("sum(paceline_requests_queued)", "in the gateways' queue"),
                ),
            ),
            Panel(
                "Queue and prefill",
                "p95 of the wait for a place, and of reading the prompt.",
                (
                    Query(
                        "histogram_quantile(0.95, "
                        f"sum by (le) (rate(paceline_queue_duration_seconds_bucket{R})))",
                        "queue",
                    ),
                    Query(
                        "histogram_quantile(0.95, "
                        f"sum by (le) (rate(paceline_prefill_duration_seconds_bucket{R})))",
                        "prefill",
                    ),
                ),
                "s",
            ),
            Panel(
                "KV cache",
                "Used share.",
                (Query("paceline_kv_usage_ratio", "{{instance}}"),),
                "percentunit",
            ),
            Panel(
                "Batch",
                "Mean sequences and rows of a forward.",
                (
                    Query(
                        f"sum(rate(paceline_step_sequences_sum{R}))"
                        f" / sum(rate(paceline_step_sequences_count{R}))",
                        "sequences",
                    ),
                    Query(
                        f"sum(rate(paceline_step_rows_sum{R}))"
                        f" / sum(rate(paceline_step_rows_count{R}))",
                        "rows",
                    ),
                ),
            ),
            Panel(
                "Prompt tokens found in the KV cache",
                "Share of all prompt tokens.",
                (
                    Query(
                        f"sum(rate(paceline_prefix_hits_total{R}))"
                        f" / sum(rate(paceline_prefix_queries_total{R}))",
                        "hits",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Ready",
                "Verifiers that a request can go to, drafters that are connected.",
                (
                    Query("sum(paceline_verifiers_ready)", "verifiers"),
                    Query("sum(paceline_drafter_ready)", "drafters"),
                ),
            ),
        ),
    ),
    Row(
        "Streams",
        (
            Panel(
                "Draft blocks",
                "Received, and of those too late or malformed.",
                (
                    Query(f"sum(rate(paceline_drafter_blocks_total{R}))", "received"),
                    Query(f"sum(rate(paceline_drafter_blocks_stale_total{R}))", "stale"),
                    Query(f"sum(rate(paceline_drafter_blocks_malformed_total{R}))", "malformed"),
                ),
                "ops",
            ),
            Panel(
                "Connections to drafters",
                "Each after the first is a reconnect.",
                (
                    Query(
                        "sum by (drafter) (increase(paceline_drafter_connects_total[$__range]))",
                        "{{drafter}}",
                    ),
                ),
            ),
            Panel(
                "Answers cut short",
                "Cancelled by the client, out of time, refused.",
                (
                    Query(
                        "sum by (outcome) (rate(paceline_requests_total"
                        f'{{{ROUND}, outcome!~"stop|length"}}{R}))',
                        "{{outcome}}",
                    ),
                ),
                "reqps",
            ),
        ),
    ),
)
