"""Settings of the drafter. Environment prefix: PACELINE_DRAFTER_."""

from typing import ClassVar, Literal

from pydantic import Field

from paceline.settings import ServiceSettings


class DrafterSettings(ServiceSettings):
    """The drafter: proposes tokens to verifiers, which dial it."""

    program: ClassVar[str] = "drafter_service"
    env_prefix: ClassVar[str] = "PACELINE_DRAFTER_"

    port: int = Field(7001, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    metrics_port: int = Field(
        9101, ge=0, le=65535, description="port of /metrics, for Prometheus; 0 is off"
    )
    drafter: Literal["lookup", "past_answers", "model", "random"] = Field(
        "lookup", description="lookup, past_answers, model, or random (for load tests)"
    )
    model: str = Field(
        "embedded-draft",
        description="draft model: embedded-draft, made for the embedded target; embedded, a "
        "folder, a .gguf file or a hub id",
    )
    dtype: str = Field("bfloat16", description="number format of the draft model's weights")
    numerics: Literal["exact", "fast"] = Field(
        "fast", description="exact repeats a target's bits where the draft model is the target"
    )
    threads: int = Field(1, ge=1, description="CPU threads of the draft model")
    max_sequences: int = Field(64, ge=1, description="sequences of all verifiers together")
    max_draft_tokens: int = Field(
        16, ge=1, le=255, description="how far to run ahead of a sequence's last commit"
    )
