"""The shortest move from a point of the box onto a hyperplane, which FAB computes in every step.

Imports torch: import it inside functions only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 50


def shortest_way(points: Tensor, normal: Tensor, value: Tensor, norm: str) -> Tensor:
    """The smallest move d in `norm` with value + <normal, d> = 0 and points + d in [0, 1].

    Where the box does not reach the hyperplane every coordinate goes to its wall. Coordinates whose
    normal is zero stay.

    Shape: points and normal (N, d), value (N,); the result is (N, d).

    A coordinate moves by min(t * speed, room) in the direction that lowers |value|; speed is 1 in linf
    and |normal| in l2. What that gains is concave and piecewise linear in t, so Newton's method from
    t = 0 comes from below and ends on the solution after as many rounds as t crosses kinks.
    """
    slope = normal.abs()
    direction = normal.sign().mul_(-value.sign()[:, None])
    room = 0.5 - direction * (
        points - 0.5
    )  # distance to the border of the box; comparisons would cost three times as much
    speed = slope if norm == "l2" else None
    rate = slope if speed is None else slope.square()
    wanted = value.abs()
    t = torch.zeros_like(wanted)
    gain, pace, move = t, rate.sum(1), torch.zeros_like(room)
    for _ in range(_ROUNDS):
        short = wanted - gain
        ahead = (short > 1e-6 * wanted) & (pace > 0)
        if not ahead.any():
            break
        t = torch.where(ahead, t + short / pace.clamp_min(torch.finfo(pace.dtype).tiny), t)
        reach = t[:, None] if speed is None else t[:, None] * speed
        move = torch.minimum(room, reach)
        gain = (slope * move).sum(1)
        pace = torch.where(room > reach, rate, 0.0).sum(1)
    return direction.mul_(move)
