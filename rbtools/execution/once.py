"""Work that only one process does, such as a training run. Others with the same store wait for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rbtools.execution.run import Run


def once(
    run: Run, key: str, look_up: Callable[[], Any], compute: Callable[[], Any], *, title: str, unit: str
) -> Any:
    """Return the result of `look_up`. If it is None, `compute` computes and stores the result while this
    process holds the lease `key`.

    `title` and `unit` ("training") describe the work in a dry run, which raises Pending. The result is
    counted as found, or as computed (by any process).
    """
    result = look_up()
    if result is not None:
        run.store.found += 1
        return result
    if run.plan is not None:
        run.plan.lacks(key, title, unit=unit)

    def waiting() -> None:
        run.report.check_cancelled()
        run.report.progress(f"another process is doing this {unit}; waiting for its result")

    with run.store.claimed(key, lambda: look_up() is not None, waiting):
        result = look_up()
        if result is None:
            result = compute()
    run.store.computed += 1
    return result
