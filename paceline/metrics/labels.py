"""The values that a label may take: closed sets, so that no client can make up a time series.

A label whose values are not listed takes them from the configuration (a model, an address).
Knows no instrument.
"""

from collections.abc import Collection, Mapping

from paceline.rounds import FinishReason, PlainReason, TokenSource

OTHER = "other"
# A request without a workload label.
NO_WORKLOAD = "default"
# The categories of benchmarks/prompts.jsonl and what chatbots are built for.
WORKLOADS = (
    "chat",
    "coding",
    "creative",
    "extraction",
    "maths",
    "multilingual",
    "qa",
    "summarisation",
    "support",
    "translation",
)
# Of a round without a draft block.
NO_SOURCE = "none"
SOURCES = tuple(
    source.name.lower()
    for source in TokenSource
    if source
    not in (
        TokenSource.UNSPECIFIED,
        TokenSource.PLAIN,
        TokenSource.RECOVERED,
        TokenSource.BONUS,
    )
)
# Why a round was plain although speculation was on.
FALLBACKS = tuple(
    reason.name.lower()
    for reason in PlainReason
    if reason not in (PlainReason.UNSPECIFIED, PlainReason.SPECULATION_OFF)
)
FINISHED = tuple(reason.label for reason in FinishReason if reason is not FinishReason.UNSPECIFIED)
# Of an answer that did not finish: the names of gRPC's status codes.
ERRORS = (
    "ABORTED",
    "CANCELLED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
)
# What became of a verifier that an answer was at.
CAUSES = ("died", "froze", "drained")
PHASES = ("draft", "wait", "verify")
LONGEST_BLOCK = 64

CLOSED: Mapping[str, Collection[str]] = {
    # A gateway may list its own instead.
    "workload": (NO_WORKLOAD, *WORKLOADS, OTHER),
    "source": (NO_SOURCE, *SOURCES, OTHER),
    "reason": FALLBACKS,
    "outcome": (*FINISHED, *(error.lower() for error in ERRORS), OTHER),
    "error.type": (*ERRORS, OTHER),
    "phase": PHASES,
    "cause": CAUSES,
    "position": tuple(map(str, range(LONGEST_BLOCK))),
    "gen_ai.operation.name": ("chat",),
    "gen_ai.provider.name": ("paceline",),
}
FROM_CONFIGURATION = ("model", "gen_ai.request.model", "drafter")


def bounded(value: str, allowed: Collection[str]) -> str:
    """The value itself if it is allowed, else `other`."""
    return value if value in allowed else OTHER
