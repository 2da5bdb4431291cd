"""The gateway's settings."""

from typing import ClassVar, Literal

from pydantic import Field

from paceline.settings import ServiceSettings

HTTP_PORT = 8000


class GatewaySettings(ServiceSettings):
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
        256, ge=1, description="answers at the same time; more are told to retry"
    )
    trace_rounds: Literal["all", "sampled"] = Field(
        "all", description="rounds that get a span: all, or the first 8, every 16th and odd ones"
    )

    @property
    def wanted_http_port(self) -> int:
        """0: any."""
        if self.http_port is not None:
            return self.http_port
        return HTTP_PORT if self.port else 0
