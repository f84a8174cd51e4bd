"""The rule of --n: balanced, seeded, each subset the beginning of every larger one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rbtools import datasets
from rbtools.errors import RbError

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(torch.tensor)


@settings(max_examples=100)
@given(labels=LABELS, n=st.integers(1, 70), seed=st.integers(0, 2**64 - 1))
def test_a_subset_is_as_balanced_as_the_data_allow(labels, n, seed):
    chosen = datasets.subset(labels, n, seed)
    assert chosen.dtype == torch.int64 and len(chosen) == min(n, len(labels))
    assert len(set(chosen.tolist())) == len(chosen)
    assert torch.equal(chosen, datasets.subset(labels, 1000, seed)[:n])
    there = torch.bincount(labels, minlength=7)
    taken = torch.bincount(labels[chosen], minlength=7)
    most = int(taken.max())  # of prefixes of any length, so that classes come in turn
    # A class has fewer than the fullest one only by one, or because it has no more.
    assert all(int(taken[c]) >= most - 1 or taken[c] == there[c] for c in range(7))


def test_seeds_give_other_orders_and_the_order_is_frozen():
    labels = torch.arange(40) % 4
    orders = {seed: datasets.subset(labels, 8, seed).tolist() for seed in range(20)}
    assert len({tuple(order) for order in orders.values()}) == 20
    assert len({tuple(labels[order[:4]].tolist()) for order in map(torch.tensor, orders.values())}) > 8
    # Subsets are in users' stores: these may never change.
    assert orders[0] == [2, 33, 31, 32, 6, 37, 27, 4]
    assert orders[1] == [24, 14, 29, 7, 16, 34, 13, 27]


@pytest.mark.parametrize("n", [0, -3])
def test_fewer_than_one_is_refused(n):
    with pytest.raises(RbError, match=f"number of examples is {n}. It must be 1 or more"):
        datasets.subset(torch.tensor([0, 1]), n, seed=0)
