"""The bytes of single tokens, which need not be whole characters. Pure."""

import re
from collections.abc import Mapping
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# SentencePiece's blank.
BLANK = "\u2581"


class TokenBytes:
    """Token ids to bytes, by the tokenizer's own kind of alphabet."""

    def __init__(self, tokenizer: Any, source: Mapping[str, Any]) -> None:
        """`source` is the tokenizer file's content."""
        self._tokenizer = tokenizer
        self._added = {
            token_id: token.content
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._is_byte_level = "ByteLevel" in _decoder_types(source.get("decoder"))

    def of(self, token_id: int) -> bytes:
        """Empty for an id without a token."""
        if token_id in self._added:
            return str(self._added[token_id]).encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_byte_level:
            return b"".join(BYTE_OF.get(c, c.encode()) for c in piece)
        if found := BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(found[1])
        return str(piece).replace(BLANK, " ").encode()


def _decoder_types(decoder: Any) -> list[str]:
    if not isinstance(decoder, Mapping):
        return []
    types = [str(decoder.get("type"))]
    for part in decoder.get("decoders") or ():
        types += _decoder_types(part)
    return types


def _byte_level_alphabet() -> dict[str, bytes]:
    """Byte-level tokenizers write printable bytes as themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}


BYTE_OF: Mapping[str, bytes] = _byte_level_alphabet()
