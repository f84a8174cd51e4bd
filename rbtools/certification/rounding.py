"""Bounds of the rounding errors of a float32 network, and of its bounds as computed here.

A certificate is for the network as it runs, in float32, and not for the function in real numbers that its
weights stand for. The standard model of rounding (Higham 2002, Accuracy and Stability of Numerical
Algorithms, chapters 2 and 3) bounds the difference: a sum of k products, in any order, with or without
fused multiplication, has an error of at most gamma_k times the sum of the absolute products, where gamma_k is
k u / (1 - k u) and u = 2^-24. The bounds treat the error of each operation as one more perturbation of its
outputs. It does not cover algorithms that do not sum products, such as Winograd's for convolutions, nor TF32.

The bounds themselves are computed in float64 (intervals) and float32 (backward coefficients). Propagating
coefficients backwards through an operation is a sum of products too, and its error is bounded in the same
way. So k counts the products of both directions, and one perturbation covers both.
"""

from __future__ import annotations

UNIT = 2.0**-24
SAFETY = 1.02  # factor for terms of second order
UNDERFLOW = 1e-30  # covers products that are rounded to zero or to subnormal numbers
_ROUNDINGS = 24  # operations around a sum: a bias, BatchNorm after it, a sum over the operations that use it
# Images of a ball are rounded to float32 themselves, and so are the sums of squares that decide whether an
# image is in an L2 ball.
OF_PIXEL = 2.0**-23
OF_DISTANCE = 1e-6


def gamma(forward: int, backward: int) -> float:
    """The relative error of sums with these numbers of products in the two directions, and of the operations
    around them."""
    return SAFETY * (forward + backward + _ROUNDINGS) * UNIT
