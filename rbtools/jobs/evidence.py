"""Evidence for a robust accuracy: adversarial images that are saved small and judged by one forward pass.

FILE.adv holds their differences from the images of the data set, quantised:

    rb-adv 1\n  HEADER\n  BLOCK BLOCK ...

HEADER is a line of JSON. A block has the images of a batch: six little-endian numbers of 32 bits (images, and
the bytes of five parts), then the parts, each compressed by zlib: `ids` int32, the places of the images in
their split; `forms` uint8, one of FORMS for each image; and the differences of the images of each form:

- CLEAN: none. The image itself, which the attack left, or which was misclassified without it.
- COARSE: each channel of each pixel is moved by `coarse` levels, by none, or by as many back: five in a byte.
  Where `coarse` is 0 the image is moved by `eps` in all, in the ball of `norm`, each channel by as much.
- LEVELS: int8, in levels of `step`.
- EXACT: float32, for images that no quantised difference keeps adversarial.

Of an attack with --grid 8bit a folder of PNGs holds the images themselves: NUMBER.png by the place of the
image in its split, and the header in claim.json.

A file may come from an untrusted source. Every size is checked before something is unpacked, and what is
unpacked is no more than the images that the data set has.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.defences import stages
from rbtools.errors import RbError
from rbtools.execution import device
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, OtherCheckpoint, resolve_inputs, with_file
from rbtools.inputs.resolve import Inputs
from rbtools.jobs import png_images
from rbtools.jobs.png_images import CLAIM
from rbtools.lazy import nn, np, torch
from rbtools.plain_files import opened, read_plain
from rbtools.records import consistency, metric_name
from rbtools.records.results import is_number
from rbtools.store.files import user_output
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from rbtools.datasets.base import Dataset

MAGIC = b"rb-adv 1\n"
CLEAN, COARSE, LEVELS, EXACT = FORMS = (0, 1, 2, 3)
_SIZES = struct.Struct("<6I")
_LONGEST = 1 << 20  # the most bytes of a header
_NUMBERS = ("n", "eps", "step", "coarse")
_POWERS = (1, 3, 9, 27, 81)  # the weights of the five trits in a byte
# a share of the largest logit: with a smaller margin the verdict may differ between two processors
_TIE = 1e-4
_CHUNK = 256
Logits = Callable[["Tensor"], "Tensor"]


def logits_of(model: nn.Module, place: torch.device) -> Logits:
    """The network as a function of images on any device; it returns logits float32 on the CPU."""

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [model(part.to(place)).float().cpu() for part in images.split(_CHUNK)]
        return torch.cat(parts)

    return logits


def _margins(logits: Logits, images: Tensor, labels: Tensor) -> Tensor:
    """For each image (n,) the logit of its label minus the largest other one, in units of the largest logit:
    below 0 it is misclassified."""
    outputs = logits(images)
    label_logits = outputs.gather(1, labels[:, None])[:, 0]
    others = outputs.scatter(1, labels[:, None], float("-inf")).amax(1)
    return (label_logits - others) / outputs.abs().amax(1).clamp_min(1e-12)


def moved(clean: Tensor, difference: Tensor) -> Tensor:
    """The images (n, C, H, W) moved by a difference, inside the box."""
    return (clean + difference.view_as(clean)).clamp(0, 1)


# --- differences in levels ------------------------------------------------------------------------


class Scale(NamedTuple):
    """The levels of a quantised difference in a ball: `step` on [0, 1], and `coarse` levels of the coarsest.

    In L-infinity with a distance of 1/255 or more the levels are those of 8-bit images. With less they divide
    the distance, and differences are cut towards 0. In L2 a channel of P moves by eps / sqrt(P), which is 8
    levels: the coarsest differences are the signs of the channels that move much, then come multiples of a
    level, shrunk until they are inside the ball. L1 is the same with 127 levels in eps.
    """

    eps: float
    norm: str
    step: float
    coarse: int

    @classmethod
    def of(cls, eps: float, norm: str, channels: int) -> Scale:
        """The scale for images of that many channels of pixels."""
        step = 1 / 255 if norm == "linf" and eps * 255 >= 1 - 1e-6 else eps / 127
        if norm == "l2":
            step = min(step, eps / (8 * math.sqrt(channels)))
        return cls(eps, norm, step, min(math.floor(eps / step + 1e-6), 127) if norm == "linf" else 0)

    def candidates(self, difference: Tensor) -> Iterator[tuple[int, Tensor, bool]]:
        """Forms and levels int8 (n, P) inside the ball, the coarsest first; whether none is finer."""
        scaled = difference / self.step
        if self.norm == "linf":
            if self.coarse:
                far = difference.abs() > self.eps / 2
                yield COARSE, (difference.sign() * far * self.coarse).to(torch.int8), False
            if self.step < 1 / 255:
                cut = (scaled + scaled.sign() * 1e-4).trunc().clamp(-127, 127)
                yield LEVELS, cut.to(torch.int8), True
                return
            away = torch.where(scaled > 0, scaled.ceil(), scaled.floor())
            for levels, finest in ((scaled.round(), False), (away, True)):
                yield LEVELS, levels.clamp(-self.coarse, self.coarse).to(torch.int8), finest
            return
        typical = difference.square().mean(1, keepdim=True).sqrt()
        for share in (0.6, 0.3):  # for normal distributions 0.6 changes the direction least
            yield COARSE, (difference.sign() * (difference.abs() > share * typical)).to(torch.int8), False
        size = torch.linalg.vector_norm(difference, 2 if self.norm == "l2" else 1, dim=1, keepdim=True)
        to_border = scaled * (self.eps / size.clamp_min(1e-12))  # the attack's point may be inside the ball
        for multiple in (10, 6, 3, 1):
            yield LEVELS, self._multiples(to_border, multiple), False
        yield LEVELS, self._multiples(scaled, 1), True

    def _multiples(self, scaled: Tensor, multiple: int) -> Tensor:
        """Levels int8 (n, P) that are multiples of one, inside the ball; 0 for an image where none are."""
        order, most = (2 if self.norm == "l2" else 1), 127 // multiple * multiple
        levels = torch.zeros_like(scaled)
        left = torch.ones(len(scaled), dtype=torch.bool)
        for factor in (1.0, 0.9993, 0.997, 0.993, 0.98, 0.97, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8):
            some = (factor * scaled / multiple).round().mul(multiple).clamp(-most, most)
            inside = torch.linalg.vector_norm(some.double(), order, dim=1) * self.step <= self.eps
            levels[left & inside] = some[left & inside]
            left &= ~inside
        return levels.to(torch.int8)

    def difference(self, form: int, levels: NDArray[Any]) -> NDArray[np.float32]:
        """Differences float32 (n, P) of levels; of COARSE ones without `coarse` the levels are signs."""
        if form == LEVELS or self.coarse:
            return levels.astype(np.float32) * np.float32(self.step)
        counts = np.abs(levels).sum(1, dtype=np.float64).clip(1)
        each = self.eps * (1 - 1e-6) / (counts if self.norm == "l1" else np.sqrt(counts))
        difference: NDArray[np.float32] = levels.astype(np.float32) * each.astype(np.float32)[:, None]
        return difference


# --- writing --------------------------------------------------------------------------------------


def quantised(
    dataset: Dataset, ids: Tensor, images: Tensor, survived: Tensor, scale: Scale, logits: Logits
) -> tuple[bytes, int]:
    """A block with the adversarial images (n, C, H, W) of these examples, and how many of them are exact.

    A quantised image has to be adversarial itself: for each image the coarsest of a few differences is kept
    that the network, in float32, still misclassifies with a margin. An image that none of them breaks is kept
    exactly; one that survived is not kept.
    """
    clean, labels = pixels(dataset.images[ids]), dataset.labels[ids]
    difference = (images - clean).flatten(1)
    difference[survived] = 0
    forms = torch.full((len(ids),), CLEAN, dtype=torch.uint8)
    levels = torch.zeros_like(difference, dtype=torch.int8)
    left = difference.ne(0).any(1)
    for form, candidate, finest in scale.candidates(difference):
        rows = left.nonzero()[:, 0]
        if not len(rows):
            break
        candidates = moved(clean[rows], torch.from_numpy(scale.difference(form, candidate[rows].numpy())))
        # The finest differences need a smaller margin, because exact ones have no larger margin either.
        broken = rows[_margins(logits, candidates, labels[rows]) < (0 if finest else -_TIE)]
        forms[broken], levels[broken] = form, candidate[broken]
        left[broken] = False
    forms[left] = EXACT
    arrays = (ids.numpy(), forms.numpy(), levels.numpy(), difference.numpy())
    return packed(*arrays, scale.coarse), int(left.sum())


def packed(
    ids: NDArray[Any], forms: NDArray[Any], levels: NDArray[Any], exact: NDArray[Any], coarse: int
) -> bytes:
    """A block as bytes. levels: int8 (n, P), exact: float32 (n, P), `forms` says which of the two is used for
    each image."""
    trits = (levels[forms == COARSE] // max(coarse, 1) + 1).astype(np.uint8).ravel()
    trits = np.concatenate([trits, np.zeros(-len(trits) % 5, np.uint8)]).reshape(-1, 5)
    parts = [
        ids.astype("<i4"),
        forms.astype(np.uint8),
        (trits @ np.array(_POWERS)).astype(np.uint8),
        levels[forms == LEVELS].astype(np.int8),
        exact[forms == EXACT].astype("<f4"),
    ]
    texts = [_compressed(part) for part in parts]
    return _SIZES.pack(len(ids), *map(len, texts)) + b"".join(texts)


def _compressed(part: NDArray[Any]) -> bytes:
    """By zlib; or without looking for repetitions, which levels that are nearly random do not have, and with
    a code for each image of its own, as each has its own multiples.
    """
    machine = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    images = part if part.ndim == 2 else part[None]
    rows = [machine.compress(row.tobytes()) + machine.flush(zlib.Z_SYNC_FLUSH) for row in images]
    return min(zlib.compress(part.tobytes(), 9), b"".join(rows) + machine.flush(), key=len)


def write(path: Path, header: Mapping[str, Any], blocks: IO[bytes]) -> None:
    """Write a file whole."""
    with user_output(path, hint="Name another file with --save-adv.") as target:
        target.write(MAGIC + orjson.dumps(dict(header), option=orjson.OPT_SORT_KEYS) + b"\n")
        shutil.copyfileobj(blocks, target)


# --- reading --------------------------------------------------------------------------------------


class AdvBlock(NamedTuple):
    """Some images. ids: int64 (n,); forms: uint8 (n,); differences: float32 (n, C, H, W) on [0, 1]."""

    ids: NDArray[np.int64]
    forms: NDArray[np.uint8]
    differences: NDArray[np.float32]


def header_of(path: str | Path) -> dict[str, Any]:
    """The header of a file, or of a folder of PNGs. Raises RbError for another file or folder, and for one
    whose header is damaged."""
    if os.path.isdir(path):
        try:
            text = read_plain(os.path.join(path, CLAIM), _LONGEST)
        except OSError:
            raise RbError(
                f"{path} has no {CLAIM}. Expected DIR of rb-attack --grid 8bit --save-adv DIR"
                " --save-adv-format png, or the folder of a result in it."
            ) from None
        return _checked(path, text, ("n", "eps"))
    with _opened(path) as stream:
        return _header(path, stream)


def blocks(path: str | Path, shape: tuple[int, ...], most: int) -> Iterator[AdvBlock]:
    """The blocks of a file with images of this shape (C, H, W), at most `most` of them in all.

    Raises RbError for a damaged file.
    """
    with _opened(path) as stream:
        header = _header(path, stream)
        left = min(most, header["n"])
        while head := stream.read(_SIZES.size):
            if len(head) < _SIZES.size:
                raise _damaged(path, "it is cut off")
            count, *sizes = _SIZES.unpack(head)
            if not 0 < count <= left:
                raise _damaged(path, "it holds more images than its header says")
            left -= count
            yield _block(path, stream, count, sizes, shape, header)


def _opened(path: str | Path) -> IO[bytes]:
    try:
        return opened(path)
    except OSError as error:
        raise RbError(
            f"{path} cannot be read: {error.strerror}. Expected a file of rb-attack --save-adv."
        ) from None


def _header(path: str | Path, stream: IO[bytes]) -> dict[str, Any]:
    if stream.read(len(MAGIC)) != MAGIC:
        raise RbError(
            f"{path} is no file of adversarial images. Expected one that rb-attack --save-adv FILE.adv wrote."
        )
    header = _checked(path, stream.readline(_LONGEST), _NUMBERS)
    coarse = header["coarse"]
    if not (isinstance(coarse, int) and 0 <= coarse <= 127) or not 0 < header["step"] <= 1:
        raise _damaged(path, "a number in its header is out of range")
    return header


def _checked(path: str | Path, text: bytes, numbers: Sequence[str]) -> dict[str, Any]:
    """A header, which has these numbers."""
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _damaged(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    for name in numbers:
        if not is_number(header.get(name)):
            raise _damaged(path, f"its header has no number '{name}'")
    if not (isinstance(header["n"], int) and header["n"] > 0 and header["eps"] > 0):
        raise _damaged(path, "a number in its header is out of range")
    return header


def _damaged(path: str | Path, why: str) -> RbError:
    return RbError(f"{path} is damaged: {why}. Write it again with rb-attack --save-adv.")


def _block(
    path: str | Path,
    stream: IO[bytes],
    count: int,
    sizes: list[int],
    shape: tuple[int, ...],
    header: Mapping[str, Any],
) -> AdvBlock:
    channels, bytes_in_file = math.prod(shape), os.fstat(stream.fileno()).st_size
    left = iter(sizes)

    def part(kind: str, items: int) -> NDArray[Any]:
        """The next part, which has so many items."""
        dtype = np.dtype(kind)
        if (size := next(left)) > bytes_in_file:  # before memory is allocated for it
            raise _damaged(path, "it is cut off")
        machine = zlib.decompressobj()
        try:
            plain = machine.decompress(stream.read(size), items * dtype.itemsize + 1)
        except zlib.error:
            raise _damaged(path, "a part of it cannot be unpacked") from None
        if len(plain) != items * dtype.itemsize or not machine.eof:
            raise _damaged(path, "a part of it has another size than it should")
        return np.frombuffer(plain, dtype)

    ids, forms = part("<i4", count).astype(np.int64), part("u1", count)
    if forms.max() > EXACT:
        raise _damaged(path, "an image has an unknown form")
    counts = [int((forms == form).sum()) for form in FORMS]
    trits = part("u1", -(-counts[COARSE] * channels // 5))
    if len(trits) and trits.max() > 242:
        raise _damaged(path, "a difference is out of range")
    signs = (trits[:, None] // np.array(_POWERS) % 3).ravel()[: counts[COARSE] * channels].astype(
        np.int16
    ) - 1
    scale = Scale(float(header["eps"]), str(header.get("norm")), float(header["step"]), header["coarse"])
    differences = np.zeros((count, channels), np.float32)
    coarse = signs.reshape(-1, channels) * max(scale.coarse, 1)
    differences[forms == COARSE] = scale.difference(COARSE, coarse)
    levels = part("i1", counts[LEVELS] * channels).reshape(-1, channels)
    differences[forms == LEVELS] = scale.difference(LEVELS, levels)
    differences[forms == EXACT] = part("<f4", counts[EXACT] * channels).reshape(-1, channels)
    return AdvBlock(ids, forms, differences.reshape(count, *shape))


# --- verdicts -------------------------------------------------------------------------------------


def verify_evidence(
    record: dict[str, Any],
    path: str,
    run: Run,
    weights: str | None = None,
    hints: CheckpointHints | None = None,
) -> dict[str, Any]:
    """The record with the verdict, under `verify`, on the claim that a file or a folder of adversarial images
    makes.

    Every image has to be inside the ball and the box, and every one that counts as broken has to be
    misclassified by this checkpoint, in one forward pass; then the accuracy is at most `measured`, whatever
    the attack was. A file that does not hold what it claims is refused: `verdict` is differs, and `reason`
    says why. `weights`: the file of the record's checkpoint, which `hints` describe where the record names
    none. Raises RbError for a file that is none, and for a record whose model or data are missing.
    """
    entries: dict[str, Any] = {}
    for one in png_images.results(path):
        header = header_of(one)
        try:
            with_weights = record if weights is None else with_file(record, weights, run, hints)
            inputs = resolve_inputs(with_weights, with_stages(run, header), str(header.get("split", "test")))
        except OtherCheckpoint as other:
            claimed = _claim(record, header).get("value")
            verdict = {"verdict": "differs", "claimed": claimed, "reason": str(other)}
        else:
            if one != path and header.get("checkpoint") != inputs.checkpoint:
                continue  # of another model
            verdict = _verdict(inputs, header, one)
        metric = str(header.get("metric"))
        if metric not in entries or verdict["verdict"] == "match":  # others may be of fewer images
            entries[metric] = verdict
    if not entries:
        raise RbError(f"{path} has no images of this model. Expected those that rb-attack saved for it.")
    return {**record, "verify": {**consistency.summary(record), "entries": entries}}


def with_stages(run: Run, header: Mapping[str, Any]) -> Run:
    """The run with the stages in front of the network that a file names. Raises RbError for unknown ones."""
    if "defend" not in header:
        return run
    chosen = stages.parse(str(header["defend"]), allow_code=run.selection.allow_code)
    return run.changed(defend=stages.Stages(chosen))


def _claim(record: Mapping[str, Any], header: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record's entry that the file is about; without one, the file's own claim."""
    entries = [entry for entry in record.get("evals") or () if entry.get("metric") == header.get("metric")]
    return entries[-1] if entries else header


