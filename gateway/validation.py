"""What the gateway itself checks in a request, before any work; the verifier checks the rest.

Pure. Every violation names its field and repeats nothing that was sent.
"""

from collections.abc import Sequence

from paceline.events import ChatMessage, Request
from paceline.limits import (
    MAX_ANSWERS,
    MAX_CONTENT_BYTES,
    MAX_MESSAGES,
    MAX_PROMPT_TOKENS,
    MAX_STOP_BYTES,
    MAX_STOPS,
    label_violations,
    prompt_violations,
    timeout_violations,
)
from paceline.params import Violation

ROLES = ("system", "user", "assistant")
# A guess before anything is encoded, for what a request may cost.
BYTES_PER_TOKEN = 4


def request_violations(request: Request) -> list[Violation]:
    """Every field of one answer's request that the gateway cannot honour."""
    found = stop_violations(request.stop)
    found += label_violations("request_id", request.request_id)
    found += label_violations("workload", request.workload)
    found += label_violations("model", request.model)
    found += timeout_violations("timeout_ms", request.timeout_ms)
    if request.n > MAX_ANSWERS:
        found.append(Violation("n", f"at most {MAX_ANSWERS}, is {request.n}"))
    prompt = request.prompt
    if isinstance(prompt, str):
        found += _content_violations("text", [prompt])
    elif all(isinstance(part, ChatMessage) for part in prompt):
        found += message_violations([part for part in prompt if isinstance(part, ChatMessage)])
    else:
        found += prompt_violations("token_ids", len(prompt))
    return found


def estimated_tokens(request: Request) -> float:
    """What the request may take, prompt and answers together, before the prompt is encoded."""
    prompt = request.prompt
    if isinstance(prompt, str):
        num_prompt = len(prompt.encode()) / BYTES_PER_TOKEN
    else:
        texts = [part.content for part in prompt if isinstance(part, ChatMessage)]
        num_bytes = sum(len(text.encode()) for text in texts)
        num_prompt = num_bytes / BYTES_PER_TOKEN if texts else len(prompt)
    return request.n * (1 + num_prompt + min(request.params.max_tokens, MAX_PROMPT_TOKENS))


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


def turn_violations(content: str, request_id: str, timeout_ms: int) -> list[Violation]:
    found = label_violations("turn.request_id", request_id)
    found += timeout_violations("turn.timeout_ms", timeout_ms)
    if not content:
        found.append(Violation("turn.content", "the turn is empty"))
    return found + _content_violations("turn.content", [content])


def opening_violations(
    session_id: str, system: str, stops: Sequence[str], workload: str
) -> list[Violation]:
    found = stop_violations(stops) + label_violations("workload", workload)
    found += label_violations("open.session_id", session_id)
    if session_id and system:
        found.append(Violation("open.system", "belongs to new sessions only"))
    return found + _content_violations("open.system", [system])


def _content_violations(field: str, contents: Sequence[str]) -> list[Violation]:
    num_bytes = sum(len(content.encode()) for content in contents)
    if num_bytes <= MAX_CONTENT_BYTES:
        return []
    return [Violation(field, f"at most {MAX_CONTENT_BYTES} bytes in all, has {num_bytes}")]
