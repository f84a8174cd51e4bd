"""Work that is done once, such as training runs. Other processes with the same store wait for the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rbtools.execution.run import Run


def once(
    run: Run, key: str, look_up: Callable[[], Any], compute: Callable[[], Any], *, title: str, unit: str
) -> Any:
    """The result of `look_up`. If it is None, `compute` makes and stores it while this process holds the
    lease `key`.

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
        run.report.progress(f"another process does this {unit}: waiting for it")

    with run.store.claimed(key, lambda: look_up() is not None, waiting):
        result = look_up()
        if result is None:
            result = compute()
    run.store.computed += 1
    return result
