"""Settings of the verifier service."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from paceline.settings import DiallingSettings
from verifier_service.sources import DEFAULT_SOURCES, SOURCES


class VerifierSettings(DiallingSettings):
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
    kv_tokens: int = Field(
        32768, ge=64, description="tokens in the KV cache, of all answers and reusable prefixes"
    )
    compiling: Literal["auto", "off"] = Field(
        "auto", description="auto: fuse the model's layers with Inductor where that pays"
    )
    local_sources: list[str] = Field(
        default_factory=lambda: list(DEFAULT_SOURCES),
        description=f"draft without a drafter: of {', '.join(SOURCES)}; empty for none",
    )
    recycling_table: str = Field(
        "auto",
        description="file of `paceline recycling-table`; auto: what came with the "
        "package, if anything; none",
    )
    max_draft_tokens: int = Field(8, ge=0, le=64, description="longest block of a drafter")
    max_rows: int = Field(
        16, ge=1, le=32, description="rows of one answer in a step, its last token included"
    )
    speculation: Literal["auto", "off"] = Field(
        "auto", description="off: plain decoding, whatever requests ask for"
    )
    draft_budget_ms: float = Field(
        30.0, ge=0.0, description="time that one answer may lose to speculation"
    )
    draft_budget_share: float = Field(
        0.02, ge=0.0, le=1.0, description="or this share of its time, whichever is more"
    )
    # At most as many as the KV cache has scratch slots for the branches of trees (model/cache.py).
    step_rows: int = Field(256, ge=16, le=512, description="rows of all sequences in one forward")
    prefill_rows: int = Field(128, ge=16, description="rows of one prompt in one forward")
    busy_prefill_rows: int = Field(
        48, ge=16, description="rows of all prompts in a forward that running answers share"
    )

    @field_validator("local_sources")
    @classmethod
    def _known_sources(cls, names: list[str]) -> list[str]:
        unknown = [name for name in names if name not in SOURCES]
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(SOURCES)}")
        return names