def _verdict(inputs: Inputs, header: dict[str, Any], path: str) -> dict[str, Any]:
    claim = _claim(inputs.record, header)
    claimed = claim.get("value") if is_number(claim.get("value")) else None
    fields = {"claimed": claimed, "n": header["n"], "eps": header.get("eps"), "norm": header.get("norm")}
    problem = _of_another(inputs, header, claim)
    if problem is None:
        broken, ties, problem = _judged(inputs, header, path)
        fields["measured"] = measured = 1 - broken / header["n"]
        if problem is None and abs(measured - float(claim["value"])) * header["n"] > ties + 1e-3:
            problem = f"the images show an accuracy of {measured:.6g} at most, not the one that is claimed"
    if problem is not None:
        return {"verdict": "differs", **fields, "reason": problem}
    test = "saved images: in ball and box, misclassified in one forward pass"
    return {"verdict": "match", **fields, "test": test}


def _of_another(inputs: Inputs, header: Mapping[str, Any], claim: Mapping[str, Any]) -> str | None:
    """Why the file does not match the claim; None if it does."""
    name = header.get("metric")
    if not isinstance(name, str) or (claim is header and metric_name.parse(name).over != "eps"):
        return f"its metric is {name}, which is no accuracy under an attack at a distance"
    split = metric_name.parse(name).split
    if claim.get("split", split) != split:
        return f"{name} is of the {split} images by its name, and of {claim['split']} by the claim"
    facts = {fact: claim.get(fact) for fact in ("eps", "norm", "n", "value", "grid", "defend")}
    facts = {"checkpoint": inputs.checkpoint, "data": inputs.data.fingerprint, "split": split, **facts}
    for fact, value in facts.items():
        there = header.get(fact, "test" if fact == "split" else None)
        numeric = isinstance(there, int | float) and isinstance(value, int | float)
        same = math.isclose(there, value) if numeric else there == value  # type: ignore[arg-type]
        if not same:
            return f"its {fact} is {there}, and that of the claim {value}"
    if not is_number(claim.get("value")):
        return "the claim has no value"
    said = ("attack", "eps", "norm", "steps", "n", "value")  # and no field that would explain a difference
    return consistency.contradicts_name(name, {fact: header[fact] for fact in said if fact in header})


