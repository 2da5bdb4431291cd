"""Where the prompts come from: a file of chats, or the target itself.

A model trained on chats, given the beginning of a user's turn, writes one ("Magpie", arXiv
2406.08464): so a target's own questions need no data set. Knows no engine and no file.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.distill.corpus import Record
from paceline.distill.generation import Job
from paceline.noise import derived_seed

# Stands where a user's text will stand; no template changes it.
_MARK = "PACELINE-USER-TEXT"
_QUESTION_TOKENS = 96

Message = dict[str, str]


class NoTemplate(ValueError):
    """The target has no chat template in which a user's turn can be found."""


class Template:
    """A target's chat template and tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: transformers'. Raises NoTemplate."""
        self._tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise NoTemplate("the target has no chat template")
        text = tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
        before, mark, _ = text.partition(_MARK)
        if not mark:
            raise NoTemplate("the target's chat template leaves out the user's text")
        self.user_turn: list[int] = tokenizer.encode(before, add_special_tokens=False)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=False
        )
        return ids

    def text(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text


class Questions:
    """Jobs to answer, in order, without those of which there are answers already.

    With chats their answers; without, first a question by the target, then its answer.
    """

    def __init__(
        self,
        template: Template,
        chats: Sequence[Sequence[Message]] | None,
        *,
        indices: Iterator[int],
        seed: int,
        max_tokens: int,
        max_context: int,
    ) -> None:
        self._template = template
        self._chats = chats
        self._indices = indices
        self._seed = seed
        self._max_tokens = max_tokens
        self._max_context = max_context
        self._asked: deque[Job] = deque()

    def next(self) -> Job | None:
        """None while there is nothing to start."""
        while True:
            if self._asked:
                return self._asked.popleft()
            index = next(self._indices, None)
            if index is None:
                return None
            if self._chats is not None:
                self._ask(index, self._chats[index])
                continue
            # Odd numbers for questions: no stream of noise is used twice.
            seed = derived_seed(self._seed, 2 * index + 1)
            prompt = self._template.user_turn
            return Job(index, prompt, 1.0, seed, _QUESTION_TOKENS, is_question=True)

    def asked(self, question: Record) -> None:
        """A question of the target has been written: its answer is next."""
        text = self._template.text(question.output).strip()
        if text:
            self._ask(question.index, [{"role": "user", "content": text}])

    def _ask(self, index: int, messages: Sequence[Message]) -> None:
        prompt = self._template.prompt(messages)
        # A chat that leaves no room for an answer teaches nothing.
        if len(prompt) + self._max_tokens > self._max_context:
            return
        # Half of what is learnt is what is said at temperature 0.
        temperature = float(index % 2)
        seed = derived_seed(self._seed, 2 * index + 2)
        self._asked.append(Job(index, prompt, temperature, seed, self._max_tokens))
