"""A picture of corruptions: a row for each, a column for each severity."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rbtools.engine import subject, textures
from rbtools.engine.run import Run
from rbtools.store.files import written_whole

CELL = 96  # pixels that an image is at least enlarged to
GAP, TOP, LEFT = 4, 22, 150
INK, PAPER = (0, 0, 0), (255, 255, 255)


def draw(corruptions: Sequence[Any], severities: Sequence[int], file: Path, run: Run) -> str:
    """Draw the first image of the data set under everything into a PNG; return a line about it.

    The first of the order in which images are evaluated, corrupted as there. Raises RbError where
    the image is too small for a corruption, or the file cannot be written.
    """
    import torch
    from PIL import Image, ImageDraw

    from rbtools.engine.draws import Draws

    data = subject.data_of({}, run)
    dataset = data.load()
    ids = data.order(dataset.labels)[:1]
    image = dataset.images[ids].float().div(255)
    height, width = image.shape[2:]
    scale = max(1, -(-CELL // max(height, width)))
    down, across = scale * height + GAP, scale * width + GAP
    sheet = Image.new("RGB", (LEFT + len(severities) * across, TOP + len(corruptions) * down), PAPER)
    pen = ImageDraw.Draw(sheet)
    clean = f"{data.name}, image {int(ids[0])}"
    for column, severity in enumerate(severities):
        pen.text((LEFT + column * across, 5), f"severity {severity}", INK)
    for row, corruption in enumerate(corruptions):
        corrupt = textures.given(corruption)
        pen.text((GAP, TOP + row * down + down // 2 - 8), corruption.name, INK)
        for column, severity in enumerate(severities):
            run.pulse()
            run.progress(f"{corruption.name} {severity}")
            draws = Draws(run.seed, f"corruption.{corruption.name}", ids)
            levels = corrupt(image, severity, draws).mul(255).round().to(torch.uint8)[0]
            shown = levels.permute(1, 2, 0).expand(-1, -1, 3).contiguous().numpy()
            tile = Image.fromarray(shown).resize((scale * width, scale * height), Image.Resampling.NEAREST)
            sheet.paste(tile, (LEFT + column * across, TOP + row * down))
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    with written_whole(file, hint="Name another file.") as target:
        target.write(stream.getvalue())
    return f"{file} shows {clean}, under {len(corruptions)} corruptions."
