"""The gateway's settings."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from paceline.keys import load_keys
from paceline.settings import DiallingSettings

HTTP_PORT = 8000


class GatewaySettings(DiallingSettings):
    """The gateway: text in, text out, sessions, and a span for every round."""

    program: ClassVar[str] = "gateway"
    env_prefix: ClassVar[str] = "PACELINE_GATEWAY_"

    port: int = Field(7000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    http_host: str = Field(
        "127.0.0.1", description="address of the OpenAI-compatible HTTP door; empty: no such door"
    )
    http_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port of the HTTP door; 0 picks a free one; unset: 8000, or a free one "
        "when port is 0",
    )
    verifier: list[str] = Field(
        ["127.0.0.1:7002"], min_length=1, description="host:port of a verifier; may be repeated"
    )
    session_ttl_s: float = Field(
        1800.0, gt=0, description="seconds that a session is kept after its last turn"
    )
    max_sessions: int = Field(
        1024, ge=1, description="sessions kept; the one unused for longest makes room"
    )
    max_requests: int = Field(
        256, ge=1, description="answers at the same time; more wait for their tenant's fair turn"
    )
    max_queued: int = Field(
        64, ge=0, description="requests that wait; a tenant may fill half of what is free"
    )
    max_queue_s: float = Field(
        10.0, gt=0, description="longest wait; who would wait longer is refused at once"
    )
    api_keys: str = Field(
        "", description="file of hashed keys (paceline keys add); set: callers need one"
    )
    trace_rounds: Literal["all", "sampled"] = Field(
        "all", description="rounds that get a span: all, or the first 8, every 16th and odd ones"
    )

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, path: str) -> str:
        if path:
            load_keys(Path(path))
        return path

    @property
    def wanted_http_port(self) -> int:
        """0: any."""
        if self.http_port is not None:
            return self.http_port
        return HTTP_PORT if self.port else 0
