"""Formats of rb-convert without the command: files as records, and records as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rbtools.formats import FORMATS, ConversionReport, Published, Unit
from tests.runner import Record


def put(path: str, content: Any) -> str:
    """Write bytes, a text, or a value as JSON."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    Path(path).write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def units(name: str, path: str, told: ConversionReport | None = None, **options: Any) -> list[Any]:
    """The units of a file or folder."""
    source = Published(Path(path), path)
    return list(FORMATS.build(name, **options).units(source, told or ConversionReport()))


def read(name: str, path: str, told: ConversionReport | None = None, **options: Any) -> list[Record]:
    """The records of a file or folder, none of whose units is bad."""
    chosen, told = FORMATS.build(name, **options), told or ConversionReport()
    return [chosen.record(unit.content, told, unit.where) for unit in units(name, path, told, **options)]


def texts(name: str, records: list[Record], told: ConversionReport | None = None, **options: Any) -> Any:
    """Path -> the text of the files that these records make."""
    chosen = FORMATS.build(name, **options)
    made = [Unit(f"line {n}", chosen.unit(json.loads(json.dumps(one)))) for n, one in enumerate(records, 1)]
    documents = chosen.documents(made, told or ConversionReport())
    return {document.path: document.content.decode() for document in documents}


def values(name: str, records: list[Record], told: ConversionReport | None = None) -> Any:
    """Path -> the JSON value of the files that these records make."""
    return {path: json.loads(text) for path, text in texts(name, records, told).items()}
