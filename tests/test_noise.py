"""The noise is a specification: two implementations, the proto's vectors, and its statistics."""

import re
from pathlib import Path

import torch
from scipy import stats

from paceline import noise, races
from paceline.noise import Purpose

PROTO = Path(__file__).parents[1] / "protos" / "paceline" / "v1" / "tokens.proto"


def test_the_vectors_in_the_proto_hold():
    lines = re.findall(
        r"\((0x[0-9A-F]+|\d+), (\d+), (\d+), (\d+)\) +-> (0x[0-9A-F]{16})", PROTO.read_text()
    )
    assert len(lines) == 3
    for seed, purpose, position, token_id, bits in lines:
        drawn = noise.bits(int(seed, 0), Purpose(int(purpose)), int(position), int(token_id))
        assert drawn == int(bits, 16)


def test_tensors_and_integers_agree_for_extreme_keys():
    offsets = races.token_offsets(1000)
    for seed in (0, 1, 2**63, 2**64 - 1):
        for position in (0, 8191, 2**31):
            drawn = races.exponentials(seed, Purpose.CHOOSE, position, offsets)
            for token_id in (0, 1, 999):
                u = noise.uniform(seed, Purpose.CHOOSE, position, token_id)
                expected = -torch.tensor(u, dtype=torch.float64).log()
                torch.testing.assert_close(drawn[token_id], expected, rtol=1e-13, atol=0)


def test_uniforms_are_uniform_and_neighbours_are_independent():
    offsets = races.token_offsets(50_000)
    first = torch.exp(-races.exponentials(5, Purpose.CHOOSE, 10, offsets)).numpy()
    second = torch.exp(-races.exponentials(5, Purpose.CHOOSE, 11, offsets)).numpy()
    other = torch.exp(-races.exponentials(6, Purpose.CHOOSE, 10, offsets)).numpy()
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    for neighbour in (second, other, first[1:]):
        size = len(neighbour)
        assert abs(stats.pearsonr(first[:size], neighbour).statistic) < 4 / size**0.5


def test_purposes_draw_different_numbers():
    drawn = {noise.bits(1, purpose, 2, 3) for purpose in Purpose}
    assert len(drawn) == len(Purpose)
