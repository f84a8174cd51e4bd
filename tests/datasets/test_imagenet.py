"""imagenet: folders of wnids and the flat validation folder, with the indices of all 1,000 classes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rbtools import datasets
from rbtools.datasets.imagenet import facts
from rbtools.datasets.streaming import Streamed
from rbtools.errors import RbError
from tests.datasets import archives

# The labels of the first validation images: class indices, and the numbers of the development kit.
INDICES, NUMBERS = (65, 970, 230, 809, 516), (490, 361, 171, 822, 297)


def image(seed: int, size: tuple[int, int]) -> Image.Image:
    width, height = size
    y, x = np.mgrid[:height, :width]
    wave = np.stack([np.sin(x / (9 + seed)), np.cos(y / 11), np.sin((x + y) / (7 + seed))], -1)
    return Image.fromarray((127 + 120 * wave).astype(np.uint8))


@pytest.fixture
def flat() -> Path:
    """Five validation images of different sizes without class folders."""
    place = Path("data/imagenet/val")
    place.mkdir(parents=True)
    for number, size in enumerate([(300, 260), (224, 224), (260, 400), (500, 333), (90, 60)], 1):
        image(number, size).save(place / f"ILSVRC2012_val_{number:08}.JPEG")
    return place


def in_folders(flat: Path) -> Path:
    for number, index in enumerate(INDICES, 1):
        name = f"ILSVRC2012_val_{number:08}.JPEG"
        folder = flat / facts().wnids[index]
        folder.mkdir(exist_ok=True)
        (flat / name).rename(folder / name)
    return flat


def test_the_facts_are_those_of_ilsvrc2012() -> None:
    assert len(facts().wnids) == 1000 and facts().wnids == sorted(facts().wnids)
    assert facts().wnids[0] == "n01440764" and facts().wnids[999] == "n15075141"
    assert [facts().ilsvrc[number - 1] for number in NUMBERS] == list(INDICES)
    assert sorted(facts().ilsvrc) == list(range(1000)) and len(set(facts().robustbench)) == 5000


LABELS = {
    "LOC_val_solution.csv": "ImageId,PredictionString\n"
    + "".join(f"ILSVRC2012_val_{n:08},{facts().wnids[i]} 1 2 3 4\n" for n, i in enumerate(INDICES, 1)),
    "val.txt": "".join(f"ILSVRC2012_val_{n:08}.JPEG {i}\n" for n, i in enumerate(INDICES, 1)),
    "ILSVRC2012_validation_ground_truth.txt": "".join(f"{number}\n" for number in NUMBERS),
    "imagenet_2012_validation_synset_labels.txt": "".join(f"{facts().wnids[i]}\n" for i in INDICES),
}


@pytest.mark.parametrize("name", LABELS)
def test_a_flat_folder_is_labelled_by_a_published_file(name: str, flat: Path) -> None:
    with pytest.raises(RbError, match=r"no file says which class its 5 images have.*LOC_val_solution.csv"):
        datasets.load("imagenet", "test", "data")
    (flat.parent / name).write_text(LABELS[name])
    data = datasets.load("imagenet", "test", "data")
    assert data.labels.tolist() == list(INDICES)
    assert isinstance(data.images, Streamed) and data.images.shape == (5, 3, 224, 224)
    (flat.parent / name).write_text("what is this\n" * 9)
    with pytest.raises(RbError, match=r"is not the published one: expected|has no label for 5 of 5"):
        datasets.load("imagenet", "test", "data")


def test_a_folder_of_some_classes_has_the_indices_of_all(flat: Path) -> None:
    in_folders(flat)
    data, about = datasets.load("imagenet", "test", "data"), datasets.describe("imagenet", "data")
    assert sorted(data.labels.tolist()) == sorted(INDICES) and data.classes == about.classes == 1000
    assert about.sizes["test"] == 5 and about.shape == (3, 224, 224)
    assert "has 5 of the 1,000 classes" in about.notes[0]
    assert "robustbench" not in about.sizes
    with pytest.raises(RbError, match="holds none of the images of the split robustbench"):
        datasets.load("imagenet", "robustbench", "data")
    path = next(flat.glob("*/*_00000005.JPEG"))
    path.rename(path.with_name(f"ILSVRC2012_val_{facts().robustbench[0]:08}.JPEG"))
    subset = datasets.load("imagenet", "robustbench", "data")
    assert subset.labels.tolist() == [INDICES[4]]
    assert datasets.describe("imagenet", "data").sizes["robustbench"] == 1
    # The folder itself is found too, and its content decides the fingerprint, not its place.
    again = datasets.fingerprint("imagenet", "test", flat)
    assert again == datasets.fingerprint("imagenet", "test", "data")
    assert again != datasets.fingerprint("imagenet:bicubic-256-224", "test", flat)


def test_images_are_scaled_and_cropped_as_torchvision_does_it(flat: Path) -> None:
    (flat / "val.txt").write_text(LABELS["val.txt"])
    from rbtools.models.torchvision_import import torchvision

    functional = torchvision.transforms.functional
    modes = torchvision.transforms.InterpolationMode
    sizes: dict[str, object] = {
        "bilinear-256-224": lambda im: functional.center_crop(functional.resize(im, 256), 224),
        "bicubic-256-224": lambda im: functional.center_crop(functional.resize(im, 256, modes.BICUBIC), 224),
        "crop-288": lambda im: functional.center_crop(im, 288),
        "squash-224": lambda im: functional.resize(im, [224, 224]),
    }
    for name, wanted in sizes.items():
        data = datasets.load(f"imagenet:{name}", "test", "data")
        for number, path in enumerate(sorted(flat.glob("*.JPEG"))):
            expected = np.array(wanted(Image.open(path).convert("RGB")))  # type: ignore[operator]
            assert torch.equal(data.images[number], torch.from_numpy(expected).permute(2, 0, 1)), (name, path)


def test_other_folders_and_preprocessings_are_refused(flat: Path) -> None:
    with pytest.raises(RbError, match=r"no preprocessing 'lanczos'. Write imagenet, which is"):
        datasets.load("imagenet:lanczos", "test", "data")
    with pytest.raises(RbError, match=r"was not found. Expected imagenet/val/n01440764"):
        datasets.load("imagenet", "train", "data")
    cats = in_folders(flat) / "cats"
    cats.mkdir()
    image(0, (9, 9)).save(cats / "a.png")
    with pytest.raises(RbError, match=r"class folders cats, which are no wnids.*imagefolder:PATH"):
        datasets.load("imagenet", "test", "data")


def packed(folder: Path, flat: Path, labels: tuple[int | str, ...] = INDICES) -> None:
    """Two WebDataset shards of the flat folder's images, in the order of their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, numbers in enumerate(((1, 2, 3), (4, 5))):
        with tarfile.open(folder / f"imagenet1k-validation-{shard:02}.tar", "w") as archive:
            for number in numbers:
                name = f"ILSVRC2012_val_{number:08}"
                image = (flat / f"{name}.JPEG").read_bytes()
                for ending, data in (("jpg", image), ("cls", str(labels[number - 1]).encode())):
                    member = tarfile.TarInfo(f"{name}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def test_webdataset_shards_are_the_same_images(flat: Path, tmp_path: Path, settled: None) -> None:
    packed(tmp_path / "packed" / "imagenet", flat)
    (flat.parent / "val.txt").write_text(LABELS["val.txt"])
    plain, shards = (datasets.load("imagenet", "test", folder) for folder in ("data", tmp_path / "packed"))
    assert shards.labels.tolist() == list(INDICES)
    assert torch.equal(shards.images[:], plain.images[:])
    about = datasets.describe("imagenet", tmp_path / "packed")
    assert about.sizes["test"] == 5 and "has 5 of the 1,000 classes" in about.notes[0]
    cache = archives.Memory()
    content = datasets.fingerprint("imagenet", "test", tmp_path / "packed")
    assert [datasets.fingerprint("imagenet", "test", tmp_path / "packed", cache) for _ in "ab"] == [
        content
    ] * 2
    assert list(cache.values()) == [content]
    packed(tmp_path / "packed" / "imagenet", flat, (1, *INDICES[1:]))
    assert datasets.fingerprint("imagenet", "test", tmp_path / "packed", cache) != content
    wanted = [number for number in range(1, 6) if number in facts().robustbench]
    assert about.sizes.get("robustbench", 0) == len(wanted)


def test_the_hubs_parquet_files_are_the_same_images(flat: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    folder = tmp_path / "hub" / "imagenet-1k" / "data"
    folder.mkdir(parents=True)
    for part, numbers in enumerate(((1, 2), (3, 4, 5))):
        rows = [{"bytes": (flat / f"ILSVRC2012_val_{n:08}.JPEG").read_bytes(), "path": None} for n in numbers]
        table = pa.table({"image": rows, "label": [INDICES[n - 1] for n in numbers]})
        pq.write_table(table, folder / f"validation-{part:05}-of-00002.parquet")
    pq.write_table(pa.table({"image": rows, "label": [-1, -1, -1]}), folder / "test-00000-of-00001.parquet")
    (flat.parent / "val.txt").write_text(LABELS["val.txt"])
    plain, hub = (datasets.load("imagenet", "test", place) for place in ("data", tmp_path / "hub"))
    assert hub.labels.tolist() == list(INDICES) and torch.equal(hub.images[:], plain.images[:])
    assert torch.equal(hub.images[[4, 0, 2]], plain.images[[4, 0, 2]])


@pytest.mark.parametrize("name", ["ILSVRC2012_val_{:08}.JPEG", "val/ILSVRC2012_val_{:08}_n01440764.JPEG"])
def test_robustbenchs_images_are_found_in_parquet_files_by_their_names(tmp_path: Path, name: str) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    chosen = facts().robustbench[0]
    numbers = [chosen + 1, chosen, chosen + 2]
    assert not {chosen + 1, chosen + 2} & set(facts().robustbench)
    folder = tmp_path / "hub" / "imagenet"
    folder.mkdir(parents=True)
    rows = [
        {"bytes": archives.png(archives.pixels(n, 1, 3, 8, 8)[0]), "path": name.format(n)} for n in numbers
    ]
    table = pa.table({"image": rows, "label": [0, 7, 9]})
    pq.write_table(table, folder / "validation-00000-of-00001.parquet", row_group_size=2)
    assert datasets.describe("imagenet", tmp_path / "hub").sizes["robustbench"] == 1
    subset = datasets.load("imagenet", "robustbench", tmp_path / "hub")
    assert subset.labels.tolist() == [7]
    whole = datasets.load("imagenet", "test", tmp_path / "hub")
    assert torch.equal(subset.images[:], whole.images[1:2])


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ((1000, *INDICES[1:]), "class index 1000"),
        (("x", *INDICES[1:]), "invalid literal"),
        (("1" * 9, 1, 2, 3, 4), "-1"),
    ],
)
def test_a_shard_with_another_label_is_refused(
    flat: Path, tmp_path: Path, labels: tuple[int | str, ...], words: str
) -> None:
    packed(tmp_path / "packed" / "imagenet", flat, labels)
    with pytest.raises(RbError, match=words):
        datasets.load("imagenet", "test", tmp_path / "packed")


def test_a_shard_that_is_cut_off_or_without_labels_is_refused(flat: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed" / "imagenet"
    packed(folder, flat)
    shard = folder / "imagenet1k-validation-01.tar"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:2000])
    with pytest.raises(RbError, match=r"imagenet1k-validation-01.tar.*cut off"):
        datasets.load("imagenet", "test", tmp_path / "packed")
    with tarfile.open(shard, "w") as archive:
        archive.add(flat / "ILSVRC2012_val_00000001.JPEG", "a.jpg")
        link = tarfile.TarInfo("a.cls")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(RbError, match=r"a.jpg has no .cls"):
        datasets.load("imagenet", "test", tmp_path / "packed")
