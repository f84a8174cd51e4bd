"""The store of finished work: results and checkpoints under keys that hash everything that determines
them."""

from __future__ import annotations

from rbtools.store.checksum import canonical, digest
from rbtools.store.content_store import Store, object_name

__all__ = ["Store", "canonical", "digest", "object_name"]
