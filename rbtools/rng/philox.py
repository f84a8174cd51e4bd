"""Philox 4x32-10, the counter-based generator of all random numbers, in int64 operations of torch.

The source is Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The
constants are those of the Random123 distribution. A block of four 32-bit words is a pure function of a 64-bit
key and a 128-bit counter. Any word can therefore be computed separately, on any device.
"""

from __future__ import annotations

import functools

from rbtools.lazy import Tensor, torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF

# Blocks that are made at once. On a CPU a call costs 2-3 us per operation, and the six scratch rows should
# stay in cache: 7.4 ns per float32 at 32768 blocks a thread, 9 at 16384, 12 at 8192 (AMD EPYC, one core).
# From 32768 torch also uses a second thread. On a GPU the launch dominates.
CPU_TILE = 1 << 15
GPU_TILE = 1 << 22


def tile_blocks(device: torch.device) -> int:
    """Return the number of blocks to compute at once on this device. No result depends on this number."""
    return CPU_TILE * torch.get_num_threads() if device.type == "cpu" else GPU_TILE


@functools.lru_cache(maxsize=256, typed=True)  # otherwise 1 and 1.0 would be the same key
def scalar(value: int | float, on_cpu: bool) -> Tensor | int | float:
    """The form of `value` that is fastest as an operand in torch. On a CPU, a 0-d tensor halves the time of
    an operation in the cache (from 5 to 2.5 us). On a GPU, a number is an argument of the kernel launch."""
    if not on_cpu:
        return value
    with torch.inference_mode(False):  # a cached inference tensor would cause errors in autograd later
        dtype = torch.int64 if isinstance(value, int) else torch.float64
        return torch.tensor(value, dtype=dtype, device="cpu")


@functools.lru_cache(maxsize=1024)
def columns(pairs: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, ...]:
    """Pairs of numbers as int64 (2, 1, 1) on a device. Callers must not change these tensors. They are
    cached, because a copy to a GPU makes the CPU wait for all earlier work of the GPU."""
    with torch.inference_mode(False):
        return torch.tensor(pairs, dtype=torch.int64).to(device).view(-1, 2, 1, 1).unbind()


class Philox:
    """Computes the blocks of one key in temporary memory that all calls share."""

    def __init__(self, key: tuple[int, int], device: torch.device) -> None:
        self.device = device
        self.keys = [((key[0] + i * WEYL[0]) & WORD, (key[1] + i * WEYL[1]) & WORD) for i in range(ROUNDS)]
        self._columns = columns(tuple(self.keys), device)
        (self._multipliers,) = columns((MULTIPLIERS,), device)
        self._shape: tuple[int, int] | None = None

    def _allocate(self, shape: tuple[int, int]) -> None:
        if shape == self._shape:
            return
        self._shape = shape
        self._state, *self._products = torch.empty(3, 2, *shape, dtype=torch.int64, device=self.device)
        self._packed = torch.empty(*shape, 2, dtype=torch.int64, device=self.device)

    def blocks(self, c0: Tensor, c1: int, c2: Tensor, c3: Tensor) -> Tensor:
        """Return the blocks with the counters (c0[i], c1, c2[j], c3[i]). All words are in [0, 2^32).

        Shape: c0 and c3 are int64 (R,), and c2 is int64 (C,). The result is int64 (R, C, 2) and is
        overwritten by the next call. Element [i, j, 0] contains word 0 in its low half and word 1 in its high
        half; element [i, j, 1] contains words 2 and 3.

        A round maps (c0, c1, c2, c3) to (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)).
        Once per round, a mask removes the bits above each low half, which the arithmetic shift also sets.
        """
        self._allocate((len(c0), len(c2)))
        first, third = self._outer_rounds(c0.view(-1, 1), c1, c2.view(1, -1), c3.view(-1, 1))
        cpu = self.device.type == "cpu"
        shift, mask = scalar(32, cpu), scalar(WORD, cpu)
        state = self._state
        state0, state2 = state
        spare, other = ((p, *p) for p in self._products)
        for key in self._columns[2:]:
            product, product0, product2 = spare
            torch.mul(state, self._multipliers, out=product)
            torch.bitwise_right_shift(product2, shift, out=state0)
            torch.bitwise_right_shift(product0, shift, out=state2)
            state0.bitwise_xor_(first)
            state2.bitwise_xor_(third)
            state.bitwise_xor_(key)
            state.bitwise_and_(mask)
            first, third = product2, product0
            spare, other = other, spare
        torch.bitwise_or(state0, first.bitwise_left_shift_(shift), out=self._packed[..., 0])
        torch.bitwise_or(state2, third.bitwise_left_shift_(shift), out=self._packed[..., 1])
        return self._packed

    def _outer_rounds(self, c0: Tensor, c1: int, c2: Tensor, c3: Tensor) -> tuple[Tensor, Tensor]:
        """Two rounds on rows (R, 1) and columns (1, C); only the last operations have size R x C. Words 0 and
        2 are written to the state. Words 1 and 3 are returned, with 32 valid low bits."""
        m0, m1 = MULTIPLIERS
        (k0, k1), (l0, l1) = self.keys[:2]
        by_row, by_column = c0 * m0, c2 * m1
        next0 = ((by_column >> 32) & WORD) ^ (c1 ^ k0)
        next2 = ((by_row >> 32) & WORD) ^ c3 ^ k1
        product0, product2 = next0 * m0, next2 * m1
        torch.bitwise_xor(((product2 >> 32) & WORD) ^ l0, by_column & WORD, out=self._state[0])
        torch.bitwise_xor(((product0 >> 32) & WORD) ^ l1, by_row & WORD, out=self._state[1])
        return product2, product0
