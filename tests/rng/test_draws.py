"""Draws: Random123's known answers, a slow reference, and what no grouping may change."""

from __future__ import annotations

import hashlib
import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.rng import GENERATOR
from rbtools.rng import draws as draws_module
from rbtools.rng.draws import Draws
from rbtools.rng.normal import normal_pairs
from rbtools.rng.philox import Philox

# tests/kat_vectors of DEShawResearch/random123, the lines "philox4x32 10": counter, key, answer.
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000 00000000 00000000   6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff   408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0   d16cfe09 94fdcceb 5001e420 24126ea1",
]


def slow_philox(counter, key):
    """Philox 4x32-10 as Salmon et al. (2011) write it, one word at a time."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second % 2**32, (first >> 32) ^ c3 ^ k1, first % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def slow_bits(seed, stream, example, draw, count):
    key = (seed % 2**32, zlib.crc32(stream.encode()))
    high = (seed >> 32) ^ (example >> 32)
    words = [slow_philox((example % 2**32, draw, block, high), key) for block in range(-(-count // 4))]
    return [word for block in words for word in block][:count]


def examples(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_blocks_are_the_known_answers_of_random123(line):
    c0, c1, c2, c3, k0, k1, *answer = (int(word, 16) for word in line.split())
    assert slow_philox((c0, c1, c2, c3), (k0, k1)) == tuple(answer)

    packed = Philox((k0, k1), torch.device("cpu")).blocks(examples(c0), c1, examples(c2), examples(c3))

    assert [word % 2**32 for pair in packed[0, 0].tolist() for word in (pair, pair >> 32)] == answer


@pytest.mark.parametrize("tile", [1, 7, 1 << 15])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 29])
def test_bits_are_the_slow_reference(count, tile, monkeypatch):
    monkeypatch.setattr(draws_module, "tile_blocks", lambda device: tile)
    numbers = [0, 1, 41, 2**31, 2**32 - 1, 2**32, 3 * 2**32 + 5]
    for seed, draw in [(0, 0), (1, 7), (2**32 - 1, 2**32 - 1), (2**64 - 1, 3), (5 * 2**32, 0)]:
        found = Draws(seed, "attack.pgd", examples(*numbers)).bits(count, draw)
        assert found.tolist() == [slow_bits(seed, "attack.pgd", number, draw, count) for number in numbers]


def test_uniform_normal_and_integers_follow_from_the_bits():
    draws = Draws(3, "s", torch.arange(50))
    words = draws.bits(30, draw=2).numpy().astype(np.float64)

    uniform = draws.uniform((2, 5, 3), draw=2)
    assert uniform.dtype == torch.float32 and uniform.shape == (50, 2, 5, 3)
    assert (uniform.view(50, 30).numpy() == np.floor(words / 256) / 2**24).all()

    assert (draws.integers(10, (30,), draw=2).numpy() == np.floor(words * 10 / 2**32)).all()

    radius = np.sqrt(-2 * np.log((words[:, 0::2] + 0.5) / 2**32))
    quarter = (words[:, 1::2] % 2**30 + 0.5) / 2**30 * math.pi / 2
    expected = np.empty((50, 30))
    expected[:, 0::2] = radius * np.cos(quarter) * np.where(words[:, 1::2] >= 2**31, -1, 1)
    expected[:, 1::2] = radius * np.sin(quarter) * np.where(words[:, 1::2] // 2**30 % 2, -1, 1)
    normal = draws.normal((30,), draw=2)
    assert normal.dtype == torch.float32
    np.testing.assert_allclose(normal.numpy(), expected, rtol=1e-7, atol=1e-10)


def test_draws_are_frozen():
    """These bits are in users' stores: a change of any of them needs a new version in GENERATOR."""
    draws = Draws(2024, "attack.pgd", torch.arange(97))
    made = [draws.bits(11), draws.uniform((3, 5), 1), draws.normal((3, 5), 2), draws.integers(200, (2,), 3)]
    digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in made)).hexdigest()
    assert (GENERATOR, digest[:16]) == ("philox4x32-10/1", "f0ca0f3ddb3595c3")


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(23)),
    cut=st.integers(0, 23),
    shape=st.sampled_from([(), (1,), (3,), (2, 3), (5, 4), (3, 8, 8), (0,)]),
    kind=st.sampled_from(["uniform", "normal"]),
    size=st.sampled_from([1, 3, 16, 100, 4096]),
)
def test_no_grouping_order_or_tile_changes_a_value(order, cut, shape, kind, size):
    whole = getattr(Draws(9, "s", torch.arange(23)), kind)(shape, draw=4)
    parts = [Draws(9, "s", examples(*numbers)) for numbers in (order[:cut], order[cut:])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws_module, "tile_blocks", lambda device: size)
        grouped = torch.cat([getattr(part, kind)(shape, draw=4) for part in parts])
    assert grouped.shape == (23, *shape)
    assert torch.equal(grouped, whole[list(order)])


