"""The gateway's settings."""

from typing import ClassVar, Literal

from pydantic import Field

from paceline.metrics.labels import WORKLOADS
from paceline.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """The gateway: text in, text out, sessions, and a span for every round."""

    program: ClassVar[str] = "gateway"
    env_prefix: ClassVar[str] = "PACELINE_GATEWAY_"

    port: int = Field(7000, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    metrics_port: int = Field(
        9100, ge=0, le=65535, description="port of /metrics, for Prometheus; 0 is off"
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
    workloads: list[str] = Field(
        list(WORKLOADS), description="workload labels that metrics tell apart; others are `other`"
    )
    recent_answers: int = Field(
        256, ge=1, description="answers whose rounds are kept for `paceline trace`"
    )
