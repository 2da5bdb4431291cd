"""Limits of sizes and counts of everything a caller sends, and the table of them in docs/limits.md.

`python -m paceline.limits` prints the table. Ranges of sampling parameters are in `params`.
"""

from dataclasses import dataclass

from paceline import params
from paceline.params import Violation

MAX_STOPS = 16
MAX_STOP_BYTES = 64
MAX_MESSAGES = 1024
MAX_CONTENT_BYTES = 2**20
MAX_PROMPT_TOKENS = 2**18
MAX_LABEL_BYTES = 256
MAX_ANSWERS = 8
MAX_TIMEOUT_MS = 24 * 3600 * 1000

GATEWAY, VERIFIER, BOTH = "gateway", "verifier", "gateway, verifier"


@dataclass(frozen=True, slots=True)
class Limit:
    """One row of the table. `field` is as it stands in a refusal."""

    field: str
    limit: str
    checked_by: str


def label_violations(field: str, label: str) -> list[Violation]:
    """A label is short and printable ASCII: it stands in traces and reports, and is never a key."""
    if len(label) <= MAX_LABEL_BYTES and label.isascii() and (label.isprintable() or not label):
        return []
    return [Violation(field, f"must be of at most {MAX_LABEL_BYTES} printable ASCII characters")]


def timeout_violations(field: str, timeout_ms: int) -> list[Violation]:
    if timeout_ms <= MAX_TIMEOUT_MS:
        return []
    return [Violation(field, f"at most {MAX_TIMEOUT_MS}, is {timeout_ms}")]


def prompt_violations(field: str, num_tokens: int) -> list[Violation]:
    """Before anything looks at the ids themselves."""
    if num_tokens <= MAX_PROMPT_TOKENS:
        return []
    return [Violation(field, f"at most {MAX_PROMPT_TOKENS} ids, has {num_tokens}")]


LIMITS = (
    Limit("chat.messages", f"1 to {MAX_MESSAGES} messages", GATEWAY),
    Limit("chat.messages[].role", "system, user or assistant", GATEWAY),
    Limit("chat.messages content", f"{MAX_CONTENT_BYTES} bytes in all", GATEWAY),
    Limit("text", f"{MAX_CONTENT_BYTES} bytes", GATEWAY),
    Limit("turn.content", f"1 to {MAX_CONTENT_BYTES} bytes", GATEWAY),
    Limit("open.system", f"{MAX_CONTENT_BYTES} bytes; new sessions only", GATEWAY),
    Limit("stop", f"{MAX_STOPS} strings", GATEWAY),
    Limit("stop[]", f"1 to {MAX_STOP_BYTES} bytes", GATEWAY),
    Limit("n", f"1 to {MAX_ANSWERS}", GATEWAY),
    Limit("model", f"{MAX_LABEL_BYTES} printable ASCII characters", GATEWAY),
    Limit("open.session_id", f"{MAX_LABEL_BYTES} printable ASCII characters", GATEWAY),
    Limit("request_id", f"{MAX_LABEL_BYTES} printable ASCII characters", BOTH),
    Limit("workload", f"{MAX_LABEL_BYTES} printable ASCII characters", BOTH),
    Limit("tenant", f"{MAX_LABEL_BYTES} printable ASCII characters", VERIFIER),
    Limit("timeout_ms", f"{MAX_TIMEOUT_MS}", BOTH),
    Limit("token_ids", f"1 to {MAX_PROMPT_TOKENS} ids of the vocabulary", BOTH),
    Limit("generated_token_ids", "max_tokens ids of the vocabulary", VERIFIER),
    Limit("params.max_tokens", "at least 1; with the prompt at most the context", VERIFIER),
    Limit("params.min_tokens", "0 to max_tokens", VERIFIER),
    Limit(
        "params.temperature",
        f"0, or {params.MIN_TEMPERATURE:g} to {params.MAX_TEMPERATURE:g}",
        VERIFIER,
    ),
    Limit("params.top_p", "above 0 to 1", VERIFIER),
    Limit("params.min_p", "0 to 1", VERIFIER),
    Limit("params.repetition_penalty", "above 0 to 10", VERIFIER),
    Limit("params.presence_penalty", "-2 to 2", VERIFIER),
    Limit("params.frequency_penalty", "-2 to 2", VERIFIER),
    Limit(
        "params.logit_bias",
        f"{params.MAX_LOGIT_BIAS_ENTRIES} ids of the vocabulary, -100 to 100 each",
        VERIFIER,
    ),
    Limit("params.stop_token_ids", f"{params.MAX_STOP_TOKEN_IDS} ids of the vocabulary", VERIFIER),
    Limit("params.num_logprobs", f"0 to {params.MAX_LOGPROBS}", VERIFIER),
)


def table() -> str:
    """The rows as Markdown."""
    rows = [(f"`{row.field}`", row.limit, row.checked_by) for row in LIMITS]
    header = [("field", "limit", "checked by"), ("---", "---", "---")]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*header, *rows])


if __name__ == "__main__":
    print(table())
