"""The digit layer F_l(x) = 9x + l writes its number behind what was there: from 0, the plan (1, 3, 3) gives 133."""

import pytest
import torch
from conftest import FULL, random_batch, tiny_translator
from torch import Tensor, nn

from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZero, ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.errors import UserError
from anydepth.models import StackConfig, TranslatorConfig
from anydepth.nn.attention import Padded
from anydepth.nn.bridge import LastState
from anydepth.nn.layers import LayerConfig
from anydepth.nn.stack import Stack
from anydepth.plan import Plan, Request, parse_depth


class Digit(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor, gate: Tensor | None, *_: object) -> Tensor:
        return x + (1 if gate is None else gate) * (9 * x + self.number)


def digits(plan: tuple[int, ...], gates: Tensor | None = None) -> list[float]:
    stack = Stack(LayerConfig(width=4, ffn=4, heads=1), layers=1, decoder=False)
    stack.layers = nn.ModuleList(Digit(number) for number in range(7))
    return [float(x) for x in stack.states(torch.zeros(()), Plan(plan), gates, Padded(None))]


def test_a_plan_is_what_runs() -> None:
    assert digits((1, 3, 3)) == [0, 1, 13, 133]
    assert digits(()) == [0]
    assert digits((6, 5)) == [0, 6, 65]


def test_gates_stand_beside_the_plan() -> None:
    assert digits((1, 2, 3), torch.tensor([1.0, 0.0, 1.0])) == [0, 1, 1, 13]


def test_early_exit_computes_nothing_more() -> None:
    calls = []
    stack = Stack(LayerConfig(width=4, ffn=4, heads=1), layers=1, decoder=False)
    stack.layers = nn.ModuleList(Digit(number) for number in range(4))
    for layer in stack.layers:
        layer.register_forward_hook(lambda module, *_: calls.append(module.number))
    states = stack.states(torch.zeros(()), Plan((0, 1, 2, 3)), None, Padded(None))
    next(states), next(states), next(states)
    assert calls == [0, 1]


def drawn(policy: nn.Module, count: int = 2000) -> list[Plan]:
    generator = torch.Generator().manual_seed(1)
    return [policy.sample(Request(), generator) for _ in range(count)]


def test_limits_of_the_policies() -> None:
    assert set(drawn(LayerDropConfig(drop=0.0).build(5))) == {Plan((0, 1, 2, 3, 4))}
    assert set(drawn(FULL.build(3))) == {Plan((0, 1, 2))}
    assert set(drawn(PrefixConfig().build(3))) == {Plan((0,)), Plan((0, 1)), Plan((0, 1, 2))}
    assert set(drawn(PrefixConfig(sample="full").build(3))) == {Plan((0, 1, 2))}
    assert set(drawn(SubnetworkConfig(strategy="left").build(4))) == {Plan((0,)), Plan((0, 2)), Plan((0, 1, 2, 3))}
    assert RecurrentConfig(depth=3).build(1).plan(Request()) == Plan((0, 0, 0))
    assert RecurrentConfig(depth=5).build(2).plan(Request()) == Plan((0, 1, 0, 1, 0))


def test_layerdrop_drops_each_layer_as_often_as_told() -> None:
    plans = drawn(LayerDropConfig(drop=0.3).build(4), 4000)
    for layer in range(4):
        kept = sum(layer in plan.layers for plan in plans) / len(plans)
        assert kept == pytest.approx(0.7, abs=0.03)


def test_prefix_draws_every_depth_equally_often() -> None:
    plans = drawn(PrefixConfig().build(4), 4000)
    for depth in range(1, 5):
        assert sum(len(plan) == depth for plan in plans) / 4000 == pytest.approx(0.25, abs=0.03)


def test_rezero_starts_as_the_identity_and_can_learn() -> None:
    model = tiny_translator(ReZeroConfig())
    for depth in (model.encoder_depth, model.decoder_depth):
        assert isinstance(depth, ReZero)
        nn.init.zeros_(depth.scale)
    batch = random_batch([(4, 3)])
    out = model(batch, model.plan())
    embedded = model.target(batch.target_in, torch.arange(3)[None])
    assert torch.equal(out, embedded)
    out.square().sum().backward()
    assert model.decoder_depth.scale.grad is not None
    assert bool((model.decoder_depth.scale.grad != 0).all())


def test_soft_gates_are_refused_in_post_norm() -> None:
    with pytest.raises(ValueError, match=r"decoder\.depth: rezero .* post-norm"):
        TranslatorConfig(layer=LayerConfig(norm="post"), decoder=StackConfig(depth=ReZeroConfig()))


def test_the_bridge_gives_the_last_state_to_every_step() -> None:
    bridge = LastState(nn.Identity())
    memories = bridge(lambda _: iter([torch.tensor(1.0), torch.tensor(2.0)]), Plan((0, 1, 1)))
    assert [float(memory.state) for memory in memories] == [2.0, 2.0, 2.0]


def test_depths_are_written_encoder_decoder() -> None:
    assert parse_depth("6-2") == (6, 2)
    assert parse_depth(" 12 - 1 ") == (12, 1)
    for wrong in ("6", "6-", "six-two", "6-2-1", "-1-2", ""):
        with pytest.raises(UserError, match="for example 6-2"):
            parse_depth(wrong)


def test_a_text_beyond_the_positions_is_refused() -> None:
    model = tiny_translator(max_positions=8)
    with pytest.raises(UserError, match="9 tokens: this model has positions for 8"):
        model.start(torch.full((1, 9), 5), model.plan())
