"""Text: prompts to token ids, through a model's own tokenizer and chat template.

Pure but for the clock that a template may ask for. Knows nothing of messages on the wire, of
verifiers or of sampling. Turning ids back into text is `gateway.detokeniser`'s.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from gateway.detokeniser import Detokeniser
from gateway.token_bytes import TokenBytes
from paceline.events import ChatMessage
from paceline.params import FieldError

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Text:
    """The text side of one model. Safe to use from several threads."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """`files` by name, as a verifier serves them. Raises ValueError when they are unusable."""
        try:
            source = files[TOKENIZER_FILE].decode()
            self._tokenizer = _tokenizer(source)
            # A second one: whether control tokens are recognised is the tokenizer's own state.
            self._plain_tokenizer = _tokenizer(source)
            self._token_bytes = TokenBytes(self._tokenizer, json.loads(source))
            config = json.loads(files.get(CONFIG_FILE, b"{}"))
            self._template = _compile(_template_source(files, config))
        except KeyError as error:
            raise ValueError(f"the verifier serves no {error.args[0]}") from None
        except Exception as error:
            # The library raises bare Exception for a file it cannot read.
            raise ValueError(f"unusable tokenizer files: {error}") from error
        self._plain_tokenizer.encode_special_tokens = True
        self._named_tokens = {name: _token_text(config.get(name)) for name in NAMED_TOKENS}
        special = {
            token_id: token
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._control_ids = frozenset(special)
        # Longest first: of two that begin alike, the longer one is meant.
        longest_first = sorted(special, key=lambda token_id: -len(special[token_id].content))
        self._control_texts = _any_of(re.escape(special[i].content) for i in longest_first)
        self._control_tokens = _any_of(_token_pattern(i, special[i]) for i in longest_first)

    def encode_text(self, text: str) -> list[int]:
        """A whole prompt as its writer made it: control tokens in it are control tokens."""
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """A conversation, ready for the assistant's answer.

        What looks like a control token inside a message is encoded as plain text. Raises
        FieldError when the model has no chat template or its template refuses the messages.
        """
        if not any(self._control_texts.search(message.content) for message in messages):
            return list(
                self._tokenizer.encode(self._render(messages), add_special_tokens=False).ids
            )
        mask = _Mask(self._control_texts)
        masked = [ChatMessage(m.role, mask.hide(m.content)) for m in messages]
        return self._encode_masked(self._render(masked), mask)

    def detokeniser(self) -> Detokeniser:
        """For one answer. Control tokens have no text."""
        return Detokeniser(self._decode, self._control_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, control tokens by their names; perhaps half a character."""
        return self._token_bytes.of(token_id)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _encode_masked(self, rendered: str, mask: "_Mask") -> list[int]:
        """Ids of a rendered conversation whose messages are masked.

        What stands between two of the template's control tokens is encoded in one piece, as the
        tokenizer itself would do it.
        """
        ids: list[int] = []
        done = 0
        for found in self._control_tokens.finditer(rendered):
            ids += self._encode_plain(mask.reveal(rendered[done : found.start()]))
            ids.append(int(str(found.lastgroup)[1:]))
            done = found.end()
        return ids + self._encode_plain(mask.reveal(rendered[done:]))

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._plain_tokenizer.encode(text, add_special_tokens=False).ids)

    def _render(self, messages: Sequence[ChatMessage]) -> str:
        if self._template is None:
            raise FieldError("chat", "the model has no chat template")
        try:
            return self._template.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                add_generation_prompt=True,
                # Templates test these for none, as transformers passes them.
                tools=None,
                documents=None,
                **self._named_tokens,
            )
        except jinja2.TemplateError:
            # The template's own words may repeat what a message says.
            raise FieldError(
                "chat.messages", "the model's chat template does not take these messages"
            ) from None


class _Mask:
    """Hides control tokens in messages behind words that nobody can guess, and back."""

    def __init__(self, control_texts: re.Pattern[str]) -> None:
        self._control_texts = control_texts
        self._nonce = secrets.token_hex(8)
        self._words: dict[str, str] = {}

    def hide(self, content: str) -> str:
        return self._control_texts.sub(self._word, content)

    def reveal(self, text: str) -> str:
        for control_text, word in self._words.items():
            text = text.replace(word, control_text)
        return text

    def _word(self, found: re.Match[str]) -> str:
        return self._words.setdefault(found[0], f"[{self._nonce}-{len(self._words)}]")


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's part for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2 wants a plain class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    # Without any, a pattern that matches nothing.
    return re.compile("|".join(patterns) or r"(?!)")


def _token_pattern(token_id: int, token: Any) -> str:
    """One control token, named by its id, with the blanks that it swallows."""
    before, after = (r"\s*" if swallows else "" for swallows in (token.lstrip, token.rstrip))
    return f"(?P<t{token_id}>{before}{re.escape(token.content)}{after})"


def _tokenizer(source: str) -> Any:
    tokenizer = Tokenizer.from_str(source)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _template_source(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    if TEMPLATE_FILE in files:
        return files[TEMPLATE_FILE].decode()
    source = config.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return source


def _compile(source: str | None) -> jinja2.Template | None:
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _token_text(token: Any) -> str:
    """The text of a named token: older files hold it as an object, or not at all."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")
