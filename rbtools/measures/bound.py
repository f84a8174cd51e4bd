"""Measure: the papers' numeric bounds for a network, computed from its kernels, Jacobians or curvature."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rbtools.lazy import nn, torch
from rbtools.measures import bounds, derivatives, kernel
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value
from rbtools.measures.bounds import Bound
from rbtools.measures.model_constants import CONSTANTS, of_logits
from rbtools.measures.ntk import difference
from rbtools.measures.wci import WCI
from rbtools.registry import param, rare_param

PAPERS = ("robbench", "prbench", "wci")
CLEAN = ("robbench2.clean", "separation.clean", "singular", "spectral", "frobenius")
_OF: dict[str, tuple[str, ...]] = {
    "robbench": ("beta", "activation"),
    "prbench": (),
    "wci": ("probes",),
    "wci1": ("largest", "failure"),
    "wci2": ("largest",),
    "wci3": ("largest",),
}  # options of all theorems of a paper, and of single theorems, apart from inputs
LOWER = (
    "estimated constants are the largest values found on these images at these weights, so they are lower"
    " bounds of the theorem's constants. With the true constants, the bound may be larger (or, because of"
    " beta_theta, smaller), so a bound that is not vacuous is not proven"
)
COROLLARY = (
    "corollary 1: theorem 1 for a convolutional network; its constants, which depend on the filter size kappa"
    " and the number of pixels p, are left out, as for theorem 1. The paper's filters cover kappa of p pixels"
    " in a row; the filters of rescnn have two dimensions, and kappa is the number of their pixels"
)
NOT_UNIT = "theorem 1 holds for fcnn and rescnn with inputs of norm 1; this is another network"


@dataclass(frozen=True, kw_only=True)
class BoundMeasure(Measure):
    """Bounds on errors and generalisation gaps, each with its formula, its inputs, and whether it is vacuous.
    robbench computes theorems 1 and 2 of NAS-RobBench-201 on fresh weights.

    Theorem 1 is sqrt(L^2 y'K^-1 y / N) without its constants, with the joint kernels K_all (robbench1.clean)
    and K~_all (robbench1.robust) and the mean of y'K^-1 y over the classes. Theorem 2 (robbench2.clean,
    .robust) is a lower bound of the smallest eigenvalue, for images scaled to norm 1. The condition of
    theorem 2 on the images is separation.clean and separation.robust. For rescnn, corollary 1 replaces
    theorem 1. For two classes, the kernels are those of the single output in the theorem, the difference of
    the logits. For more classes, the kernels are those of the sum of the logits, and y is one class against
    the other classes. For prbench, the bounds on |R - R_S| are theorems 1 and 2, theorem 1 with the best t0
    (prbench4), and, for training on random points, theorem 5 with proposition 1 (prbench5). For wci, the
    measure computes theorem 4, sqrt(2/lambda) WCI; the divergence of lemma 2 (wci2), with the variance
    that theorem 4 uses for each layer; the sum of lemma 3 with the same variances (wci3); and Catoni's bound
    of lemma 1 with this divergence (wci1).

    For robbench, the measure also computes the norms of fresh weights in lemma 1 (singular), lemmas 2 and 9
    (spectral) and lemma 9 (frobenius), if the theory covers the network.

    PRBench's constants are those of the logits, from which its lemma 3 derives the constants of the loss.
    Constants that are not given are estimated by their largest values on the images, which are lower bounds
    of the constants. The record contains a note about this. `smooth_theta_local` in the record contains the
    mean and the smallest beta_theta^(i) over the single images (eq. 126); beta_theta is the largest. Settings
    of the training run that are not given (images n, updates T, weight lambda of a term as in TRADES) are
    read from the record.
    """

    name = "bound"
    # prbench: constants of the logits; robbench: any order, kappa as the number of taps, norms of weights
    version = 6
    size = 1, 50
    random = True
    needs_record = True

    paper: str = param("robbench", "The paper whose theorems are computed.", choices=PAPERS)
    beta: float = param(0.5, "Weight of the adversarial loss in the joint kernels.", check="fraction")
    activation: str | None = rare_param(
        None,
        "For robbench2: the first activation.  [default: the network's for fcnn and rescnn, else relu]",
        choices=("relu", "leaky", "sigmoid", "tanh", "swish"),
    )
    rho: float | None = rare_param(
        None,
        "For robbench2: L2 radius for images of norm 1.  [default: the largest L2 distance of an"
        " attacked image]",
        check="non-negative",
    )
    lipschitz: float | None = rare_param(
        None, "Lipschitz constant L of the logits as a function of the image.  [default: estimated]"
    )
    lipschitz_theta: float | None = rare_param(
        None, "Lipschitz constant L_theta of the logits as a function of the weights.  [default: estimated]"
    )
    smooth: float | None = rare_param(
        None,
        "Lipschitz constant beta of the derivative of the logits with respect to the weights, as a"
        " function of the image.  [default: estimated]",
    )
    smooth_theta: float | None = rare_param(
        None,
        "Lipschitz constant beta_theta of the derivative of the logits with respect to the weights, as a"
        " function of the weights.  [default: estimated]",
    )
    gamma: float | None = rare_param(
        None,
        "For prbench: L2 radius.  [default: the largest L2 distance of an attacked image]",
        check="non-negative",
    )
    softmax: float | None = rare_param(
        None,
        "Largest distance nu between softmax outputs in the ball.  [default: estimated]",
        check="non-negative",
    )
    examples: int | None = rare_param(
        None, "Number n of training images.  [default: read from the record]", check="positive"
    )
    updates: int | None = rare_param(
        None, "Number T of training updates.  [default: read from the record]", check="non-negative"
    )
    weight: float | None = rare_param(
        None,
        "The lambda in prbench2 and in the theorem of wci.  [default: the weight in the training run;"
        " for wci, the number of training images]",
        check="positive",
    )
    c: float | None = rare_param(None, "Replace T by T^(c psi), as in PRBench's appendix.")
    form: str = rare_param(
        "text",
        "Formula of PRBench's theorem 2: as in the text or as in the appendix.",
        choices=("text", "appendix"),
    )
    probes: int = param(20, "For wci: number of random vectors for the trace.", check="positive")
    largest: float = rare_param(1.0, "For wci's lemma 1: the largest loss C.", check="positive")
    failure: float = rare_param(
        0.05, "For wci's lemma 1: the probability epsilon that the bound is violated.", check="share"
    )
    unit: bool = False  # whether the network is as in the theory, with inputs of norm 1
    kappa: int = 0  # the number of pixels of the largest filter, in networks of the space rescnn

    @property
    def weights(self) -> str:  # type: ignore[override]
        return "init" if self.paper == "robbench" else "trained"

    @property
    def attacks(self) -> int:
        return 2 if self.paper == "robbench" else 1

    def filled(self, record: Mapping[str, Any], images: int) -> BoundMeasure:
        if self.paper == "robbench":
            return self._of_theory(record.get("arch"))
        train = _mapping(record.get("train"))
        config = _mapping(train.get("config"))
        settings: dict[str, Any] = {"examples": images}
        epochs = train.get("stopped_after", train.get("epochs"))
        if _is_count(epochs) and _is_count(config.get("batch_size")):
            settings["updates"] = epochs * -(-images // config["batch_size"])
        weight: Any = config.get("lambda")
        if self.paper == "prbench" and (_is_count(weight) or (type(weight) is float and weight > 0)):
            settings["weight"] = float(weight)
        return replace(self, **{key: value for key, value in settings.items() if getattr(self, key) is None})

    def _of_theory(self, arch: object) -> BoundMeasure:
        arch = _mapping(arch)
        theory = arch.get("space") in ("fcnn", "rescnn")
        first = re.match("[a-z]+", str(arch.get("str"))) if theory else None
        activation = self.activation or ("relu" if first is None else first[0])
        filters = re.findall("[0-9]+", str(arch.get("str"))) if arch.get("space") == "rescnn" else []
        unit = theory and arch.get("inputs") == "unit"
        return replace(self, activation=activation, unit=unit, kappa=max(map(int, filters), default=0) ** 2)

    def settings(self, value: str) -> dict[str, Any]:
        """The options on which the theorems of this paper depend. The field `inputs` is stored separately."""
        settings: dict[str, Any] = super().settings(value)
        names: tuple[str, ...] = ("paper", *_OF[self.paper], *_OF.get(value, ()))
        return {name: settings[name] for name in names}

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        if self.paper == "wci":
            return WCI(probes=self.probes)(model, batch)
        return self._robbench(model, batch) if self.paper == "robbench" else of_logits(model, batch)

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        """The worst bound over the batches, or the bound with the largest constants of all batches."""
        if self.paper == "wci":
            return self._from_wci(results, sizes)
        if self.paper == "prbench":
            local = [value for result in results for value in result["smooth_theta_local"]]
            names = results[0].keys() - {"smooth_theta_local"}
            return self._from_constants({key: max(result[key] for result in results) for key in names}, local)
        each = {name: [bounds.Bound(**result[name]) for result in results] for name in results[0]}
        notes = [*([] if self.unit else [NOT_UNIT]), *([COROLLARY] if self.kappa else [])]
        note = {"note": "; ".join(notes)} if notes else {}
        return [
            _value(
                name,
                _least(of_batches) if name.startswith("robbench2") else _greatest(of_batches),
                (),
                note if name.startswith("robbench1") else {},
            )
            for name, of_batches in each.items()
        ]

    def _robbench(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        images = [batch.images, batch.attacked, batch.attacked_twice]
        with torch.no_grad():
            outputs = model(batch.images).shape[1]
        scalar = difference(model, batch) if outputs == 2 else model
        gram = kernel.gram(scalar, torch.cat(images)).cpu().numpy()
        n, b = len(batch), self.beta
        depth = len(derivatives.layers(model))
        labels = batch.labels.cpu()
        ones = torch.tensor([1]) if outputs == 2 else labels.unique()  # the classes whose label is +1
        targets = labels[:, None].eq(ones[None]).double().numpy() * 2 - 1
        result: dict[str, Bound] = {}
        for name, at in (("clean", 0), ("robust", n)):
            first, second = slice(at, at + n), slice(at + n, at + 2 * n)
            cross = gram[first, second]
            joint = (1 - b) ** 2 * gram[first, first] + b * (1 - b) * (cross + cross.T)
            bound = bounds.robbench1(joint + b**2 * gram[second, second], targets, depth)
            if self.kappa:
                sizes = {"kappa": self.kappa, "p": batch.images[0, 0].numel()}
                bound = replace(bound, inputs={**bound.inputs, **sizes})
            result[f"robbench1.{name}"] = bound
        flat, attacked = (
            torch.nn.functional.normalize(part.flatten(1).double()) for part in (batch.images, batch.attacked)
        )
        rho = float((attacked - flat).norm(dim=1).max()) if self.rho is None else self.rho
        for name, radius in (("clean", 0.0), ("robust", rho)):
            activation = self.activation or "relu"
            result[f"robbench2.{name}"] = bounds.robbench2(flat.cpu().numpy(), radius, activation)
            result[f"separation.{name}"] = bounds.separation(flat.cpu().numpy(), radius)
        if self.unit:
            result |= self._norms(model, batch.images[0, 0].numel())
        return {name: asdict(bound) for name, bound in result.items()}

    def _norms(self, model: nn.Module, pixels: int) -> dict[str, Bound]:
        weights = derivatives.weights_of(model, list(derivatives.layers(model).values())).values()
        *hidden, last = (weight.flatten(1).cpu().numpy() for weight in weights)
        return bounds.robbench_lemmas(hidden, last, pixels if self.kappa else 0)

    def _from_constants(self, largest: dict[str, float], local: Sequence[float]) -> list[Value]:
        options = {name: getattr(self, name) for name in (*CONSTANTS, "gamma", "softmax")}
        guessed = tuple(name for name, value in options.items() if value is None)
        used = {name: largest[name] if value is None else value for name, value in options.items()}
        constants = bounds.Constants(**{name: used[name] for name in CONSTANTS})
        more: dict[str, Any] = {"constants": {name: used[name] for name in CONSTANTS}}
        if self.smooth_theta is None:
            more["smooth_theta_local"] = {"mean": math.fsum(local) / len(local), "least": min(local)}
        if self.examples is None or self.updates is None:
            reason = "the record does not describe a training run: add --examples N and --updates T"
            return [_none(name, reason) for name in ("prbench1", "prbench2", "prbench4", "prbench5")]
        about = used["gamma"], self.examples, self.updates
        of_first = [key for key in guessed if key != "softmax"]
        values = [
            _value("prbench1", bounds.prbench1(constants, *about, self.c), of_first, more),
            _value("prbench4", bounds.prbench4(constants, *about, self.c), of_first, more),
        ]
        of_weights = [key for key in guessed if key.endswith("_theta")]
        fifth = bounds.prbench5(constants, self.examples, self.updates, self.c)
        if self.weight is None:
            second = _none("prbench2", "the training run has no weight lambda: add --weight")
        else:
            extra: dict[str, Any] = {"weight": self.weight, "c": self.c, "form": self.form}
            bound = bounds.prbench2(constants, *about, nu=used["softmax"], **extra)
            second = _value("prbench2", bound, guessed, more)
        return [values[0], second, values[1], _value("prbench5", fifth, of_weights, more)]

    def _from_wci(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        index: Any = WCI(probes=self.probes).values(results, sizes)[0]
        temperature = self.weight if self.weight is not None else self.examples
        if temperature is None:
            return [_none("wci4", "lambda is not known: add --weight")]
        temperature = float(temperature)
        layers = list(index.more["layers"].values())
        norms, traces = ([layer[key] for layer in layers] for key in ("norm2", "trace"))
        variances = bounds.wci_variances(norms, traces, temperature)
        second = bounds.wci2(norms, variances, temperature, self.largest)
        computed = {"wci4": bounds.wci4(float(index.value), temperature), "wci2": second}
        computed["wci3"] = bounds.wci3(traces, variances, self.largest)
        if self.examples is not None:
            extra = {"largest": self.largest, "failure": self.failure}
            computed["wci1"] = bounds.wci1(second.value or 0.0, temperature, self.examples, **extra)
        names = index.more["layers"]
        sigmas = {n: v for n, v in zip(names, variances, strict=True) if math.isfinite(v)}
        more = {"wci2": {"sigma2": sigmas, "negative": index.more["negative"]}}
        # Each is a constant plus a multiple of the index: sqrt(lambda / 2) WCI is the divergence.
        slope = {"wci4": (2 / temperature) ** 0.5, "wci2": (temperature / 2) ** 0.5}
        slope["wci1"] = slope["wci3"] = slope["wci2"] / temperature
        values = [_value(name, bound, ("WCI",), more.get(name)) for name, bound in computed.items()]
        if index.se is None:
            return values
        return [replace(estimate, se=index.se * slope[estimate.name], over=index.over) for estimate in values]


def _value(name: str, bound: Bound, estimated: Sequence[str], more: Mapping[str, Any] | None = None) -> Value:
    fields: dict[str, Any] = {"formula": bound.formula, "inputs": dict(bound.inputs), **(more or {})}
    fields["vacuous"] = bound.vacuous
    if estimated:
        fields["estimated"] = list(estimated)
        if not name.startswith("wci"):
            fields["note"] = LOWER
    if bound.reason is not None:
        fields["reason"] = bound.reason
    return Value(name, bound.value, more=fields, clean=name in CLEAN)


def _greatest(found: Sequence[Bound]) -> Bound:
    """The bound with the largest value; a bound without a value is the worst case."""
    return max(found, key=lambda bound: math.inf if bound.value is None else bound.value)


def _least(found: Sequence[Bound]) -> Bound:
    return min(found, key=lambda bound: -math.inf if bound.value is None else bound.value)


def _none(name: str, reason: str) -> Value:
    return Value(name, None, more={"reason": reason})


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_count(value: object) -> bool:
    """Whether a field of the record is a count that is too small to make a bound overflow."""
    return type(value) is int and 0 < value < 2**53
