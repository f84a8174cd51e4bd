"""Checks saved adversarial images (`save_images`) by one forward pass, as evidence for a robust accuracy.

A file may come from an untrusted source. The file is read batch by batch, and each array must have the shape
that the claim and the data set determine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.attacks import ATTACKS, lattice
from rbtools.attacks.losses import logit_margin
from rbtools.datasets import npy
from rbtools.defences import stages
from rbtools.errors import RbError, shown
from rbtools.evaluation.spec import rebuilt
from rbtools.execution import device
from rbtools.execution.engine import JobFunction
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, OtherCheckpoint, resolve_inputs, with_file
from rbtools.inputs.resolve import Inputs
from rbtools.lazy import np, torch
from rbtools.plain_files import opened
from rbtools.records import consistency, metric_name
from rbtools.records.results import is_number
from rbtools.threats.ball import Ball
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.threats.base import Threat

_LONGEST = 1 << 20  # maximum size of a claim in bytes
_CHUNK = 256
_LARGEST_POINT = 1 << 16  # numbers
_SAME_PIXEL = 1e-5  # rounding of images that are made again from their points
# As a share of the largest logit: below this margin, the verdict may differ between two processors.
_TIE = 1e-4
_ORDERS = {"linf": math.inf, "l2": 2, "l1": 1, "any": None, "sphere": None}  # any: every image in the box


class _Refuted(Exception):
    """Raised if the images do not prove the claim. The text states the reason."""


@dataclass(frozen=True)
class EvidenceJob(JobFunction):
    """Checks the claims of one file of adversarial images, or of all files of the record's model in a folder.
    The verdicts are added to the record's `verify`.

    Every image must be inside the ball around its clean image and inside the box. In one forward pass, this
    checkpoint must misclassify as many images as the claim states. If the claim is proved, the accuracy is at
    most `measured`, independent of the attack that made the images. If a file does not prove its claim,
    `verdict` is "differs" and `reason` explains why. `file` contains the record's weights, and `hints`
    describes this file if the record names no checkpoint. Raises RbError for a file without adversarial
    images, and for a record whose model or data are missing.
    """

    path: str
    file: str | None = None
    hints: CheckpointHints | None = None

    def __call__(self, record: dict[str, Any], run: Run) -> dict[str, Any]:
        path, entries = self.path, dict[str, Any]()
        folder = os.path.isdir(path)
        names = [name for name in sorted(os.listdir(path)) if name.endswith(".npz")] if folder else []
        for one in [os.path.join(path, name) for name in names] if folder else [path]:
            saved = claim_of(one)
            if "indices" in saved:
                raise RbError(
                    f"{one} was saved with --indices, but it contains only a hash of these indices. Save the"
                    " images of the split, or its first images (--n)."
                )
            metric = saved.get("metric")
            known = [entry for entry in record.get("evals") or () if entry.get("metric") == metric]
            claim = known[-1] if known else saved
            try:
                with_weights = record if self.file is None else with_file(record, self.file, run, self.hints)
                split = str(saved.get("split", "test"))
                inputs = resolve_inputs(with_weights, _with_stages(run, saved), split)
            except OtherCheckpoint as other:
                verdict = {"verdict": "differs", "claimed": claim.get("value"), "reason": str(other)}
            else:
                if folder and saved.get("checkpoint") != inputs.checkpoint:
                    continue  # the file belongs to another model
                verdict = _verdict(inputs, one, saved, claim)
            if str(metric) not in entries or verdict["verdict"] == "match":  # others may have fewer images
                entries[str(metric)] = verdict
        if not entries:
            raise RbError(
                f"{path} has no images of this model. Expected images that rb-attack --save-adv {path} saved."
            )
        return {**record, "verify": {**consistency.summary(record), "entries": entries}}


def _with_stages(run: Run, saved: Mapping[str, Any]) -> Run:
    """The run with the stages before the network that a file names. Raises RbError for an unknown stage."""
    if "defend" not in saved:
        return run
    chosen = stages.parse(str(saved["defend"]), allow_code=run.selection.allow_code)
    return run.changed(defend=stages.Stages(chosen))


def _verdict(inputs: Inputs, path: str, saved: Mapping[str, Any], claim: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on a file with the claim `saved`. `claim` is the record's entry; without one, it is
    `saved`."""
    n, value = saved["n"], claim.get("value")
    fields = {"claimed": value if is_number(value) else None, "n": n}
    try:
        fields |= {
            name: saved.get(name) for name in (*_limits(saved), *(() if "threat" in saved else ("norm",)))
        }
        _compare(inputs, saved, claim)
        broken, ties = _judged(inputs, path, saved)
        fields["measured"] = measured = 1 - broken / n
        if abs(measured - float(claim["value"])) * n > ties + 1e-3:
            raise _Refuted(f"the images prove an accuracy of at most {measured:.6g}, not the claimed one")
    except _Refuted as why:
        return {"verdict": "differs", **fields, "reason": str(why)}
    where = "threat" if "threat" in saved else "ball"
    test = f"saved images: in {where} and box, misclassified in one forward pass"
    return {"verdict": "match", **fields, "test": test}


