"""On a GPU: a selector's network replayed as CUDA graphs against the same one kernel by kernel."""

import pytest
import torch

from anydepth.selecting.model import SelectorConfig, SelectorNet
from anydepth.selecting.predictor import Predictor
from anydepth.selecting.training import predict

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def test_replayed_predictions_are_the_same() -> None:
    torch.manual_seed(1)
    net = SelectorNet(SelectorConfig(layers=2, heads=4, ffn=64), torch.randn(50, 32), 40, 6).eval().cuda()
    predictor = Predictor(net)
    for sizes in ([3], [15, 2, 7], [1, 1, 1, 1], [30], [16, 1, 9, 3, 2], [4]):
        ids = [torch.randint(0, 50, (size,)).tolist() for size in sizes]
        assert torch.allclose(predictor(ids), predict(net, ids), atol=1e-4)
    assert len(predictor.made) == 4
