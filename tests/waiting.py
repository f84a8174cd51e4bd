"""A process that waits for another one's results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from rbtools.errors import Pending
from rbtools.store import Store


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Another process holds the work: this one computes batches of it, until it looks for results."""

    def claimed(store: Store, keys: Any, done: Any, waiting: Callable[[], None]) -> Any:
        waiting()
        raise Pending("Another process computes it.")

    with mock.patch.object(Store, "claimed", claimed), pytest.raises(Pending):
        yield
