"""The constants in PRBench's assumption 1, against closed forms and derivatives that are written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rbtools.measures import derivatives
from rbtools.measures.model_constants import of_logits
from tests.measures.test_bounds import batch_of


def test_constants_of_a_linear_model():
    """Logits W x: the Jacobian is W for the image and x' (x) I for the weights, and has no derivative."""
    torch.manual_seed(0)
    linear, batch = nn.Sequential(nn.Flatten(), nn.Linear(6, 2, bias=False)).eval(), batch_of()
    found = of_logits(linear, batch)
    weight = linear[1].weight.detach()
    clean, moved = batch.images.flatten(1), batch.attacked.flatten(1)
    outputs = [(one @ weight.T).softmax(1) for one in (clean, moved)]
    expected = {
        "lipschitz": np.linalg.norm(weight.numpy(), 2),
        "lipschitz_theta": max(float(one.norm(dim=1).max()) for one in (clean, moved)),
        "smooth": 1.0,
        "smooth_theta": 0.0,
        "gamma": float((moved - clean).norm(dim=1).max()),
        "softmax": float((outputs[1] - outputs[0]).norm(dim=1).max()),
    }
    local = found.pop("smooth_theta_local")
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5) and local == pytest.approx([0] * 4, abs=1e-5)
    # The gradient of the loss, which lemma 3 bounds by twice this, is smaller.
    gradients = [
        derivatives.gradient(linear, x[None], y[None], 1) for x, y in zip(moved, batch.labels, strict=True)
    ]
    steepest = max(float(derivatives.flat(one).norm()) for one in gradients)
    assert steepest < 0.9 * found["lipschitz_theta"]


def test_constants_are_those_of_written_out_jacobians():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    batch = batch_of(n=2, classes=3)
    found = of_logits(model, batch)
    weights = {name: value.detach().double() for name, value in model.named_parameters()}

    def logits(weights, image):
        return torch.func.functional_call(model, weights, (image[None],))[0]

    def jacobian(image):
        of_each = torch.func.jacrev(logits)(weights, image.double())
        return torch.cat([one.flatten(1) for one in of_each.values()], dim=1).numpy()

    pairs = list(zip(batch.images, batch.attacked, strict=True))
    points = [image for pair in pairs for image in pair]
    slopes = [torch.func.jacrev(logits, 1)(weights, one.double()).flatten(1).numpy() for one in points]
    assert found["lipschitz"] == pytest.approx(max(np.linalg.norm(one, 2) for one in slopes), rel=1e-4)
    steepest = max(np.linalg.norm(jacobian(one), 2) for one in points)
    assert found["lipschitz_theta"] == pytest.approx(steepest, rel=1e-4)
    changes = [np.linalg.norm(jacobian(x) - jacobian(z), 2) / float((x - z).norm()) for x, z in pairs]
    assert found["smooth"] == pytest.approx(max(changes), rel=1e-3)
    # The norm of the second derivative, by many starts of power iterations on the written-out tensor.
    for image, local in zip(batch.attacked, found["smooth_theta_local"], strict=True):
        second = torch.func.jacrev(torch.func.jacrev(logits))(weights, image.double())
        rows = [
            [part.flatten(1).reshape(3, weights[a].numel(), -1) for part in second[a].values()]
            for a in second
        ]
        tensor = torch.cat([torch.cat(row, dim=2) for row in rows], dim=1).numpy()
        norm = max(tensor_norm(tensor, seed) for seed in range(20))
        assert 0.7 * norm < local < norm * (1 + 1e-4)


def tensor_norm(tensor, seed):
    """A local maximum of w . T[u, v] over unit vectors."""
    random = np.random.default_rng(seed)
    w, v = random.normal(size=tensor.shape[0]), random.normal(size=tensor.shape[2])
    for _ in range(60):
        u = np.einsum("kij,k,j->i", tensor, w, v)
        u /= np.linalg.norm(u)
        w = np.einsum("kij,i,j->k", tensor, u, v / np.linalg.norm(v))
        value, v, w = np.linalg.norm(w), u, w / np.linalg.norm(w)
    return value
