"""Small archives in the official layouts, made from scratch, and the images that they hold."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rbtools.errors import RbError


def error_of(call, *arguments, **options):
    """The sentence of the RbError that the call ends in."""
    with pytest.raises(RbError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(found, images, labels):
    """The loaded split has these images and labels."""
    assert found.images.dtype == torch.uint8 and found.labels.dtype == torch.int64
    assert np.array_equal(found.images.numpy(), images) and found.labels.tolist() == list(labels)


class Memory(dict):
    """A cache of fingerprints."""

    put = dict.__setitem__


def pixels(seed, *shape):
    return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


def md5(path):
    return hashlib.md5(Path(path).read_bytes()).hexdigest()


def png(image):
    """(C, H, W) or (H, W) as an encoded image."""
    out = io.BytesIO()
    Image.fromarray(image if image.ndim == 2 else image.transpose(1, 2, 0)).save(out, "PNG")
    return out.getvalue()


def put(path, data):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def python2(value):
    """A value as a protocol-2 pickle of Python 2: texts are byte strings, arrays as numpy 1.6 had them."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value):
    if isinstance(value, str):
        data = value.encode("latin-1")
        short = len(data) < 256
        return (b"U" + bytes([len(data)]) if short else b"T" + struct.pack("<i", len(data))) + data
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_python2, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(part) for item in value.items() for part in item) + b"u"
    if value is None:
        return b"N"
    assert isinstance(value, np.ndarray)
    kind = b"cnumpy\ndtype\n" + _python2((value.dtype.str[1:], 0, 1)) + b"R"
    kind += _python2((3, "|", None, None, None, -1, -1, 0)) + b"b"
    data = value.tobytes()
    state = b"(" + _python2(1) + _python2(value.shape) + kind + b"\x89"
    state += b"T" + struct.pack("<i", len(data)) + data + b"t"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _python2((0,)) + _python2("b")
    return made + b"tR" + state + b"b"


def cifar10(folder, each=4):
    """cifar-10-batches-py with `each` images a batch; returns split -> (images, labels)."""
    found, root = {}, Path(folder) / "cifar-10-batches-py"
    for split, names in (
        ("train", [f"data_batch_{number}" for number in range(1, 6)]),
        ("test", ["test_batch"]),
    ):
        count = each * len(names)
        images, labels = pixels(len(names), count, 3, 32, 32), [7 * i % 10 for i in range(count)]
        for number, name in enumerate(names):
            part = slice(number * each, (number + 1) * each)
            batch = {"batch_label": f"batch {number}", "labels": labels[part], "filenames": ["0.png"] * each}
            put(root / name, python2({**batch, "data": images[part].reshape(each, 3072)}))
        found[split] = images, labels
    put(root / "batches.meta", python2({"num_cases_per_batch": each, "label_names": ["airplane"]}))
    return found


def cifar100(folder, count=6):
    found = {}
    for split in ("train", "test"):
        images, labels = pixels(len(split), count, 3, 32, 32), [17 * i % 100 for i in range(count)]
        batch = {"filenames": ["x"] * count, "batch_label": split, "fine_labels": labels}
        batch |= {"coarse_labels": [0] * count, "data": images.reshape(count, 3072)}
        put(Path(folder) / "cifar-100-python" / split, python2(batch))
        found[split] = images, labels
    return found


def imagenet16(folder, each=30):
    """ImageNet16 with labels on both sides of 120; returns split -> what is kept of them."""
    found = {}
    names = {"train": [f"train_data_batch_{number}" for number in range(1, 11)], "test": ["val_data"]}
    for split in names:
        kept_images, kept_labels = [], []
        for number, name in enumerate(names[split]):
            images = pixels(number, each, 3, 16, 16)
            labels = [1 + (i * 37 + number) % 240 for i in range(each)]
            labels[:2] = [120, 121]
            batch = {"data": images.reshape(each, 768), "labels": labels, "mean": np.zeros(768)}
            put(Path(folder) / "ImageNet16" / name, pickle.dumps(batch, protocol=2 + number % 4))
            kept = np.array(labels) <= 120
            kept_images.append(images[kept])
            kept_labels += [label - 1 for label in labels if label <= 120]
        found[split] = np.concatenate(kept_images), kept_labels
    return found


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 8 << 8 | array.ndim, *array.shape) + array.tobytes()


