"""Evidence for a robust accuracy: adversarial images that are saved small and judged by one forward pass."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.evaluation.base import Outcome
from rbtools.execution import device
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, OtherCheckpoint, resolve_inputs, with_file
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import adv_file
from rbtools.lazy import nn, np, torch
from rbtools.records import consistency, metric_name
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.datasets.base import Dataset
    from rbtools.evaluation.tasks import AttackOutput

ENDING = ".adv"
_TIE = 1e-4  # of the largest logit: a smaller margin may turn between two processors
_CHUNK = 256
Logits = Callable[["Tensor"], "Tensor"]


class EvidenceSaver:
    """Quantises the adversarial images of an attack, batch by batch; `finish` writes FILE.adv.

    A quantised image has to be adversarial itself: for each image the coarsest of a few differences is kept
    that the network, in float32, still misclassifies with a margin. An image that none of them breaks is kept
    exactly.
    `about` are the header's fields that identify the claim.
    """

    def __init__(self, path: Path, dataset: Dataset, logits: Logits, about: Mapping[str, Any]) -> None:
        self.path, self.dataset, self.logits, self.about = path, dataset, logits, dict(about)
        self._aside = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  (`drop` closes it)
        self._n = self._survived = self._exact = 0
        self._scale = Scale(float(about["eps"]), str(about["norm"]), dataset.images[0].numel())

    def add(self, output: AttackOutput, ids: Tensor, outcome: Outcome) -> None:
        """Add the outcome of the next examples."""
        assert outcome.images is not None
        clean, labels = pixels(self.dataset.images[ids]), self.dataset.labels[ids]
        survived = output.still_correct(outcome.values).cpu()
        difference = (outcome.images.cpu() - clean).flatten(1)
        difference[survived] = 0
        forms = torch.full((len(ids),), adv_file.CLEAN, dtype=torch.uint8)
        levels = torch.zeros_like(difference, dtype=torch.int8)
        left = difference.ne(0).any(1)
        for form, candidate, finest in self._scale.candidates(difference):
            rows = left.nonzero()[:, 0]
            moved = self._scale.moved(clean[rows], self._scale.difference(form, candidate[rows]))
            margin = margins(self.logits, moved, labels[rows]) if len(rows) else torch.zeros(0)
            # Of the finest differences less is asked: those that are exact have no more either.
            broken = rows[margin < (0 if finest else -_TIE)]
            forms[broken], levels[broken] = form, candidate[broken]
            left[broken] = False
        forms[left] = adv_file.EXACT
        self._n, self._survived = self._n + len(ids), self._survived + int(survived.sum())
        self._exact += int(left.sum())
        arrays = (ids.cpu().numpy(), forms.numpy(), levels.numpy(), difference.numpy())
        self._aside.write(adv_file.packed(*arrays, self._scale.coarse))

    def finish(self) -> None:
        """Write the file."""
        self._aside.seek(0)
        scale = {"step": self._scale.step, "coarse": self._scale.coarse}
        counts = {"n": self._n, "value": self._survived / self._n, "exact": self._exact}
        adv_file.write(self.path, {**self.about, **scale, **counts}, self._aside)

    def drop(self) -> None:
        """Delete the temporary file."""
        self._aside.close()


class Scale:
    """The levels of a quantised difference in a ball: `step` on [0, 1], and `coarse` levels of the coarsest.

    In L-infinity with a distance of 1/255 or more the levels are those of 8-bit images. With less they divide
    the distance, and differences are cut towards 0. In L2 a channel of P moves by eps / sqrt(P), which is 8
    levels: the coarsest differences are the signs of the channels that move much, then come multiples of a
    level, shrunk until they are inside the ball. L1 is the same with 127 levels in eps.
    """

    MUCH = (0.6, 0.3)  # of an image's root mean square; 0.6 turns a normal distribution the least
    MULTIPLES = (10, 6, 3, 1)
    SHRUNK = (1.0, 0.9993, 0.997, 0.993, 0.98, 0.97, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8)

    def __init__(self, eps: float, norm: str, channels: int) -> None:
        self.eps, self.norm = eps, norm
        self.eight_bit = norm == "linf" and eps * 255 >= 1 - 1e-6
        self.step = 1 / 255 if self.eight_bit else eps / 127
        if norm == "l2":
            self.step = min(self.step, eps / (8 * math.sqrt(channels)))
        self.coarse = min(math.floor(eps / self.step + 1e-6), 127) if norm == "linf" else 0

    def candidates(self, difference: Tensor) -> Iterator[tuple[int, Tensor, bool]]:
        """Forms and levels int8 (n, P) inside the ball, the coarsest first; whether none is finer."""
        if self.coarse:
            far = difference.abs() > self.eps / 2
            yield adv_file.COARSE, (difference.sign() * far * self.coarse).to(torch.int8), False
        scaled = difference / self.step
        if self.norm != "linf":
            much = difference.square().mean(1, keepdim=True).sqrt()
            for share in self.MUCH:
                signs = difference.sign() * (difference.abs() > share * much)
                yield adv_file.COARSE, signs.to(torch.int8), False
            size = torch.linalg.vector_norm(difference, 2 if self.norm == "l2" else 1, dim=1, keepdim=True)
            whole = scaled * (self.eps / size.clamp_min(1e-12))  # an attack may have ended inside the ball
            for multiple in self.MULTIPLES:
                yield adv_file.LEVELS, self._multiples(whole, multiple), False
            yield adv_file.LEVELS, self._multiples(scaled, 1), True
        elif self.eight_bit:
            yield adv_file.LEVELS, scaled.round().clamp(-self.coarse, self.coarse).to(torch.int8), False
            away = torch.where(scaled > 0, scaled.ceil(), scaled.floor())
            yield adv_file.LEVELS, away.clamp(-self.coarse, self.coarse).to(torch.int8), True
        else:
            cut = (scaled + scaled.sign() * 1e-4).trunc().clamp(-127, 127)
            yield adv_file.LEVELS, cut.to(torch.int8), True

    def _multiples(self, scaled: Tensor, multiple: int) -> Tensor:
        """Levels int8 (n, P) that are multiples of one, inside the ball; 0 for an image where none are."""
        order, most = (2 if self.norm == "l2" else 1), 127 // multiple * multiple
        levels = torch.zeros_like(scaled)
        left = torch.ones(len(scaled), dtype=torch.bool)
        for factor in self.SHRUNK:
            some = (factor * scaled / multiple).round().mul(multiple).clamp(-most, most)
            inside = torch.linalg.vector_norm(some.double(), order, dim=1) * self.step <= self.eps
            levels[left & inside] = some[left & inside]
            left &= ~inside
        return levels.to(torch.int8)

    def difference(self, form: int, levels: Tensor) -> Tensor:
        """Differences float32 (n, P) of levels, as a file gives them back."""
        if form == adv_file.COARSE and not self.coarse:
            return torch.from_numpy(adv_file.spread(levels.numpy(), self.eps, self.norm))
        return levels.float() * self.step

    @staticmethod
    def moved(clean: Tensor, difference: Tensor) -> Tensor:
        """The images (n, C, H, W) inside the box."""
        return (clean + difference.view_as(clean)).clamp(0, 1)


def margins(logits: Logits, images: Tensor, labels: Tensor) -> Tensor:
    """For each image (n,) the logit of its label minus the largest other one, in units of the largest logit:
    below 0 it is misclassified."""
    outputs = torch.cat([logits(part).cpu() for part in images.split(_CHUNK)])
    own = outputs.gather(1, labels[:, None])[:, 0]
    others = outputs.scatter(1, labels[:, None], float("-inf")).amax(1)
    return (own - others) / outputs.abs().amax(1).clamp_min(1e-12)


def logits_of(model: nn.Module, place: torch.device) -> Logits:
    """The network as a function of images on any device."""

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = model(images.to(place)).float()
        return outputs

    return logits


@contextlib.contextmanager
def evidence_saver(
    path: str, dataset: Dataset, logits: Logits, about: Mapping[str, Any]
) -> Iterator[EvidenceSaver]:
    """An EvidenceSaver whose file is written if the block succeeds. Raises RbError where it cannot be."""
    try:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        saver = EvidenceSaver(file, dataset, logits, about)
        try:
            yield saver
            saver.finish()
        finally:
            saver.drop()
    except OSError as error:
        raise RbError(
            f"The adversarial images cannot be written to {path}: {error.strerror or error}. Name another"
            " file with --save-adv."
        ) from error


def judge_evidence(record: dict[str, Any], path: str, run: Run) -> dict[str, Any]:
    """The verdict on the claim of a file of adversarial images about the record's model, as in `verify`.

    Every image has to be inside the ball and the box, and every one that counts as broken has to be
    misclassified by this checkpoint, in one forward pass; then the accuracy is at most `measured`, whatever
    the attack was. A file that does not hold what it claims is refused: `verdict` is differs, and `reason`
    says why. Raises RbError for a file that is none, and for a record whose model or data are missing.
    """
    header = adv_file.header_of(path)
    inputs = resolve_inputs(record, run, str(header.get("split", "test")))
    claim = _claim(inputs.record, header)
    claimed = claim.get("value") if _numbers(claim.get("value")) else None
    base = {"metric": str(header.get("metric")), "claimed": claimed, "n": header["n"]}
    base |= {"eps": header.get("eps"), "norm": header.get("norm")}
    problem = _of_another(inputs, header, claim)
    if problem is None:
        broken, ties, problem = _judged(inputs, header, path, run)
        base["measured"] = 1 - broken / header["n"]
        off = abs(base["measured"] - float(claim["value"])) * header["n"]
        if problem is None and off > ties + 1e-3:
            problem = (
                f"the images show an accuracy of {base['measured']:.6g} at most, not the one that is claimed"
            )
    if problem is not None:
        return {"verdict": "differs", **base, "reason": problem}
    return {
        "verdict": "match",
        **base,
        "test": "saved images: in ball and box, misclassified in one forward pass",
    }


def _claim(record: Mapping[str, Any], header: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record's entry that the file is about; without one, the file's own claim."""
    entries = [entry for entry in record.get("evals") or () if entry.get("metric") == header.get("metric")]
    return entries[-1] if entries else header