def _judged(inputs: Inputs, header: Mapping[str, Any], path: str) -> tuple[int, int, str | None]:
    """How many images are misclassified, how many clean ones are near a tie, and why to refuse the file."""
    dataset, run = inputs.data.load(), inputs.run
    order = inputs.data.order(dataset.labels)
    if header["n"] > len(order):
        return 0, 0, f"it claims {header['n']} images, and the split has {len(order)}"
    broken = ties = start = 0
    with device.taken(run, inputs.threads()) as place:
        logits = logits_of(inputs.load_model(place), place)
        for found, claimed, images, difference in _attacked(path, dataset, order[: header["n"]]):
            run.report.check_cancelled()
            ids = order[start : start + len(found)]
            if not torch.equal(found, ids):
                return broken, ties, "its images are not those of the evaluation, each once and in its order"
            start += len(ids)
            if (problem := _outside(difference, header)) is not None:
                return broken, ties, problem
            margins = _margins(logits, images, dataset.labels[ids])
            unconfirmed = ids[claimed & (margins > _TIE)].tolist()
            if unconfirmed:
                correct = f"{len(unconfirmed)} of its images are classified correctly"
                return broken, ties, f"{correct}, the first is example {unconfirmed[0]}"
            broken += int(((margins < 0) | claimed).sum())
            ties += int((~claimed & (margins.abs() <= _TIE)).sum())
            run.report.progress(f"saved images  {start}/{header['n']}")
    return broken, ties, None if start == header["n"] else "it holds fewer images than it says"


