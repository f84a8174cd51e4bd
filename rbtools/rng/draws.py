"""Random numbers that depend on the example and not on the batch.

Every value is a pure function of (seed, stream, example, draw, position). The bits of the value do not depend
on the batch size, the order, the number of processes or the device, and are the same if a run is resumed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

from rbtools.errors import RbError
from rbtools.lazy import Tensor, torch
from rbtools.rng.normal import normal_values
from rbtools.rng.philox import WORD, Philox, scalar, tile_blocks

Fill = Callable[[Tensor, Tensor], None]


class Draws:
    """The random numbers of some examples for one purpose (a stream).

    The generator is Philox 4x32-10. The key contains the low 32 bits of the seed and the CRC-32 of the
    stream's name. The counter contains the low 32 bits of the example, the draw, the block, and the high bits
    of seed ^ example.

    Shape: `examples`, int64 (N,), are the positions of the examples in the full split, on any device. Every
    result is on the device of `examples`, and the first dimension of every result is N. `draw` is an index,
    for example of a restart or a step. `offset` is added to `draw`, so that each epoch can have its own
    random numbers. `host` contains the same examples on the CPU, if known, for numbers that Python reads
    (`on_host`).

    Raises RbError for a seed outside [0, 2^64).
    """

    def __init__(
        self, seed: int, stream: str, examples: Tensor, offset: int = 0, host: Tensor | None = None
    ) -> None:
        if not 0 <= seed < 1 << 64:
            raise RbError(f"The seed is {seed}. Expected a whole number from 0 to 2^64 - 1, such as 0.")
        if examples.dim() != 1:
            raise ValueError(f"expected example numbers of shape (N,), got {tuple(examples.shape)}")
        self.seed = seed
        self.stream = stream
        self.examples = examples.to(torch.int64)
        self.offset = offset
        self.host = host

    def __len__(self) -> int:
        return len(self.examples)

    def __repr__(self) -> str:
        return f"Draws(seed={self.seed}, stream={self.stream!r}, {len(self)} examples, offset={self.offset})"

    @property
    def device(self) -> torch.device:
        return self.examples.device

    def take(self, index: Tensor) -> Draws:
        """Return the random numbers of the examples that `index`, int64 or a boolean mask, selects."""
        host = None if self.host is None or index.device.type != "cpu" else self.host[index]
        if self.device.type == "cuda" and index.device.type == "cpu":
            index = index.pin_memory()  # so that the host does not wait for the copy
        there = index.to(self.device, non_blocking=True)
        return Draws(self.seed, self.stream, self.examples[there], self.offset, host)

    def child(self, name: str) -> Draws:
        """Random numbers of the same examples for another purpose, independent of the present numbers."""
        return Draws(self.seed, f"{self.stream}/{name}", self.examples, self.offset, self.host)

    def on_host(self) -> Draws:
        """Return the same random numbers on the CPU, without waiting for a GPU if `host` is known."""
        examples = self.examples.cpu() if self.host is None else self.host
        return Draws(self.seed, self.stream, examples, self.offset)

    def bits(self, count: int, draw: int = 0) -> Tensor:
        """32 random bits per value: int64 (N, count) in [0, 2^32)."""
        result = self._empty(count, torch.int64)
        mask = scalar(WORD, self.device.type == "cpu")

        def fill(target: Tensor, packed: Tensor) -> None:
            target.copy_(_words(packed)[:, : target.shape[1]]).bitwise_and_(mask)

        return self._tiles(result, draw, fill)

    def uniform(self, shape: Sequence[int], draw: int = 0) -> Tensor:
        """Uniform values, float32 (N, *shape) in [0, 1): the upper 24 bits of each word times 2^-24."""
        result = self._empty(math.prod(shape), torch.float32)
        cpu = self.device.type == "cpu"
        shift, mask, unit = scalar(8, cpu), scalar(0x00FFFFFF_00FFFFFF, cpu), scalar(2.0**-24, cpu)

        def fill(target: Tensor, packed: Tensor) -> None:
            packed.bitwise_right_shift_(shift).bitwise_and_(mask)
            target.copy_(_words(packed)[:, : target.shape[1]]).mul_(unit)

        return self._tiles(result, draw, fill).view(len(self), *shape)

    def normal(self, shape: Sequence[int], draw: int = 0) -> Tensor:
        """Standard normal values, float32 (N, *shape), by Box-Muller in float64 with rounding at the end."""
        result = self._empty(math.prod(shape), torch.float32)

        def fill(target: Tensor, packed: Tensor) -> None:
            target.copy_(normal_values(packed)[:, : target.shape[1]])

        return self._tiles(result, draw, fill).view(len(self), *shape)

    def integers(self, high: int, shape: Sequence[int] = (), draw: int = 0) -> Tensor:
        """Random integers, int64 (N, *shape) in [0, high), for high from 1 to 2^31.

        Each value is floor(word * high / 2^32) and has a probability of 1/high, up to an error of 2^-32.
        """
        if not 1 <= high <= 1 << 31:
            raise ValueError(f"expected high from 1 to 2^31, got {high}")
        words = self.bits(math.prod(shape), draw)
        return words.mul_(high).bitwise_right_shift_(32).view(len(self), *shape)

    def _empty(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(len(self), count, dtype=dtype, device=self.device)

    def _tiles(self, result: Tensor, draw: int, fill: Fill) -> Tensor:
        """Call `fill` for each tile of `result` (N, count), in temporary memory for one tile."""
        draw += self.offset
        if not 0 <= draw <= WORD:
            raise ValueError(f"expected draw + offset from 0 to 2^32 - 1, got {draw}")
        blocks, size = -(-result.shape[1] // 4), tile_blocks(self.device)
        columns = max(1, min(blocks, size))
        rows = size // columns
        low = self.examples & WORD
        high = ((self.examples >> 32) & WORD) ^ (self.seed >> 32)
        numbers = torch.arange(blocks, device=self.device)
        philox = Philox((self.seed & WORD, zlib.crc32(self.stream.encode())), self.device)
        for top in range(0, len(self), rows):
            tile = slice(top, top + rows)
            for left in range(0, blocks, columns):
                packed = philox.blocks(low[tile], draw, numbers[left : left + columns], high[tile])
                fill(result[tile, 4 * left : 4 * (left + columns)], packed)
        return result


def _words(packed: Tensor) -> Tensor:
    """Pairs of words (R, C, 2) as int32 (R, 4 C), in the order of a little-endian machine."""
    return packed.view(torch.int32).view(len(packed), -1)


def of_images(stream: str, images: Tensor, seed: int, examples: Tensor | None = None) -> Draws:
    """Return the random numbers of images (N, ...), on their device.

    `examples`, int64 (N,), are the positions of the images in their data set; by default 0 to N - 1. Raises
    RbError for examples that are not N integers.
    """
    if examples is None:
        examples = torch.arange(len(images), device=images.device)
    elif examples.shape != images.shape[:1] or examples.is_floating_point():
        raise RbError(
            f"examples has the shape {tuple(examples.shape)} and the type {examples.dtype}. Expected"
            f" {len(images)} whole numbers, the position of each image in its data set."
        )
    return Draws(seed, stream, examples.to(images.device))
