"""Placement: which verifier a sequence goes to. Pure; knows names and loads, no verifier.

Rendezvous hashing: every gateway ranks the verifiers alike for a key, and one that comes or goes
moves its own keys only. Bounded load (arXiv 1608.01350): the first in rank with less than 1.25
times the mean takes it.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

LOAD_FACTOR = 1.25
# A shorter prompt has no prefix worth going to: the least loaded verifier is better.
MIN_PREFIX_TOKENS = 64


def prefix_key(token_ids: Sequence[int]) -> str:
    """The key of a prompt without a session: prompts that begin alike have the same one."""
    if len(token_ids) < MIN_PREFIX_TOKENS:
        return ""
    head = b"".join(i.to_bytes(4, "little") for i in token_ids[:MIN_PREFIX_TOKENS])
    return hashlib.blake2b(head, digest_size=16).hexdigest()


def ranked(key: str, names: Sequence[str]) -> list[str]:
    """The names, the key's favourite first."""
    return sorted(names, key=lambda name: _weight(key, name), reverse=True)


def place(key: str, loads: Mapping[str, int]) -> str:
    """The name that takes one more sequence; `loads` are live sequences, one name at least.

    An empty key goes to the least loaded, of equals to the first.
    """
    if not key:
        return min(loads, key=loads.__getitem__)
    limit = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / len(loads))
    return next(name for name in ranked(key, list(loads)) if loads[name] < limit)


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\n{name}".encode(), digest_size=8).digest()