def mnist(folder, count=5, packed=False):
    found = {}
    for split, word in (("train", "train"), ("test", "t10k")):
        images, labels = pixels(len(word), count, 28, 28), np.arange(count, dtype=np.uint8) * 3 % 10
        for name, array in ((f"{word}-images-idx3-ubyte", images), (f"{word}-labels-idx1-ubyte", labels)):
            data = gzip.compress(idx(array), mtime=0) if packed else idx(array)
            put(Path(folder) / "MNIST/raw" / f"{name}{'.gz' * packed}", data)
        found[split] = images[:, None], labels.tolist()
    return found


def svhn(folder, count=12):
    from scipy.io import savemat

    found = {}
    for split in ("train", "test", "extra"):
        images = pixels(len(split), count, 3, 32, 32)
        labels = [i % 10 for i in range(count)]
        given = np.array([label or 10 for label in labels], np.uint8)[:, None]
        out = io.BytesIO()
        savemat(out, {"X": images.transpose(2, 3, 1, 0), "y": given}, do_compression=True)
        put(Path(folder) / f"{split}_32x32.mat", out.getvalue())
        found[split] = images, labels
    return found


CIFAR_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()


def cinic10(folder, each=2):
    """Returns split -> (images, labels), in the order of class and name."""
    found = {}
    for split in ("train", "valid", "test"):
        images, labels = pixels(len(split), 10 * each, 3, 32, 32), [i // each for i in range(10 * each)]
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            put(Path(folder) / f"CINIC-10/{split}/{CIFAR_CLASSES[label]}/n{number:04}.png", png(image))
        found[split] = images, labels
    put(Path(folder) / "CINIC-10/README.md", b"# CINIC-10")
    return found


WNIDS = [f"n{number:08}" for number in (9, 3, 7)]  # wnids.txt is not in alphabetical order


def tinyimagenet(folder, each=2):
    root = Path(folder) / "tiny-imagenet-200"
    put(root / "wnids.txt", "\n".join(WNIDS).encode())
    put(root / "words.txt", b"n00000003\tthing\n")
    ordered = sorted(WNIDS)
    train = pixels(1, 3 * each, 3, 64, 64)
    for number, image in enumerate(train):
        wnid = ordered[number // each]
        put(root / f"train/{wnid}/images/{wnid}_{number % each}.JPEG", png(image))
        put(root / f"train/{wnid}/{wnid}_boxes.txt", b"x\t0\t0\t1\t1\n")
    # The validation images in an order of their own: sorted by class and name they are these.
    test, labels, lines = pixels(2, 3 * each, 3, 64, 64), [], []
    for number, image in enumerate(test):
        label = (2 * number + 1) % 3
        put(root / f"val/images/val_{number}.JPEG", png(image))
        lines.append(f"val_{number}.JPEG\t{ordered[label]}\t0\t0\t62\t62\n")
        labels.append(label)
    put(root / "val/val_annotations.txt", "".join(lines).encode())
    put(root / "test/images/test_0.JPEG", png(test[0]))
    order = sorted(range(len(test)), key=lambda number: (labels[number], f"val_{number}.JPEG"))
    return {
        "train": (train, [number // each for number in range(3 * each)]),
        "test": (test[order], [labels[number] for number in order]),
    }


def corrupted(folder, name="CIFAR-10-C", size=3, classes=10):
    """The 15 + 4 arrays with `size` images a severity; returns corruption -> (images, labels)."""
    from rbtools.datasets.corrupted import CORRUPTIONS, EXTRA

    labels = np.tile(np.arange(size, dtype=np.uint8) * 7 % classes, 5)
    put(Path(folder) / name / "labels.npy", npy(labels))
    found = {}
    for number, corruption in enumerate((*CORRUPTIONS, *EXTRA)):
        images = pixels(number, 5 * size, 32, 32, 3)
        put(Path(folder) / name / f"{corruption}.npy", npy(images))
        found[corruption] = images.transpose(0, 3, 1, 2), labels.tolist()
    return found


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tar(archive, folder, *, inside="", mode="w:gz"):
    """Pack a folder under its own name, or its content under `inside`; returns the archive."""
    with tarfile.open(archive, mode) as out:
        out.add(folder, arcname=inside or Path(folder).name)
    return Path(archive)
