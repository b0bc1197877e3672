"""Dropout as a hash: frozen values, rate, independence, use of the random stream."""

from __future__ import annotations

import math

import pytest
import torch

from pyg_kpnn.ops.dropout import _mix32, draw_seed, drop_weights, keep_mask

EDGES = torch.arange(7)


def seed(value: int) -> torch.Tensor:
    return torch.tensor(value)


def packed(mask: torch.Tensor) -> list[str]:
    """Bits of a (B, E, H) mask, one text of E groups of H a sample."""
    return [" ".join("".join("01"[bit] for bit in edge) for edge in sample) for sample in mask.tolist()]


@pytest.mark.parametrize("value", [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF])
def test_mix32_is_the_published_finaliser(value):
    x = value
    x ^= x >> 16
    x = (x * 0x21F0AAAD) % 2**32
    x ^= x >> 15
    x = (x * 0x735A2D97) % 2**32
    x ^= x >> 15
    assert int(_mix32(seed(value))) == x


def test_frozen_hash_values():
    # The published finaliser on three arguments, written out once.
    assert _mix32(torch.tensor([0, 1, 0xFFFFFFFF])).tolist() == [0, 2261973619, 2578835075]


@pytest.mark.parametrize(
    ("value", "p", "expected"),
    [
        (0, 0.5, ["011 010 101 001 000 101 010", "111 011 110 101 000 011 110"]),
        (1, 0.5, ["111 001 110 001 111 010 100", "001 111 011 001 011 101 110"]),
        (2**62 - 1, 0.25, ["111 111 011 111 111 110 110", "001 001 111 111 110 111 110"]),
        (0x0123456789ABCDE, 0.75, ["000 101 000 011 001 001 000", "001 010 001 000 001 001 010"]),
    ],
)
def test_frozen_masks(value, p, expected):
    # A mask is part of what a seed reproduces: another hash would silently change every
    # training run. Change these only with a note in the changelog.
    assert packed(keep_mask(seed(value), 2, EDGES, 3, p)) == expected


@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**62 - 1])
def test_p_zero_keeps_and_p_one_drops_everything(value):
    assert keep_mask(seed(value), 3, EDGES, 2, 0.0).all()
    assert not keep_mask(seed(value), 3, EDGES, 2, 1.0).any()


def test_drop_weights_by_hand():
    weights = torch.rand(3, 7, 2, dtype=torch.float64)
    keep = keep_mask(seed(5), 3, EDGES, 2, 0.25)
    assert 0 < keep.sum() < keep.numel()
    assert torch.allclose(drop_weights(weights, EDGES, 0.25, seed(5)), weights * keep / 0.75, rtol=1e-15)
    assert drop_weights(weights, EDGES, 0.0, seed(5)) is weights
    assert drop_weights(weights, EDGES, 0.25, None) is weights
    assert torch.equal(drop_weights(weights, EDGES, 1.0, seed(5)), torch.zeros_like(weights))


def test_p_one_sends_zero_gradients():
    weights = torch.rand(3, 7, 2, requires_grad=True)
    drop_weights(weights, EDGES, 1.0, seed(5)).sum().backward()
    assert torch.equal(weights.grad, torch.zeros(3, 7, 2))


def test_an_edge_keeps_its_fate_in_any_company():
    whole = keep_mask(seed(11), 5, torch.arange(101), 3, 0.4)
    some = torch.tensor([100, 3, 57, 4])
    assert torch.equal(keep_mask(seed(11), 5, some, 3, 0.4), whole[:, some])
    assert torch.equal(keep_mask(seed(11), 2, torch.arange(101), 3, 0.4), whole[:2])
    assert torch.equal(keep_mask(seed(11), 5, torch.arange(101), 1, 0.4), whole[..., :1])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("value", [0, 1, 2**40 + 17])
def test_rate(p, value):
    keep = keep_mask(seed(value), 53, torch.arange(499), 11, p)
    n = keep.numel()
    assert abs(int(keep.sum()) - n * (1 - p)) < 5 * math.sqrt(n * p * (1 - p))
    # No sample, edge or head is favoured either: 5 standard deviations of its own count.
    for axes in ((1, 2), (0, 2), (0, 1)):
        share = keep.double().mean(axes)
        m = n // share.numel()
        assert float((share - (1 - p)).abs().max()) < 5.5 * math.sqrt(p * (1 - p) / m)


def agreement_is_chance(one: torch.Tensor, other: torch.Tensor, p: float) -> bool:
    """Whether two masks agree as often as independent ones, within 5 standard deviations."""
    chance = p**2 + (1 - p) ** 2
    n = one.numel()
    return abs(float((one == other).double().mean()) - chance) < 5 * math.sqrt(chance * (1 - chance) / n)


@pytest.mark.parametrize("shift", [1, 2, 3, 7, 16])
def test_neighbours_are_independent(shift):
    p = 0.3
    keep = keep_mask(seed(29), 61, torch.arange(997), 17, p)
    assert agreement_is_chance(keep[shift:], keep[:-shift], p)
    assert agreement_is_chance(keep[:, shift:], keep[:, :-shift], p)
    assert agreement_is_chance(keep[..., shift:], keep[..., :-shift], p)


@pytest.mark.parametrize("other", [30, 31, 29 + 2**31, 29 + 2**32, 29 + 2**33, 29 + 2**61])
def test_seeds_are_independent(other):
    p = 0.3
    one, two = (keep_mask(seed(s), 31, torch.arange(997), 7, p) for s in (29, other))
    assert agreement_is_chance(one, two, p)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_consecutive_seeds_do_not_shift_the_samples(step):
    # A training loop may well count its seeds up.
    p = 0.3
    one, two = (keep_mask(seed(s), 31, torch.arange(997), 7, p) for s in (29, 29 + step))
    assert agreement_is_chance(one[step:], two[:-step], p)
    assert agreement_is_chance(two[step:], one[:-step], p)


def test_expectation_is_the_weight():
    weights = torch.rand(2, 13, 3, dtype=torch.float64) + 0.5
    total = sum(drop_weights(weights, torch.arange(13), 0.5, seed(s * 0x9E3779B9)) for s in range(2000))
    assert float((total / 2000 / weights - 1).abs().max()) < 5 / math.sqrt(2000)


def test_draw_seed_is_one_draw_of_the_default_generator():
    torch.manual_seed(3)
    drawn = [int(draw_seed(torch.device("cpu"))) for _ in range(3)]
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert drawn == [int(torch.randint(0, 2**62, ())) for _ in range(3)]
    assert torch.equal(after, torch.get_rng_state())
    assert len(set(drawn)) == 3
    assert draw_seed(torch.device("cpu")).shape == ()
    assert draw_seed(torch.device("cpu")).dtype == torch.int64
