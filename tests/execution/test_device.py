"""The arithmetic of a device."""

from __future__ import annotations

import pytest
import torch

from rbtools.execution import device


def test_a_gpu_computes_in_float32_and_its_settings_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.set_float32_matmul_precision("high")
    try:
        with device.float32(torch.device("cuda")):
            assert not torch.backends.cudnn.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "high"
        with device.float32(torch.device("cpu")):
            assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")
