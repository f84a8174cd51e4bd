"""What the full scale of a reproduction needs and lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbtools.papers import needed_files
from rbtools.papers.recipes import Setting


def test_missing_data_says_which_file_where_from_and_which_layout() -> None:
    said = needed_files.absent("nas-bench-201-robustness", Setting("full", data="data", weights="weights"))
    assert "  weights\n    from: the authors of NAS-Bench-201" in said
    layout = "train_data_batch_1 ... train_data_batch_10, val_data"
    authors = "the authors of NAS-Bench-201 (ImageNet16.tar)"
    assert f"  data/ImageNet16\n    from: {authors}\n    layout: {layout}" in said
    Path("weights").mkdir()
    Path("data/CIFAR-10-C").mkdir(parents=True)
    said = needed_files.absent("nas-bench-201-robustness", Setting("full", data="data", weights="weights"))
    assert "  weights" not in said and "CIFAR-10-C" not in said and "CIFAR-100-C" in said


def test_weights_of_timm_are_named_where_the_hub_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--timm--there.fb").mkdir()
    vits = "timm:there.fb:side=32,timm:missing.fb:side=32"
    said = needed_files.absent("prbench", Setting("full", pairs="", vits=vits, vit_s=""))
    assert f"{tmp_path}/models--timm--missing.fb" in said and "there.fb" not in said
    assert "hf download timm/missing.fb model.safetensors" in said and "PR_VITS=" in said