def _compare(inputs: Inputs, saved: Mapping[str, Any], claim: Mapping[str, Any]) -> None:
    """Raise _Refuted if a file's claim differs from the record's claim or from the name of its metric."""
    name = saved.get("metric")
    if not isinstance(name, str) or (claim is saved and not _attacked(name, saved)):
        raise _Refuted(f"its metric is {name}, which is not an accuracy under an attack at a distance")
    split = metric_name.parse(name).split
    if claim.get("split", split) != split:
        raise _Refuted(f"the name {name} means {split} images, but the claim means {claim['split']} images")
    limits = (*_limits(saved), "threat", "norm")
    facts = {fact: claim.get(fact) for fact in (*limits, "n", "value", "grid", "defend")}
    facts |= {"checkpoint": inputs.checkpoint, "data": inputs.data.fingerprint, "split": split}
    for fact, expected in facts.items():
        there = saved.get(fact, "test" if fact == "split" else None)
        numeric = is_number(there) and is_number(expected)
        if not (math.isclose(there, expected) if numeric else there == expected):  # type: ignore[arg-type]
            raise _Refuted(f"its {fact} is {there}, but the claim's is {expected}")
    if not is_number(claim.get("value")):
        raise _Refuted("the claim has no value")
    if "threat" not in saved and str(saved.get("norm")) not in _ORDERS:
        raise _Refuted(f"its norm is {saved.get('norm')}")
    named = metric_name.parse(name)
    for field in named.form.settings(named):
        if field in ("threat", *_limits(saved)) and field not in saved:
            raise _Refuted(f"its metric is {name}, but it has no {field}")
    said = ("attack", *limits, "steps", "n", "value")  # without fields that would explain a difference
    if says := consistency.contradicts_name(name, {fact: saved[fact] for fact in said if fact in saved}):
        raise _Refuted(says)


def _attacked(name: str, saved: Mapping[str, Any]) -> bool:
    """Whether a metric is an accuracy under an attack, which may be a class of the user."""
    attack = str(saved.get("attack"))
    own = not ATTACKS.knows(attack) and metric_name.without_split(name).startswith(f"{attack}.")
    return own or metric_name.parse(name).attacked


def _judged(inputs: Inputs, path: str, saved: Mapping[str, Any]) -> tuple[int, int]:
    """The number of misclassified images and the number of images near a tie. Raises _Refuted if the images
    are not those of the evaluation, or if an image is outside the ball or the box."""
    dataset, n = inputs.data.load(), saved["n"]
    order = inputs.data.order(dataset.labels)[:n]
    if n > len(order):
        raise _Refuted(f"it claims {n} images, but the split has {len(order)}")
    broken = ties = start = 0
    with device.taken(inputs.run, inputs.threads()) as place:
        model = inputs.load_model(place)
        for images, labels, found, points in batches(path, saved, tuple(dataset.images.shape[1:])):
            inputs.run.report.check_cancelled()
            ids = order[start : start + len(found)]
            start += len(ids)
            if not (torch.equal(found, ids) and torch.equal(labels, dataset.labels[ids])):
                raise _Refuted("its images are not exactly the images of the evaluation, in the same order")
            _check_allowed(images, points, pixels(dataset.images[ids]), saved)
            with torch.no_grad():
                logits = model(images.to(place)).float().cpu()
            margins = logit_margin(logits, labels)
            margins /= logits.abs().amax(1).clamp_min(1e-12)
            broken, ties = broken + int((margins < 0).sum()), ties + int((margins.abs() <= _TIE).sum())
            inputs.run.report.progress(f"saved images  {start}/{n}")
    return broken, ties


def _check_allowed(images: Tensor, points: Tensor | None, clean: Tensor, saved: Mapping[str, Any]) -> None:
    """Raise _Refuted if an image (n, C, H, W) is outside the box or the threat. In a threat whose points are
    not images, the points (n, ...) are checked, and the images must be created from them."""
    if "threat" not in saved and saved["norm"] == "sphere":  # without a box
        if not bool(Ball(eps=saved["eps"], norm="sphere").contains(images, clean).all()):
            raise _Refuted(f"an image is not on the sphere within {saved['eps']:.6g} of its original")
        return
    if not bool(((images >= 0) & (images <= 1)).all()):  # NaN fails both comparisons
        raise _Refuted("an image has pixels outside [0, 1]")
    if "threat" in saved:
        threat = _threat(saved)
        if points is None and not threat.points_are_images():
            raise _Refuted("it lacks the points from which its images were created")
        points = images if points is None else points
        moved = ~points.reshape(len(points), -1).isnan().any(1)
        made = clean.clone()
        try:
            if moved.any() and not bool(threat.contains(points[moved], clean[moved]).all()):
                raise _Refuted(f"a point is outside the threat {threat.name}")
            if moved.any():
                made[moved] = threat.made(points[moved], clean[moved])
        except (RuntimeError, IndexError, ValueError, RbError) as wrong:
            raise _Refuted(
                f"its points do not fit the threat {threat.name}: {shown(str(wrong), 100)}"
            ) from None
        made = lattice.nearest(made) if saved.get("grid") == "8bit" else made
        if not bool(((made - images).abs() <= _SAME_PIXEL).all()):  # also for NaN
            raise _Refuted("an image is not the result of applying its point to the original")
        return
    if (order := _ORDERS[str(saved["norm"])]) is None:
        return
    difference = (images - clean).flatten(1).double()
    largest = float(torch.linalg.vector_norm(difference, order, dim=1).max())
    if largest > saved["eps"] * (1 + 1e-5) + 1e-6:
        raise _Refuted(f"an image is {largest:.6g} from its original, outside the ball of {saved['eps']:.6g}")


