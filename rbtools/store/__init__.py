"""Results and checkpoints on disk, under keys that hash everything that determines a result."""

from __future__ import annotations

from rbtools.store.checksum import canonical, digest
from rbtools.store.content_store import Store, object_name

__all__ = ["Store", "canonical", "digest", "object_name"]
