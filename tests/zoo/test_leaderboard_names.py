"""Names of RobustBench's entries: every row is a network, and an ambiguous name is refused."""

from __future__ import annotations

import re

import pytest

from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints, named_arch
from rbtools.inputs.data import data_of
from rbtools.spaces.identity import identity
from rbtools.zoo import leaderboard_names, repositories


@pytest.mark.slow
def test_every_row_names_a_network_a_normalisation_and_a_preprocessing() -> None:
    rows = leaderboard_names.table()
    assert len(rows) >= 188 and not {key.rpartition("/")[2] for key in rows} & set(leaderboard_names.WITHOUT)
    for key, (text, normalize, how) in rows.items():
        arch = named_arch(f"robustbench:{key}")
        identity(arch)
        assert ("normalize" in arch) == bool(normalize) and arch.get("preprocessing", "") == how
        assert how == "" or key.startswith("imagenet/")
        if text.startswith("repo:"):
            name = text.split(":")[1]
            assert any(re.fullmatch(family.NAMES, name) for family in repositories.families()), name


def test_a_name_is_completed_by_the_classes_of_the_data() -> None:
    found = [
        named_arch("robustbench:Wang2023Better_WRN-28-10", classes)["normalize"] for classes in (10, 100)
    ]
    assert found == [
        [[0.4914, 0.4822, 0.4465], [0.2471, 0.2435, 0.2616]],
        [[0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]],
    ]
    assert named_arch("robustbench:cifar100/Wang2023Better_WRN-28-10")["normalize"] == found[1]
    run = Run.of("rb-test", dataset="cifar100")
    assert CheckpointHints(arch="robustbench:Wang2023Better_WRN-28-10").given(run)["normalize"] == found[1]
    for name, message in (
        ("Wang2023Better_WRN-28-10", r"means several networks. Say which: robustbench:cifar10/Linf/Wang2023"),
        ("Kang2021Stable", "is a network with an ODE layer. Write a function that builds it"),
        ("Wang2023Better_WRN-28", "Did you mean 'Wang2023Better_WRN-28-10'"),
    ):
        with pytest.raises(RbError, match=message):
            named_arch(f"robustbench:{name}")


def test_images_are_preprocessed_as_the_network_wants_them() -> None:
    arch = named_arch("robustbench:imagenet/Mo2022When_ViT-B")
    assert data_of({"arch": arch}, Run.of("rb-test", dataset="digits")).name == "digits"
    with pytest.raises(RbError, match="The data set imagenet:squash-224 was not found"):
        data_of({"arch": arch}, Run.of("rb-test", dataset="imagenet"))
