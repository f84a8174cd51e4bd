"""Plain float32 loops of attacks and trainings, as one would write them: what bench/gpu.py compares with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS, STEP = 8 / 255, 2 / 255


def plain_pgd(model: nn.Module, images: Tensor, labels: Tensor, steps: int, *, zero: bool = False) -> Tensor:
    """The last iterate of PGD on the cross-entropy."""
    start = torch.zeros_like(images) if zero else torch.empty_like(images).uniform_(-EPS, EPS)
    size = 2.5 * EPS / steps if zero else STEP
    x = (images + start).clamp(0, 1)
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)
        x = torch.min(torch.max(x.detach() + size * gradient.sign(), images - EPS), images + EPS).clamp(0, 1)
    return x.detach()


def plain_kl(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> Tensor:
    """The last iterate of an ascent of KL(p(x) || p(x'))."""
    with torch.no_grad():
        p = model(images).softmax(1)
    x = images + 0.001 * torch.randn_like(images)
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        loss = F.kl_div(model(x).log_softmax(1), p, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, x)
        x = torch.min(torch.max(x.detach() + STEP * gradient.sign(), images - EPS), images + EPS).clamp(0, 1)
    return x.detach()


def plain_deepest(model: nn.Module, images: Tensor, labels: Tensor, sizes: Any) -> Tensor:
    """AT-PR's candidate: of several attacks the point from which the way back is longest."""
    best, depth = images.clone(), torch.full((len(images),), -1.0, device=images.device)
    for _ in range(sizes.candidates):
        size = torch.empty(len(images), 1, 1, 1, device=images.device).uniform_(1 / 255, 4 / 255)
        least = min(5, sizes.most)
        count = torch.randint(least, sizes.most + 1, (len(images), 1, 1, 1), device=images.device)
        x = (images + torch.empty_like(images).uniform_(-EPS, EPS)).clamp(0, 1)
        for step in range(sizes.most):
            moved = _along(model, x, labels, size)
            moved = torch.min(torch.max(moved, images - EPS), images + EPS).clamp(0, 1)
            x = torch.where(step < count, moved, x)
        walked = x.clone()
        with torch.no_grad():
            wrong = model(walked).argmax(1) != labels
        fooled = wrong.clone()
        for _ in range(sizes.walk):
            walked = torch.where(wrong.view(-1, 1, 1, 1), _along(model, walked, labels, -size), walked).clamp(
                0, 1
            )
            with torch.no_grad():
                wrong = wrong & (model(walked).argmax(1) != labels)
        deep = torch.where(fooled, (walked - x).abs().amax((1, 2, 3)), torch.full_like(depth, -0.5))
        better = deep > depth
        best[better], depth[better] = x[better], deep[better]
    return best


def _along(model: nn.Module, x: Tensor, labels: Tensor, size: Tensor) -> Tensor:
    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), labels, reduction="sum"), x)
    return x.detach() + size * gradient.sign()


def plain_loss(method: str, model: nn.Module, images: Tensor, labels: Tensor, sizes: Any) -> Tensor:
    """The loss of a batch by that method."""
    if method == "cvar":
        noise = [
            (images + torch.empty_like(images).uniform_(-EPS, EPS)).clamp(0, 1) for _ in range(sizes.noises)
        ]
        losses = torch.stack([F.cross_entropy(model(x), labels, reduction="none") for x in noise])
        t = 1 - (1 - (losses.detach() >= 1).float().mean(0) / 0.5)
        return ((losses - t).relu().mean(0) / 0.5).mean()
    model.eval()
    if method == "trades":
        x = plain_kl(model, images, labels, sizes.steps)
    elif method == "pgd":
        x = plain_pgd(model, images, labels, sizes.steps)
    else:
        x = plain_deepest(model, images, labels, sizes)
    model.train()
    if method != "trades":
        return F.cross_entropy(model(x), labels)
    clean = model(images)
    return F.cross_entropy(clean, labels) + 6 * F.kl_div(
        model(x).log_softmax(1), clean.log_softmax(1), reduction="batchmean", log_target=True
    )
