"""Where Triton cannot start kernels, there are none."""

from types import SimpleNamespace

import pytest
import torch

from anydepth.decoding.decoder import has_kernels
from anydepth.nn import packed_attention


class NoCompiler:
    @property
    def active(self) -> object:
        raise RuntimeError("Failed to find C compiler")


def test_without_a_compiler_searches_go_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=NoCompiler())))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    packed_attention.launches.cache_clear()
    logits = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    try:
        with pytest.warns(UserWarning, match="Failed to find C compiler"):
            assert not has_kernels(logits)
        assert not has_kernels(logits)  # and says so once
    finally:
        packed_attention.launches.cache_clear()