def _limits(saved: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of the claim that say how much of its threat the attack used: eps for a ball."""
    threat: Any = _threat(saved) if "threat" in saved else None
    return ("eps",) if threat is None else tuple(one.name for one in dataclasses.fields(threat))


def _threat(saved: Mapping[str, Any]) -> Threat:
    """The threat of a claim that is not a ball. Raises _Refuted if the claim does not determine it, and
    RbError if no attack of this name is known."""
    name = saved.get("attack")
    if not isinstance(name, str) or ATTACKS.of_name(name) is None:
        raise RbError(
            f"The claim is about the attack {shown(str(name))}, which is not installed. Install the package"
            " that provides it."
        )
    method = rebuilt(ATTACKS, name, saved)
    if method is None or method.in_ball or method.within.name != saved["threat"]:
        raise _Refuted("it does not say how far the attack went in its threat")
    found: Threat = method.threat
    return found


# --- reading --------------------------------------------------------------------------------------


def claim_of(path: str) -> dict[str, Any]:
    """The claim in a file, with positive numbers `n` and, for a ball, `eps`. Raises RbError for others."""
    with _archive(path) as archive, archive.open("claim.npy") as member:
        head = npy.header(member)
        if head.dtype.kind != "U" or head.shape or head.dtype.itemsize > _LONGEST:
            raise ValueError("its claim is not a string")
        claim = orjson.loads(str(np.frombuffer(member.read(head.dtype.itemsize), head.dtype)[0]))
        numbers = ("n",) if isinstance(claim, dict) and "threat" in claim else ("n", "eps")
        if not isinstance(claim, dict) or not all(is_number(claim.get(name)) for name in numbers):
            raise ValueError("its claim has no numbers n and eps")
        if not (isinstance(claim["n"], int) and all(claim[name] > 0 for name in numbers)):
            raise ValueError("a number in its claim is out of range")
    return claim


def batches(
    path: str, saved: Mapping[str, Any], shape: tuple[int, ...]
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Yields images, float32 (at most _CHUNK, C, H, W) in [0, 1], labels, places in the split, and the points
    (at most _CHUNK, ...) of a threat whose points are not images."""
    n, whole = saved["n"], np.dtype("<i8")
    pixel = np.dtype("|u1" if saved.get("grid") == "8bit" else "<f4")
    arrays = {"images": (pixel, shape), "labels": (whole, ()), "ids": (whole, ())}
    with _archive(path) as archive, contextlib.ExitStack() as stack:
        if "threat" in saved and "points.npy" in archive.namelist():
            arrays["points"] = (np.dtype("<f4"), ())
        members = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in arrays}
        for name, (dtype, each) in arrays.items():
            head = npy.header(members[name])
            if name == "points" and head.shape[:1] == (n,) and math.prod(head.shape[1:]) <= _LARGEST_POINT:
                arrays[name] = (dtype, each := head.shape[1:])
            if head.fortran or (head.dtype, head.shape) != (dtype, (n, *each)):
                raise ValueError(f"{name} is {head.dtype} {head.shape}, not {dtype} {(n, *each)}")
        for start in range(0, n, _CHUNK):
            batch = []
            for name, (dtype, each) in arrays.items():
                numbers = (min(_CHUNK, n - start), *each)
                data = members[name].read(math.prod(numbers) * dtype.itemsize)
                batch.append(torch.from_numpy(np.frombuffer(bytearray(data), dtype).reshape(numbers)))
            images, labels, ids, *points = batch
            yield pixels(images), labels, ids, points[0] if points else None
        if any(member.read(1) for member in members.values()):  # reading to the end compares the checksum
            raise ValueError("an array contains more data than its header declares")


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
    """Yields the open archive. Errors in reading the archive inside the block are raised as RbError."""
    try:
        with opened(path) as stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except FileNotFoundError:
        raise RbError(
            f"{path} does not exist. Expected the folder of rb-attack --save-adv, or a file in it."
        ) from None
    except (OSError, EOFError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile, zlib.error) as why:
        raise RbError(
            f"{path} holds no adversarial images, or is damaged: {shown(str(why), 100)}. Expected an .npz"
            " file that rb-attack --save-adv wrote."
        ) from None
