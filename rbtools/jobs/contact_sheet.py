"""A picture of corruptions: a row for each, a column for each severity."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rbtools.execution.run import Run
from rbtools.inputs.data import data_of
from rbtools.lazy import torch
from rbtools.rng.draws import Draws
from rbtools.store.files import user_output

CELL = 96  # least pixels that an image is enlarged to
GAP, TOP, LEFT = 4, 22, 150
INK, PAPER = (0, 0, 0), (255, 255, 255)


class SheetRow(NamedTuple):
    """One corruption: its name, and the image under each severity, uint8 (H, W, C)."""

    name: str
    images: list[Any]


class Sheet(NamedTuple):
    """A caption, the clean image, uint8 (H, W, C), and a row for each corruption."""

    caption: str
    clean: Any
    rows: list[SheetRow]


def corrupted_images(corruptions: Sequence[Any], severities: Sequence[int], run: Run) -> Sheet:
    """The first image of the data set under each corruption at each severity.

    The first in the order of evaluation, corrupted with the same random numbers as there. Raises RbError if
    the image is too small for a corruption.
    """
    data = data_of({}, run)
    dataset = data.load()
    ids = data.order(dataset.labels)[:1]
    image = dataset.images[ids].float().div(255)
    rows = []
    for corruption in corruptions:
        images = []
        for severity in severities:
            run.report.check_cancelled()
            run.report.progress(f"{corruption.name} {severity}")
            draws = Draws(run.settings.seed, f"corruption.{corruption.name}", ids)
            levels = corruption(image, severity, draws).mul(255).round().to(torch.uint8)[0]
            images.append(levels.permute(1, 2, 0).contiguous().numpy())
        rows.append(SheetRow(corruption.name, images))
    clean = dataset.images[ids][0].permute(1, 2, 0).contiguous().numpy()
    return Sheet(f"{data.name}, image {int(ids[0])}", clean, rows)


def draw(corruptions: Sequence[Any], severities: Sequence[int], file: Path, run: Run) -> str:
    """Draw the corrupted images of `corrupted_images` into a PNG; return a line about it.

    Raises RbError also where the file cannot be written.
    """
    from PIL import Image, ImageDraw

    sheet = corrupted_images(corruptions, severities, run)
    height, width = sheet.clean.shape[:2]
    scale = max(1, -(-CELL // max(height, width)))
    down, across = scale * height + GAP, scale * width + GAP
    picture = Image.new("RGB", (LEFT + len(severities) * across, TOP + len(corruptions) * down), PAPER)
    pen = ImageDraw.Draw(picture)
    for column, severity in enumerate(severities):
        pen.text((LEFT + column * across, 5), f"severity {severity}", INK)
    for number, row in enumerate(sheet.rows):
        pen.text((GAP, TOP + number * down + down // 2 - 8), row.name, INK)
        for column, image in enumerate(row.images):
            shown = image.repeat(3, 2) if image.shape[2] == 1 else image
            enlarged = Image.fromarray(shown).resize(
                (scale * width, scale * height), Image.Resampling.NEAREST
            )
            picture.paste(enlarged, (LEFT + column * across, TOP + number * down))
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    with user_output(file, hint="Name another file.") as target:
        target.write(stream.getvalue())
    return (
        f"{file} shows {sheet.caption}, under {len(corruptions)} corruption{'s' * (len(corruptions) != 1)}."
    )
