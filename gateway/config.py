"""The gateway's settings."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from gateway.addresses import split
from paceline.keys import load_keys
from paceline.metrics.labels import WORKLOADS
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
    metrics_port: int = Field(
        9100, ge=0, le=65535, description="port of /metrics, for Prometheus; 0 is off"
    )
    verifier: list[str] = Field(
        ["127.0.0.1:7002"],
        min_length=1,
        description="host:port of a verifier, or dns:name:port for all addresses of a name; may "
        "be repeated",
    )
    failover_wait_s: float = Field(
        30.0,
        ge=0,
        description="seconds that an answer whose verifier was lost waits for one to go on at",
    )
    stall_s: float = Field(
        10.0,
        gt=0,
        description="seconds without a step after which a verifier with work is taken for stuck; "
        "longer than its longest step",
    )
    session_ttl_s: float = Field(
        1800.0, gt=0, description="seconds that a session is kept after its last turn"
    )
    max_sessions: int = Field(
        1024, ge=1, description="sessions kept in memory; the one unused for longest makes room"
    )
    session_store: str = Field(
        "memory",
        pattern="^(memory|rediss?://.+|unix://.+)$",
        description="memory, or redis://host:port/0 for sessions that several gateways share",
    )
    history: Literal["drop-oldest", "refuse"] = Field(
        "drop-oldest",
        description="a conversation longer than the context: leave out its oldest turns (the "
        "system message and the question stay), or refuse the turn",
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
    pad_frames: int = Field(
        0,
        ge=0,
        le=8192,
        description="streamed answers come in frames of a multiple of so many bytes, so that who "
        "watches an encrypted stream does not see how many draft tokens were accepted; 0 is off",
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

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, path: str) -> str:
        if path:
            load_keys(Path(path))
        return path

    @field_validator("verifier")
    @classmethod
    def _check_addresses(cls, entries: list[str]) -> list[str]:
        for entry in entries:
            split(entry)
        return entries

    @property
    def wanted_http_port(self) -> int:
        """0: any."""
        if self.http_port is not None:
            return self.http_port
        return HTTP_PORT if self.port else 0
