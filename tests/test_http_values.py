"""Parts of the HTTP door that are pure: bytes of tokens, log-probabilities, histograms, seeds."""

import json
import math

import pytest
from fakes import EOS, ids_of, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models

from gateway.http.bodies import ChatBody, CompletionBody
from gateway.http.logprobs import LOWEST, Scores, chat_logprobs, completion_logprobs
from gateway.http.reports import acceptance_histogram
from gateway.http.requests import SEED_BITS, chat_request, completion_request
from gateway.token_bytes import TokenBytes
from paceline.events import Delta, TokenLogprobs
from paceline.params import FieldError
from paceline.rounds import RoundReport, SpeculationTotals, TokenSource


def bytes_of(tokenizer: Tokenizer) -> TokenBytes:
    return TokenBytes(tokenizer, json.loads(tokenizer.to_str()))


def test_byte_level_tokens_are_their_bytes_even_half_a_character():
    tokens = bytes_of(tiny_tokenizer())
    text = "hello wörld\n\n日😀 \x00\xad"
    ids = ids_of(text)
    assert b"".join(tokens.of(token_id) for token_id in ids) == text.encode()
    assert all(tokens.of(token_id) for token_id in ids)
    assert tokens.of(EOS) == b"<|im_end|>"
    assert tokens.of(10**6) == b""


def test_byte_fallback_tokens_are_their_bytes_and_blanks():
    vocab = {"<unk>": 0, "\u2581hi": 1, "<0xF0>": 2, "\u00e9": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokens = bytes_of(tokenizer)
    assert [tokens.of(i) for i in (1, 2, 3)] == [b" hi", b"\xf0", "\u00e9".encode()]


def test_a_character_of_several_tokens_has_one_offset_and_no_infinity_is_written():
    ids = ids_of("a日b")
    scores = TokenLogprobs(-math.inf, (ids[0],), (-math.inf,))
    delta = Delta("a日b", ids, [TokenSource.PLAIN] * len(ids), None, None, [scores] * len(ids))
    scored = Scores(bytes_of(tiny_tokenizer()).of).read(delta)
    legacy = completion_logprobs(scored)
    assert legacy["text_offset"] == [0, 1, 1, 1, 2]
    assert legacy["top_logprobs"][0] == {"a": LOWEST}
    content = chat_logprobs(scored)["content"]
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == "a日b"
    assert "Infinity" not in json.dumps(content)


def test_the_histogram_counts_rounds_with_a_block_by_accepted_tokens():
    totals = SpeculationTotals()
    for number, accepted in enumerate([0, 2, 2, 3]):
        totals.add_round(RoundReport(number, num_drafted=3, num_tested=3, num_accepted=accepted))
    totals.add_round(RoundReport(4))
    assert acceptance_histogram(totals, 5) == [1, 0, 2, 1, 0, 0]
    assert acceptance_histogram(totals, 1) == [1, 0, 2, 1]
    assert acceptance_histogram(SpeculationTotals(), 2) == [0, 0, 0]


def test_a_drawn_seed_fits_every_json_reader():
    body = ChatBody.model_validate({"messages": [{"role": "developer", "content": "x"}]})
    requests = [chat_request(body, "id") for _ in range(8)]
    assert len({request.seed for request in requests}) > 1
    assert all(0 <= (request.seed or 0) < 2**SEED_BITS for request in requests)
    assert requests[0].prompt[0].role == "system"  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["-1", "1.0", "٣", "1_0", " 1", "4294967296", "9" * 5000, ""])
def test_a_bias_is_keyed_by_a_token_id(key: str):
    body = CompletionBody.model_validate({"prompt": [1], "logit_bias": {key: 1.0}})
    with pytest.raises(FieldError, match="token ids"):
        completion_request(body, "id")
