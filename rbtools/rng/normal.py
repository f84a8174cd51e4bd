"""Box-Muller in float64 with exactly rounded operations only, so that all machines compute the same bits.

The results of `torch.log`, `sin` and `cos` differ in the last bit between libraries (MKL, SLEEF, CUDA). Sums,
products, quotients and square roots are exactly rounded on every machine. Each operation is called
separately, so no compiler can fuse two operations. This costs about 5 ns per value more than the functions of
the libraries.
"""

from __future__ import annotations

import math

from rbtools.lazy import Tensor, torch
from rbtools.rng.philox import WORD, scalar

# ln m = 2 artanh(s), s = (m - 1)/(m + 1); for m in [sqrt(1/2), sqrt(2)), |s| < 0.1716 and the first
# omitted term is 1e-12 of the sum; for the sine on [-pi/4, pi/4] it is 7e-12. A float32 has 6e-8.
LOG_SERIES = [2 / (2 * i + 1) for i in range(7)]
SIN_SERIES = [(-1) ** i / math.factorial(2 * i + 1) for i in range(6)]

SIGN = -(1 << 63)
QUARTER = 1 << 30
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # the float64 sqrt(1/2): exponents are counted from there

# Pairs processed at once on a CPU: temporaries of 128 KiB, which the allocator keeps instead of returning
# their pages (17 ns per value; 26 in pieces of 65536 pairs, 31 in pieces of 8192).
CPU_PIECE = 1 << 14


def normal_values(packed: Tensor) -> Tensor:
    """Standard normal values, float32 (R, 4 C), from pairs of words, int64 (R, C, 2) of Philox.blocks."""
    values = torch.empty(packed.numel(), 2, dtype=torch.float32, device=packed.device)
    piece = CPU_PIECE * torch.get_num_threads() if packed.device.type == "cpu" else max(1, len(values))
    for pairs, target in zip(packed.view(-1).split(piece), values.split(piece), strict=True):
        target[:, 0], target[:, 1] = normal_pairs(pairs)
    return values.view(len(packed), -1)


def normal_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Converts int64 (...), with word a in the low half and word b in the high half, to two independent
    standard normal values, both float64 (...).

    Let u = (a + 1/2) 2^-32, and let phi be an angle that b distributes evenly over the circle. The two values
    are sqrt(-2 ln u) cos(phi) and sqrt(-2 ln u) sin(phi), with absolute values below 6.77. The lower 30 bits
    of b determine phi in the first quadrant, as pi/4 + theta. Then sqrt(2) cos(phi) = cos(theta) - sin(theta)
    and sqrt(2) sin(phi) = cos(theta) + sin(theta). The upper two bits of b are the signs.
    """
    cpu = packed.device.type == "cpu"
    radius = _minus_log(packed & scalar(WORD, cpu), cpu).sqrt_()
    sine, cosine = _sin_cos((packed >> scalar(32, cpu)).bitwise_and_(scalar(QUARTER - 1, cpu)), cpu)
    first = (cosine - sine).mul_(radius)
    second = cosine.add_(sine).mul_(radius)
    first.view(torch.int64).bitwise_xor_(packed & scalar(SIGN, cpu))
    second.view(torch.int64).bitwise_xor_((packed << scalar(1, cpu)).bitwise_and_(scalar(SIGN, cpu)))
    return first, second


def _minus_log(words: Tensor, cpu: bool) -> Tensor:
    """Returns -ln((words + 1/2) 2^-32), which is at least 1.1e-10."""
    value = words.to(torch.float64).add_(scalar(0.5, cpu))
    bits = value.view(torch.int64)
    exponent = (bits - scalar(SQRT_HALF_BITS, cpu)).bitwise_right_shift_(scalar(52, cpu))
    bits.sub_(exponent << scalar(52, cpu))  # value is now its mantissa in [sqrt(1/2), sqrt(2))
    ratio = (value - scalar(1.0, cpu)).div_(value.add_(scalar(1.0, cpu)))
    log = _series(ratio * ratio, LOG_SERIES, cpu).mul_(ratio)
    scaled = exponent.sub_(scalar(32, cpu)).to(torch.float64).mul_(scalar(math.log(2), cpu))
    return log.add_(scaled).neg_()


def _sin_cos(steps: Tensor, cpu: bool) -> tuple[Tensor, Tensor]:
    """The sine and cosine of theta = (steps + 1/2 - 2^29) 2^-30 pi/2, for steps in [0, 2^30)."""
    theta = (
        steps.to(torch.float64).sub_(scalar(QUARTER / 2 - 0.5, cpu)).mul_(scalar(math.pi / 2 / QUARTER, cpu))
    )
    sine = _series(theta * theta, SIN_SERIES, cpu).mul_(theta)
    return sine, (sine * sine).neg_().add_(scalar(1.0, cpu)).sqrt_()


def _series(x: Tensor, coefficients: list[float], cpu: bool) -> Tensor:
    """The sum of coefficients[i] x^i by Horner's rule. Each product and each sum is rounded separately."""
    *lower, last = coefficients
    total = x * scalar(last, cpu)
    for coefficient in reversed(lower[1:]):
        total.add_(scalar(coefficient, cpu)).mul_(x)
    return total.add_(scalar(lower[0], cpu))
