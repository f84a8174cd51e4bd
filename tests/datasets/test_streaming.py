"""Images larger than memory: equal to the tensor of all, but never all in memory."""

from __future__ import annotations

import shutil
import threading

import numpy as np
import pytest
import torch

import rbtools
from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.inputs.data import _loaded
from tests.conftest import SMALL_ARCH
from tests.datasets import archives

ALL = archives.pixels(0, 7, 3, 4, 5)


def fetch(ids, out):
    assert ids.dtype == np.int64 and out.shape == (len(ids), 3, 4, 5)
    out[:] = ALL[ids]


@pytest.mark.parametrize(
    "index",
    [
        *(3, -1, slice(2, 5), slice(None, None, 3), slice(0, 0)),
        *(torch.arange(7) > 3, [6, 1], torch.tensor(2), torch.tensor([-7, 6, 0, 6])),
    ],
)
def test_every_index_of_a_tensor(index):
    streamed, whole = streaming.Streamed(ALL.shape, fetch), torch.from_numpy(ALL)
    assert torch.equal(streamed[index], whole[index])
    assert len(streamed) == len(whole) and streamed.shape == whole.shape and streamed.dtype == whole.dtype


@pytest.fixture
def ahead(monkeypatch):
    """Images for a GPU, whose copy is left out, and the ids and threads of every read."""
    reads = []

    def read(self, ids):
        reads.append((ids.tolist(), threading.get_ident()))
        if 6 in ids:
            raise RbError("damaged")
        return torch.from_numpy(ALL[ids.numpy()]), None

    monkeypatch.setattr(streaming.Streamed, "_read", read)
    return streaming.Streamed(ALL.shape, fetch, torch.device("cuda")), reads


def test_a_damaged_image_that_was_read_ahead_is_an_error_in_its_batch(ahead):
    streamed, _ = ahead
    streaming.prefetch(streamed, torch.tensor([6]))
    assert torch.equal(streamed[[1]], torch.from_numpy(ALL)[[1]])
    with pytest.raises(RbError, match="damaged"):
        streamed[torch.tensor([6])]


def test_batches_that_nobody_takes_do_not_pile_up(ahead):
    streamed, _ = ahead
    for number in range(5):
        streaming.prefetch(streamed, torch.tensor([number]))
    assert len(streamed._read_ahead) == streaming._AHEAD
    on_cpu = streaming.Streamed(ALL.shape, fetch)
    streaming.prefetch(on_cpu, torch.tensor([1]))
    assert not on_cpu._read_ahead


def test_limit_may_be_set(monkeypatch):
    for text, size in (("2K", 2048), ("1.5m", 3 * 2**19), ("1TB", 2**40), ("1e9", 10**9), ("0", 0)):
        monkeypatch.setenv("RB_IMAGE_MEMORY", text)
        assert streaming.memory_limit() == size
    for wrong in ("much", "8X", "-1G", "nan", "inf", "G", "B"):
        monkeypatch.setenv("RB_IMAGE_MEMORY", wrong)
        with pytest.raises(RbError, match=f"RB_IMAGE_MEMORY is '{wrong}'. Expected a size such as 500M"):
            streaming.memory_limit()


def test_streamed_images_give_the_same_numbers(photos, tmp_path, monkeypatch):
    record = {"schema": 1, "arch": SMALL_ARCH, "dataset": f"imagefolder:{photos}"}
    untrained = rbtools.train(record, "erm", epochs=0, batch_size=10, store="first", device="cpu")
    results, seen, placed = [], [], streaming.placed
    monkeypatch.setattr(
        streaming, "placed", lambda found, device: seen.append(type(found)) or placed(found, device)
    )
    for name, memory in (("all", "1G"), ("streamed", "1")):
        monkeypatch.setenv("RB_IMAGE_MEMORY", memory)
        shutil.copytree("first", tmp_path / name)
        options = {"store": tmp_path / name, "device": "cpu", "threads": 1}
        _loaded.cache_clear()
        attacked = rbtools.attack(untrained, "pgd", eps=4, steps=2, **options)
        learned = rbtools.train(untrained, "erm", epochs=1, batch_size=8, **options)
        results.append((attacked["metrics"], learned["checkpoint"]))
    assert results[0] == results[1]
    assert seen == [torch.Tensor, streaming.Streamed]
