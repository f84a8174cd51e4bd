"""Every tool and method gives the golden numbers, within the rounding of another processor (make.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden import make

pytestmark = [pytest.mark.slow, pytest.mark.trains, pytest.mark.xdist_group("golden")]
GOLDEN: dict[str, Any] = json.loads(make.GOLDEN.read_text("utf-8"))


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(make.run()))
    return result


@pytest.mark.parametrize("step", GOLDEN)
def test_numbers_are_the_golden_ones(step: str, made: dict[str, Any]) -> None:
    assert not make.differences(GOLDEN[step], made[step], make.tolerance(step))


def test_every_step_is_golden(made: dict[str, Any]) -> None:
    assert list(made) == list(GOLDEN)
