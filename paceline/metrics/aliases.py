"""vLLM's names for our numbers, by vLLM's definitions (its metrics v1, read in 2026-11).

acceptance rate = accepted / draft tokens, mean acceptance length = 1 + accepted / drafts, where a
draft is a round with a draft block. Every series carries model_name and engine, as vLLM's do.
"""

from paceline.metrics import instruments as our
from paceline.metrics.instruments import Alias
from paceline.metrics.labels import FINISHED, SOURCES

_MODEL = (("model", "model_name"),)
_GEN_AI_MODEL = (("gen_ai.request.model", "model_name"),)

GATEWAY = (
    # A plain round is no draft.
    Alias("vllm:spec_decode_num_drafts_total", our.ROUNDS, _MODEL, ("source", SOURCES)),
    Alias("vllm:spec_decode_num_draft_tokens_total", our.DRAFT_TOKENS, _MODEL),
    Alias("vllm:spec_decode_num_accepted_tokens_total", our.ACCEPTED_TOKENS, _MODEL),
    Alias(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        our.ACCEPTED_BY_POSITION,
        (*_MODEL, ("position", "position")),
    ),
    Alias("vllm:time_to_first_token_seconds", our.TIME_TO_FIRST_TOKEN, _GEN_AI_MODEL),
    Alias("vllm:inter_token_latency_seconds", our.INTER_TOKEN_LATENCY, _MODEL),
    Alias("vllm:request_time_per_output_token_seconds", our.TIME_PER_OUTPUT_TOKEN, _GEN_AI_MODEL),
    # Of finished requests only.
    Alias(
        "vllm:e2e_request_latency_seconds",
        our.REQUEST_DURATION,
        _GEN_AI_MODEL,
        ("error.type", ("",)),
    ),
    Alias("vllm:prompt_tokens_total", our.PROMPT_TOKENS, _MODEL),
    Alias("vllm:generation_tokens_total", our.OUTPUT_TOKENS, _MODEL),
    Alias(
        "vllm:request_success_total",
        our.REQUESTS,
        (*_MODEL, ("outcome", "finished_reason")),
        ("outcome", FINISHED),
    ),
)
VERIFIER = (
    Alias("vllm:num_requests_running", our.RUNNING),
    Alias("vllm:num_requests_waiting", our.WAITING),
    Alias("vllm:kv_cache_usage_perc", our.KV_USAGE),
    Alias("vllm:prefix_cache_queries_total", our.PREFIX_QUERIES),
    Alias("vllm:prefix_cache_hits_total", our.PREFIX_HITS),
    Alias("vllm:request_queue_time_seconds", our.QUEUE_DURATION),
    Alias("vllm:request_prefill_time_seconds", our.PREFILL_DURATION),
)