def _attacked(path: str, dataset: Dataset, order: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The saved images, batch by batch: the examples' numbers (n,), which are claimed to be broken (n,), the
    images (n, C, H, W), and how they differ from the clean ones. In PNGs none is claimed alone."""
    shape = tuple(dataset.images.shape[1:])
    if not os.path.isdir(path):
        for block in blocks(path, shape, len(dataset.labels)):
            ids, difference = torch.from_numpy(block.ids), torch.from_numpy(block.differences)
            clean = pixels(dataset.images[ids.clamp(0, len(dataset.labels) - 1)])
            yield ids, torch.from_numpy(block.forms != CLEAN), moved(clean, difference), difference
        return
    for ids in order.split(_CHUNK):
        images = png_images.read(path, ids, shape)
        yield ids, torch.zeros(len(ids), dtype=torch.bool), images, images - pixels(dataset.images[ids])


def _outside(difference: Tensor, header: Mapping[str, Any]) -> str | None:
    """Why a perturbation is outside the ball; it is clipped to the box first."""
    if not torch.isfinite(difference).all():
        return "a difference is not finite"
    order = {"linf": math.inf, "l2": 2, "l1": 1}.get(str(header.get("norm")))
    if order is None:
        return f"its norm is {header.get('norm')}"
    largest = float(torch.linalg.vector_norm(difference.flatten(1).double(), order, dim=1).max())
    eps = float(header["eps"])
    if largest > eps * (1 + 1e-5) + 1e-6:
        return f"an image is {largest:.6g} from its original, outside the ball of {eps:.6g}"
    levels = difference * 255
    if header.get("grid") == "8bit" and (levels - levels.round()).abs().max() > 1e-3:
        return "an image has pixels that are not k/255"
    return None
