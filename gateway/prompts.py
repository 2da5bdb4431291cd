"""Prompts to token ids, without holding up anybody else. Knows no messages of the wire."""

import asyncio
from collections.abc import Sequence

from gateway.sessions import fit
from gateway.text import Text
from paceline.events import ChatMessage

Prompt = str | Sequence[ChatMessage] | Sequence[int]

# Up to here a thread's turn takes longer than the work; a message counts for some by itself.
SHORT_CHARACTERS = 4000
MESSAGE_CHARACTERS = 100


async def prompt_ids(text: Text, prompt: Prompt, max_tokens: int | None) -> list[int]:
    """The prompt as token ids; with `max_tokens`, of a conversation's last turns that fit."""
    if _size(prompt) <= SHORT_CHARACTERS:
        return _encoded(text, prompt, max_tokens)
    # A long one takes a second; the loop must not stand still.
    return await asyncio.to_thread(_encoded, text, prompt, max_tokens)


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return sum(
        len(part.content) + MESSAGE_CHARACTERS for part in prompt if isinstance(part, ChatMessage)
    )


def _encoded(text: Text, prompt: Prompt, max_tokens: int | None) -> list[int]:
    if isinstance(prompt, str):
        return text.encode_text(prompt)
    messages = [part for part in prompt if isinstance(part, ChatMessage)]
    if not messages:
        return [part for part in prompt if isinstance(part, int)]
    if max_tokens is None:
        return text.encode_chat(messages)
    return fit(messages, text.encode_chat, max_tokens)