def _of_another(inputs: Inputs, header: Mapping[str, Any], claim: Mapping[str, Any]) -> str | None:
    """Why the file says nothing about this claim; None if it does."""
    name = header.get("metric")
    if not isinstance(name, str) or (claim is header and metric_name.parse(name).over != "eps"):
        return f"its metric is {name}, which is no accuracy under an attack at a distance"
    split = metric_name.parse(name).split
    if claim.get("split", split) != split:
        return f"{name} is of the {split} images by its name, and of {claim['split']} by the claim"
    facts: dict[str, Any] = {
        "checkpoint": inputs.checkpoint,
        "data": inputs.data.fingerprint,
        "split": split,
        **{fact: claim.get(fact) for fact in ("eps", "norm", "n", "value")},
    }
    for fact, value in facts.items():
        there = header.get(fact, "test" if fact == "split" else None)
        numeric = isinstance(there, int | float) and isinstance(value, int | float)
        same = math.isclose(there, value) if numeric else there == value
        if not same:
            return f"its {fact} is {there}, and that of the claim {value}"
    if not _numbers(claim.get("value"), 0):
        return "the claim has no value"
    said = ("attack", "eps", "norm", "steps", "n", "value")  # and nothing that would excuse a difference
    return consistency.contradicts_name(name, {fact: header[fact] for fact in said if fact in header})


