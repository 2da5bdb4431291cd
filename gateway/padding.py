"""Sizes of streamed frames: padded to a multiple, so that few sizes are all that can be told apart.

Who watches an encrypted stream sees how long each frame is, and a round's frame is longer the more
draft tokens it accepted. Pure; knows no messages.
"""

import secrets

# (bytes of a bytes field beside its content: tag and length, lengths of content with those)
_FIELDS = ((2, range(1, 2**7)), (3, range(2**7, 2**14)))


def missing(size: int, multiple: int) -> int:
    """Bytes from `size` up to the next multiple; 0 without one."""
    return -size % multiple if multiple else 0


def field_bytes(size: int, multiple: int) -> bytes:
    """What a bytes field must hold for a message of `size` bytes to come to a multiple."""
    num_missing = missing(size, multiple)
    if num_missing == 0:
        return b""
    # Three sizes cannot be had: one and two bytes more, and the one between both kinds of length.
    for num_free in (num_missing, num_missing + multiple, num_missing + 2 * multiple):
        for overhead, lengths in _FIELDS:
            if num_free - overhead in lengths:
                return secrets.token_bytes(num_free - overhead)
    raise ValueError(f"{multiple} is more than a frame can be padded by")


def filler(num_characters: int) -> str:
    """Random, so that a proxy that compresses does not undo it; needs no escapes in JSON."""
    return secrets.token_urlsafe(num_characters)[:num_characters]