def test_take_by_mask_or_index_gives_those_examples():
    draws = Draws(1, "s", torch.arange(40, 60), offset=3)
    whole = draws.normal((7,))
    mask = torch.arange(20) % 3 == 0
    assert len(draws.take(mask)) == 7
    assert torch.equal(draws.take(mask).normal((7,)), whole[mask])
    index = examples(19, 0, 0, 5)
    assert torch.equal(draws.take(index).normal((7,)), whole[index])
    assert draws.take(mask & False).normal((7,)).shape == (0, 7)


def test_offset_is_added_to_the_draw():
    plain, later = (Draws(1, "s", torch.arange(5), offset=offset) for offset in (0, 6))
    assert torch.equal(later.uniform((3,), draw=2), plain.uniform((3,), draw=8))
    assert torch.equal(later.child("c").uniform((3,)), plain.child("c").uniform((3,), draw=6))


def test_seeds_streams_examples_and_draws_are_independent():
    base = Draws(0, "a", torch.arange(64))
    others = [
        Draws(1, "a", torch.arange(64)).uniform((512,)),
        Draws(2**32, "a", torch.arange(64)).uniform((512,)),
        Draws(0, "b", torch.arange(64)).uniform((512,)),
        Draws(0, "a", torch.arange(64, 128)).uniform((512,)),
        base.child("x").uniform((512,)),
        base.child("y").uniform((512,)),
        base.uniform((512,), draw=1),
        base.uniform((512,)),
    ]
    table = np.corrcoef(torch.stack(others).view(len(others), -1).numpy())
    # 32,768 values each: the standard deviation of a correlation is 0.0055.
    assert np.abs(table - np.eye(len(others))).max() < 0.025


def test_box_muller_holds_at_the_ends_of_its_range():
    ends = [0, 1, 2**29, 2**30 - 1, 2**31, 2**32 - 1]
    a, b = (torch.tensor(ends).repeat(6), torch.tensor(ends).repeat_interleave(6))
    first, second = normal_pairs(a | (b << 32))
    radius = torch.sqrt(-2 * torch.log1p(-((2**32 - 0.5 - a.double()) / 2**32)))
    torch.testing.assert_close(torch.hypot(first, second), radius, rtol=1e-11, atol=0)
    assert torch.equal(first < 0, b >= 2**31)
    assert torch.equal(second < 0, b // 2**30 % 2 == 1)
    assert float(first.abs().max()) < 6.77


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    Draws(0, "s", torch.arange(4)).normal((3,))
    assert torch.equal(torch.get_rng_state(), before)


def test_drawing_first_in_inference_mode_does_not_spoil_training():
    with torch.inference_mode():
        Draws(0, "s", torch.arange(4)).normal((3,))
    weight = torch.ones(3, requires_grad=True)
    (Draws(0, "s", torch.arange(4)).normal((3,)) * weight).sum().backward()
    assert weight.grad is not None


def test_a_seed_out_of_range_says_the_range():
    for seed in (-1, 1 << 64):
        with pytest.raises(RbError, match=r"seed is .* from 0 to 2\^64 - 1"):
            Draws(seed, "s", torch.arange(2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_are_the_bits_of_the_cpu():
    here, there = (Draws(5, "s", torch.arange(3000, device=device)) for device in ("cpu", "cuda"))
    for kind, shape in [("uniform", (3, 9, 9)), ("normal", (3, 9, 9)), ("bits", 7)]:
        found = getattr(there, kind)(shape)
        assert found.device.type == "cuda"
        assert torch.equal(found.cpu(), getattr(here, kind)(shape))
    assert torch.equal(there.take(torch.tensor([2, 1])).integers(9).cpu(), here.integers(9)[[2, 1]])