def _numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _judged(inputs: Inputs, header: Mapping[str, Any], path: str, run: Run) -> tuple[int, int, str | None]:
    """How many images are misclassified, how many clean ones are near a tie, and why to refuse the file."""
    dataset = inputs.data.load()
    wanted = inputs.data.order(dataset.labels)
    if header["n"] > len(wanted):
        return 0, 0, f"it claims {header['n']} images, and the split has {len(wanted)}"
    broken = ties = start = 0
    with device.taken(run, inputs.threads()) as place:
        logits = logits_of(inputs.load_model(place), place)
        for block in adv_file.blocks(path, inputs.data.about.shape, len(wanted)):
            run.report.check_cancelled()
            ids = wanted[start : start + len(block.ids)]
            if not np.array_equal(block.ids, ids.numpy()):
                return broken, ties, "its images are not those of the evaluation, each once and in its order"
            start += len(ids)
            clean, labels = pixels(dataset.images[ids]), dataset.labels[ids]
            difference = torch.from_numpy(block.differences)
            if (problem := _outside(difference, header)) is not None:
                return broken, ties, problem
            margin = margins(logits, Scale.moved(clean, difference), labels)
            claimed = torch.from_numpy(block.forms != adv_file.CLEAN)
            wrong = margin < 0
            unconfirmed = claimed & (margin > _TIE)
            if unconfirmed.any():
                first = int(ids[unconfirmed.nonzero()[0, 0]])
                count = int(unconfirmed.sum())
                return (
                    broken,
                    ties,
                    f"{count} of its images are classified correctly, the first is example {first}",
                )
            broken += int((wrong | claimed).sum())
            ties += int((~claimed & (margin.abs() <= _TIE)).sum())
            run.report.progress(f"saved images  {start}/{header['n']}")
    return broken, ties, None if start == header["n"] else "it holds fewer images than it says"


def _outside(difference: Tensor, header: Mapping[str, Any]) -> str | None:
    """Whether a difference leaves the ball; the box cuts what is judged."""
    if not torch.isfinite(difference).all():
        return "a difference is not finite"
    flat = difference.flatten(1)
    order = {"linf": math.inf, "l2": 2, "l1": 1}.get(str(header.get("norm")))
    if order is None:
        return f"its norm is {header.get('norm')}"
    largest = float(torch.linalg.vector_norm(flat.double(), order, dim=1).max())
    eps = float(header["eps"])
    if largest > eps * (1 + 1e-5) + 1e-6:
        return f"an image is {largest:.6g} from its original, outside the ball of {eps:.6g}"
    return None


def verify_evidence(
    record: dict[str, Any],
    path: str,
    run: Run,
    weights: str | None = None,
    hints: CheckpointHints | None = None,
) -> dict[str, Any]:
    """The record with the verdict on a file of adversarial images under `verify`.

    `weights`: the file of the record's checkpoint, which `hints` describe where the record names none.
    """
    try:
        given = record if weights is None else with_file(record, weights, run, hints)
        verdict = judge_evidence(given, path, run)
    except OtherCheckpoint as other:
        header = adv_file.header_of(path)
        claim = _claim(record, header)
        verdict = {"metric": str(header.get("metric")), "verdict": "differs", "claimed": claim.get("value")}
        verdict["reason"] = str(other)
    metric = verdict.pop("metric")
    return {**record, "verify": {**consistency.summary(record), "entries": {metric: verdict}}}
