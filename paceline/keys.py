"""API keys and the file of their hashes: what `paceline keys` writes and a gateway reads.

A key is `pl_<id>_<secret>` with a secret of 256 random bits, so one SHA-256 is enough: there is
nothing to guess. The file holds the id and the hash, never the key. Knows no gateway.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

_KEY = re.compile(r"pl_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class KeysError(ValueError):
    """A file of keys that cannot be used; the text repeats nothing of what stands in it."""


class KeyEntry(BaseModel):
    """One key: whose it is, and what its tenant may use. Limits are those of the tenant.

    0 is no limit. Two keys of a tenant must agree on everything but name and priority.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=_NAME)
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: str = Field(pattern=_NAME)
    # Answers at the same time.
    max_answers: int = Field(0, ge=0)
    # Tokens of prompts and answers, as a long-term rate and as what may come at once.
    tokens_per_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    burst_tokens: int = Field(0, ge=0)
    # Share of the capacity when it is short, next to other tenants' weights.
    weight: float = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    # Within the tenant: one more is worth a fixed time of waiting.
    priority: int = Field(0, ge=-10, le=10)
    # May watch the rounds of every tenant's requests.
    operator: bool = False

    @field_validator("id", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        # YAML reads an unquoted id of digits as a number.
        if not isinstance(value, str):
            raise ValueError("must be quoted")
        return value


@dataclass(frozen=True, slots=True)
class Presented:
    """A key as a caller shows it, in its parts."""

    id: str
    secret_sha256: str


def new_key() -> tuple[str, str, str]:
    """(key, its id, the hash of its secret). The key is shown once and kept nowhere."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return f"pl_{key_id}_{secret}", key_id, _hash(secret)


def parse_key(text: str) -> Presented | None:
    """None for what cannot be a key."""
    match = _KEY.fullmatch(text)
    return Presented(match[1], _hash(match[2])) if match else None


def matches(sha256: str, presented: Presented) -> bool:
    """Whether the key's secret has this hash; takes the same time for any other."""
    return hmac.compare_digest(sha256, presented.secret_sha256)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def load_keys(path: Path) -> list[KeyEntry]:
    """Raises KeysError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise KeysError(f"{path}: cannot be read as YAML") from None
    if not isinstance(data, dict) or set(data) != {"keys"} or not isinstance(data["keys"], list):
        raise KeysError(f"{path}: must hold a list named keys")
    entries: list[KeyEntry] = []
    for index, item in enumerate(data["keys"]):
        try:
            entries.append(KeyEntry.model_validate(item))
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, e["loc"])) or "entry" for e in error.errors())
            raise KeysError(f"{path}: keys[{index}]: {fields}") from None
    _check_together(path, entries)
    return entries


def _check_together(path: Path, entries: Sequence[KeyEntry]) -> None:
    shared: dict[str, dict[str, Any]] = {}
    for field in ("name", "id"):
        values = [getattr(entry, field) for entry in entries]
        if len(set(values)) < len(values):
            raise KeysError(f"{path}: a {field} occurs twice")
    for entry in entries:
        limits = entry.model_dump(include={"max_answers", "tokens_per_s", "burst_tokens", "weight"})
        if shared.setdefault(entry.tenant, limits) != limits:
            raise KeysError(f"{path}: keys of tenant {entry.tenant} differ in their limits")


def save_keys(path: Path, entries: Sequence[KeyEntry]) -> None:
    """Replaces the file in one step, readable by its owner alone. Raises OSError, KeysError."""
    _check_together(path, entries)
    text = yaml.safe_dump(
        {"keys": [entry.model_dump() for entry in entries]}, sort_keys=False, allow_unicode=True
    )
    # mkstemp's mode is 0600.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
