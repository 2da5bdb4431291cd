"""Logits without a token to choose fail their own request, through the whole stack, and no more."""

import asyncio

import grpc
import pytest
import torch
from answers import ask
from in_process import services
from tiny import save_tiny_llama

from drafter_service.config import DrafterSettings
from paceline.client import GatewayClient
from paceline.model.engine import LanguageModel
from paceline.params import SamplingParams
from paceline.server import Refusal

PARAMS = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)
HEALTHY = [1, 2, 3, 1, 2, 3, 1, 2]
POISON = 77


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def poisoned_forward(monkeypatch):
    """Rows of a sequence that was fed POISON have no finite logits, its KV entries included."""
    forward = LanguageModel.forward
    ill = set()

    def broken(self, rows):
        logits = forward(self, rows)
        start = 0
        for part in rows:
            if broken.value is not None and POISON in part.token_ids:
                ill.add(part.cache)
            if part.cache in ill:
                logits[start : start + part.num_logits] = broken.value
                self.store.values[:, part.cache.blocks] = broken.value
            start += part.num_logits
        return logits

    broken.value = None
    monkeypatch.setattr(LanguageModel, "forward", torch.inference_mode()(broken))
    return broken


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_logits_that_are_not_finite_fail_their_own_request(tiny, poisoned_forward, value):
    drafter = DrafterSettings(port=0, drafter="lookup")
    async with services(tiny, drafter) as address, GatewayClient(address) as client:
        alone = await ask(client, HEALTHY, PARAMS, seed=5)
        poisoned_forward.value = value
        for _ in range(2):
            healthy, ill = await asyncio.gather(
                ask(client, HEALTHY, PARAMS, seed=5),
                ask(client, [POISON, 5], PARAMS, seed=5),
                return_exceptions=True,
            )
            assert isinstance(ill, Refusal)
            assert ill.code is grpc.StatusCode.INTERNAL
            assert "retry" in ill.message
            assert healthy.token_ids == alone.token_ids


async def test_constraints_that_exclude_every_token_are_a_failed_precondition(tiny):
    banned = SamplingParams(max_tokens=4, logit_bias=dict.fromkeys(range(259), -100.0))
    async with services(tiny, None) as address, GatewayClient(address) as client:
        with pytest.raises(Refusal) as refused:
            await ask(client, HEALTHY, banned, seed=5)
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "exclude every token" in refused.value.message
        assert len((await ask(client, HEALTHY, PARAMS, seed=5)).token_ids) == 24
