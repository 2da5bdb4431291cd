"""Settings of the verifier service."""

from typing import ClassVar, Literal

from pydantic import Field

from paceline.settings import ServiceSettings


class VerifierSettings(ServiceSettings):
    """Runs the target model and decides every token; drafters only make it faster.

    Example: python -m verifier_service --model embedded --drafter 127.0.0.1:7001
    """

    program: ClassVar[str] = "verifier_service"
    env_prefix: ClassVar[str] = "PACELINE_VERIFIER_"

    port: int = Field(7002, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    metrics_port: int = Field(
        9102, ge=0, le=65535, description="port of /metrics, for Prometheus; 0 is off"
    )
    model: str = Field(
        "embedded", description="embedded, a folder of safetensors, a .gguf file or a hub id"
    )
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="of weights and KV cache")
    device: str = Field("cpu", description="cpu, or cuda")
    numerics: Literal["exact", "fast"] = Field(
        "exact", description="exact: a token's logits never depend on its batch or block"
    )
    threads: int = Field(2, ge=1, description="CPU threads of the model")
    drafter: list[str] = Field(
        default_factory=list, description="host:port of a drafter; repeat for more"
    )
    max_sequences: int = Field(16, ge=1, le=256, description="answers that run at once")
    max_waiting: int = Field(64, ge=0, description="answers that may wait for a place")
    max_context: int | None = Field(None, ge=64, description="shorter than the model's own")
    max_draft_tokens: int = Field(8, ge=0, le=64, description="longest draft block")
    step_rows: int = Field(256, ge=16, description="rows of all sequences in one forward")
    prefill_rows: int = Field(128, ge=16, description="rows of one prompt in one forward")
