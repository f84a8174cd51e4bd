"""Images of ImageNet's size: how long decoding takes beside a ResNet-50, and how much memory.

    python bench/decoding.py [--images 5000] [--forward 64] [--threads 2] [--parquet ROWS]

Writes a WebDataset shard of that many JPEGs of 500x375 (copies of 100 synthetic ones), reads it as
`--dataset imagenet` in the batches of an evaluation (128), and lets a ResNet-50 classify `--forward` images.
With --parquet a parquet file of the Hub with groups of so many rows, of which 640 random images are read.
`share` is decoding as a part of both; attacks take many such passes. `memory` is the most that the process
had, in megabytes, and `memory_of_torch` what it had before.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import resource
import tarfile
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image

from rbtools import datasets
from rbtools.models import build
from rbtools.models.statistics import synthetic

BATCH, DIFFERENT = 128, 100


def jpegs() -> list[bytes]:
    pixels = (synthetic((3, 375, 500), DIFFERENT) * 255).byte().permute(0, 2, 3, 1).numpy()
    encoded = []
    for one in pixels:
        stream = io.BytesIO()
        Image.fromarray(one).save(stream, "JPEG", quality=95)
        encoded.append(stream.getvalue())
    return encoded


def write(folder: Path, count: int, rows: int | None) -> None:
    encoded = jpegs()
    folder.mkdir()
    if rows is not None:
        write_parquet(folder / "validation-00000-of-00001.parquet", encoded, count, rows)
        return
    with tarfile.open(folder / "imagenet1k-validation-00.tar", "w") as archive:
        for number in range(count):
            for ending, data in (("jpg", encoded[number % DIFFERENT]), ("cls", str(number % 1000).encode())):
                member = tarfile.TarInfo(f"{number:06}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_parquet(path: Path, encoded: list[bytes], count: int, rows: int) -> None:
    """Every image differs by some bytes after its end, or pyarrow would store it once."""
    import pyarrow
    from pyarrow import parquet

    writer = None
    for first in range(0, count, rows):
        numbers = range(first, min(first + rows, count))
        images = [
            {
                "bytes": encoded[number % DIFFERENT] + number.to_bytes(8, "little"),
                "path": f"ILSVRC2012_val_{number + 1:08}.JPEG",
            }
            for number in numbers
        ]
        table = pyarrow.table({"image": images, "label": [number % 1000 for number in numbers]})
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=rows)
    if writer is not None:
        writer.close()


def megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@torch.no_grad()
def measured(folder: Path, forward: int, some: int | None) -> dict[str, float]:
    before = megabytes()
    start = time.perf_counter()
    data = datasets.load("imagenet", "test", folder)
    opened = time.perf_counter() - start
    start, used = time.perf_counter(), time.process_time()
    order = torch.arange(len(data)) if some is None else torch.randperm(len(data))[:some]
    for chosen in order.split(BATCH):
        data.images[chosen].float().div(255)
    decoding, processor = time.perf_counter() - start, time.process_time() - used
    network = build({"space": "zoo", "name": "resnet50"}, classes=1000, shape=(3, 224, 224)).eval()
    images = data.images[:forward].float().div(255)
    start = time.perf_counter()
    for chunk in images.split(64):
        network(chunk)
    classifying = time.perf_counter() - start
    each, of_network = decoding / len(order), classifying / len(images)
    return {
        "images": len(order),
        "seconds_to_open": round(opened, 2),
        "ms_to_decode": round(1000 * each, 2),
        "ms_of_the_processor": round(1000 * processor / len(order), 2),
        "ms_to_classify": round(1000 * of_network, 2),
        "share": round(each / (each + of_network), 4),
        "memory_of_torch": before,
        "memory": megabytes(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--forward", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parquet", type=int, metavar="ROWS")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (Path(folder, "imagenet"), options.images, options.parquet)
        writer = multiprocessing.get_context("spawn").Process(target=write, args=arguments)
        writer.start()  # a process of its own, whose memory does not count
        writer.join()
        print(json.dumps(measured(Path(folder), options.forward, 640 if options.parquet else None)))
