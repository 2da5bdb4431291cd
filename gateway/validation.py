"""What the gateway itself checks in a request, before any work; the verifier checks the rest.

Pure. Every violation names its field and repeats nothing that was sent.
"""

from collections.abc import Sequence

from paceline.events import ChatMessage, Request
from paceline.params import Violation

ROLES = ("system", "user", "assistant")
MAX_STOPS = 16
MAX_STOP_BYTES = 64
MAX_MESSAGES = 1024
MAX_CONTENT_BYTES = 2**20
MAX_LABEL_BYTES = 256
MAX_ANSWERS = 8


def request_violations(request: Request) -> list[Violation]:
    """Every field of one answer's request that the gateway cannot honour."""
    found = stop_violations(request.stop)
    found += label_violations("request_id", request.request_id)
    found += label_violations("workload", request.workload)
    if request.n > MAX_ANSWERS:
        found.append(Violation("n", f"at most {MAX_ANSWERS}, is {request.n}"))
    if request.generated_token_ids and request.n != 1:
        found.append(Violation("n", "must be 1 with generated_token_ids"))
    if len(request.generated_token_ids) > request.params.max_tokens:
        found.append(Violation("generated_token_ids", "more tokens than params.max_tokens"))
    if request.generated_token_ids and request.seed is None:
        found.append(Violation("seed", "is needed with generated_token_ids"))
    found += label_violations("model_fingerprint", request.model_fingerprint)
    prompt = request.prompt
    if isinstance(prompt, str):
        found += _content_violations("text", [prompt])
    elif all(isinstance(part, ChatMessage) for part in prompt):
        found += message_violations([part for part in prompt if isinstance(part, ChatMessage)])
    return found


def stop_violations(stops: Sequence[str]) -> list[Violation]:
    found: list[Violation] = []
    if len(stops) > MAX_STOPS:
        found.append(Violation("stop", f"at most {MAX_STOPS} strings, has {len(stops)}"))
    for index, stop in enumerate(stops[:MAX_STOPS]):
        num_bytes = len(stop.encode())
        if not 1 <= num_bytes <= MAX_STOP_BYTES:
            found.append(
                Violation(
                    f"stop[{index}]", f"must be of 1 to {MAX_STOP_BYTES} bytes, has {num_bytes}"
                )
            )
    return found


def message_violations(messages: Sequence[ChatMessage]) -> list[Violation]:
    if not messages:
        return [Violation("chat.messages", "there are no messages")]
    if len(messages) > MAX_MESSAGES:
        return [Violation("chat.messages", f"at most {MAX_MESSAGES}, has {len(messages)}")]
    found = [
        Violation(f"chat.messages[{index}].role", f"must be one of {', '.join(ROLES)}")
        for index, message in enumerate(messages)
        if message.role not in ROLES
    ]
    return found + _content_violations("chat.messages", [m.content for m in messages])


def turn_violations(content: str, request_id: str) -> list[Violation]:
    found = label_violations("turn.request_id", request_id)
    if not content:
        found.append(Violation("turn.content", "the turn is empty"))
    return found + _content_violations("turn.content", [content])


def opening_violations(
    session_id: str, system: str, stops: Sequence[str], workload: str
) -> list[Violation]:
    found = stop_violations(stops) + label_violations("workload", workload)
    if session_id and system:
        found.append(Violation("open.system", "belongs to new sessions only"))
    return found + _content_violations("open.system", [system])


def label_violations(field: str, label: str) -> list[Violation]:
    num_bytes = len(label.encode())
    if num_bytes <= MAX_LABEL_BYTES:
        return []
    return [Violation(field, f"at most {MAX_LABEL_BYTES} bytes, has {num_bytes}")]


def _content_violations(field: str, contents: Sequence[str]) -> list[Violation]:
    num_bytes = sum(len(content.encode()) for content in contents)
    if num_bytes <= MAX_CONTENT_BYTES:
        return []
    return [Violation(field, f"at most {MAX_CONTENT_BYTES} bytes in all, has {num_bytes}")]
