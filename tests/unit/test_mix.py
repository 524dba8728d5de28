"""DLCL: by hand, at its limits, differentiated by products over all states, and decoded word by word."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
import torch
from conftest import FULL, PAD, assert_exits_equal_separate_runs, random_batch, tiny_translator
from torch import Tensor

from anydepth.config import Config
from anydepth.depth.prefix import PrefixConfig
from anydepth.interop.extract import extracted
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.attention import Padded
from anydepth.nn.layers import LayerConfig
from anydepth.nn.mix import LinearMix
from anydepth.nn.stack import Stack
from anydepth.objectives import ExitGridConfig
from anydepth.plan import Plan
from anydepth.run import Run
from anydepth.training.checkpoint import load_weights
from anydepth.training.settings import TrainingConfig

BATCH = random_batch([(5, 6), (2, 4), (7, 3)])


def dlcl(norm: str = "pre", layers: int = 3) -> Translator:
    layer = LayerConfig(width=16, ffn=24, heads=2, norm=norm, dropout=0.0)
    stack = StackConfig(layers=layers, mix="dlcl")
    return Translator(TranslatorConfig(layer=layer, encoder=stack, decoder=stack), 23, 23, PAD).double().eval()


def test_mixtures_start_as_averages() -> None:
    mix = LinearMix(LayerConfig(width=4, heads=1, norm="none"), 2)
    earlier: list[torch.Tensor] = []
    states = [torch.full((1, 1, 4), value) for value in (1.0, 2.0, 6.0)]
    assert [float(mix(earlier, state)[0, 0, 0].detach()) for state in states] == pytest.approx([1.0, 1.5, 3.0])


def test_a_mixture_by_hand() -> None:
    """The embedding stays as it is, the outputs of layers are normalised."""
    mix = LinearMix(LayerConfig(width=2, heads=1), 1)
    with torch.no_grad():
        mix.weights[1].copy_(torch.tensor([10.0, 3.0]))
    earlier: list[torch.Tensor] = []
    assert mix(earlier, torch.tensor([[[5.0, 7.0]]])).tolist() == [[[5.0, 7.0]]]
    found = mix(earlier, torch.tensor([[[-8.0, 8.0]]]))  # normalised: −1, 1
    assert found.flatten().tolist() == pytest.approx([50 - 3, 70 + 3], abs=1e-3)


def test_weight_on_the_last_state_alone_is_residual() -> None:
    mixed, plain = dlcl("none"), tiny_translator(FULL, layers=3, norm="none").double()
    with torch.no_grad():
        for stack in (mixed.encoder, mixed.decoder):
            for weights in stack.mix.weights:
                weights.copy_(torch.eye(len(weights))[-1])
    own = {name: weight for name, weight in mixed.named_parameters() if ".mix." not in name}
    load_weights(plain, own)
    assert torch.equal(mixed(BATCH, mixed.plan()), plain(BATCH, plain.plan()))


def test_every_weight_learns() -> None:
    model = dlcl()
    model(BATCH, model.plan()).square().sum().backward()
    for stack in (model.encoder, model.decoder):
        for parameter in stack.mix.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.any())


# ---- one product for all states, against one after the other

SEES = Padded(None)
WHOLE = Plan((0, 1, 2, 3))
Gradients = dict[str, Tensor | None]


def stack(norm: str = "pre") -> Stack:
    torch.manual_seed(1)
    made = Stack(LayerConfig(width=6, ffn=8, heads=2, norm=norm, dropout=0.0), 4, decoder=False, mix="dlcl").double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def words() -> Tensor:
    return torch.randn(2, 3, 6, dtype=torch.double, generator=torch.Generator().manual_seed(2)).requires_grad_()


def one_by_one(stack: Stack, x: Tensor, plan: Plan) -> Iterator[Tensor]:
    """The states of a stack by the formula as it is written."""
    assert stack.mix is not None
    earlier: list[Tensor] = []
    x = stack.mix(earlier, x)
    yield x
    for layer in plan.layers:
        x = stack.mix(earlier, stack.step(layer, x, None, SEES))
        yield x


def at_once(stack: Stack, x: Tensor, plan: Plan) -> Iterator[Tensor]:
    return stack.states(x, plan, None, SEES)


def loss_of(states: Iterable[Tensor], exits: Sequence[int]) -> Tensor:
    """A loss of its own at each exit; no state above the last of them is asked for."""
    losses = []
    for step, state in enumerate(states):
        if step in exits:
            losses.append((state * (step + 1)).sin().sum())
        if len(losses) == len(exits):
            break
    return torch.stack(losses).sum()


def gradients(stack: Stack, x: Tensor) -> Gradients:
    found = {name: parameter.grad for name, parameter in stack.named_parameters()} | {"x": x.grad}
    stack.zero_grad(set_to_none=True)
    x.grad = None
    return found


def assert_same(found: Gradients, wanted: Gradients) -> None:
    assert any(gradient is not None for gradient in wanted.values())
    for name, gradient in wanted.items():
        other = found[name]
        assert (other is None) == (gradient is None), name
        assert gradient is None or other is None or torch.allclose(other, gradient, rtol=1e-9, atol=1e-12), name


def assert_learns_alike(stack: Stack, x: Tensor, loss: Callable[[Iterable[Tensor]], Tensor], plan: Plan) -> None:
    totals, found = [], []
    for way in (at_once, one_by_one):
        total = loss(way(stack, x, plan))
        total.backward()
        totals.append(float(total.detach()))
        found.append(gradients(stack, x))
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)
    assert_same(*found)


@pytest.mark.parametrize(
    ("plan", "exits"),
    [(WHOLE, [4]), (WHOLE, [2, 4]), (WHOLE, [0, 1, 2, 3, 4]), (WHOLE, [2]), (WHOLE, [0]), (Plan((0, 2, 3)), [1, 3])],
    ids=["whole", "two exits", "all exits", "early exit", "no layer", "a layer left out"],
)
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("norm", ["pre", "none"])
def test_gradients_are_those_of_the_formula(plan: Plan, exits: list[int], recompute: bool, norm: str) -> None:
    tested = stack(norm)
    tested.recompute = recompute
    assert_learns_alike(tested, words(), lambda states: loss_of(states, exits), plan)


def test_states_above_the_last_loss_count_for_nothing() -> None:
    assert_learns_alike(stack(), words(), lambda states: loss_of(list(states), [1, 2]), WHOLE)


@pytest.mark.parametrize("frozen", [["x"], ["mix.weights"], ["x", "mix.weights"], ["x", "mix", "layers.0", "layers.1"]])
def test_what_is_frozen_gets_no_gradient(frozen: list[str]) -> None:
    tested, x = stack(), words()
    for name, tensor in (*tested.named_parameters(), ("x", x)):
        tensor.requires_grad_(not name.startswith(tuple(frozen)))
    assert_learns_alike(tested, x, lambda states: loss_of(states, [2, 4]), WHOLE)


def test_states_need_not_depend_on_one_another() -> None:
    """A mixture's gradient reaches all states in it where no layer leads from one to the next."""
    mix, leaves = stack().mix, [words().detach().mul(k).requires_grad_() for k in range(1, 4)]
    assert mix is not None
    mixed, earlier = mix.start(leaves[0], 2), []
    found, wanted = ([way(leaf) for leaf in leaves][-1] for way in (mixed, lambda state: mix(earlier, state)))
    for one, other in zip(*(torch.autograd.grad(last.sin().sum(), leaves) for last in (found, wanted))):
        assert torch.allclose(one, other)


def test_a_pass_can_be_differentiated_again() -> None:
    """As far as autograd allows it: of what a backward pass left the next one counts nothing."""
    tested, x = stack(), words()
    loss_of(one_by_one(tested, x, WHOLE), [2, 4]).backward()
    wanted = gradients(tested, x)
    states = list(at_once(tested, x, WHOLE))
    high, low = loss_of(states, [4]), loss_of(states, [2])
    torch.autograd.grad(high, tested.layers[2].grow.weight, retain_graph=True)  # ends above the lower exit
    low.backward(retain_graph=True)
    high.backward()
    assert_same(gradients(tested, x), wanted)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        low.backward()


def test_gradients_of_gradients_are_refused() -> None:
    tested, x = stack(), words()
    (gradient,) = torch.autograd.grad(loss_of(at_once(tested, x, WHOLE), [4]), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_graph_keeps_the_states_once() -> None:
    mix, x = LinearMix(LayerConfig(width=6, heads=2, norm="none"), 8), words().float()
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        mixed, state = mix.start(x, 8), x
        for _ in range(9):
            state = mixed(state)
    assert sorted(kept.values()) == [4 * 9 * 9, 4 * 9 * x.numel()]  # the table of weights, and the states


def test_a_backward_pass_leaves_nothing_behind() -> None:
    """Even while somebody holds the loss."""
    mix, x = LinearMix(LayerConfig(width=6, heads=2), 2), words().float()
    mixed = mix.start(x, 2)
    loss = mixed(mixed(mixed(x))).sum()
    states, later = weakref.ref(mixed.states), mixed.later
    del mixed
    assert states() is not None
    assert not later  # no room for gradients before there are any
    loss.backward()
    assert states() is None
    assert not later


def test_bfloat16_is_near() -> None:
    tested, x = stack().float(), words().detach().float().requires_grad_()
    loss_of(one_by_one(tested, x, WHOLE), [2, 4]).backward()
    wanted = gradients(tested, x)
    with torch.autocast("cpu", torch.bfloat16):
        states = list(at_once(tested, x.bfloat16(), WHOLE))
        with torch.no_grad():
            light = list(at_once(tested, x.bfloat16(), WHOLE))
        loss_of([state.float() for state in states], [2, 4]).backward()
    assert {state.dtype for state in states + light} == {torch.bfloat16}
    assert all(torch.allclose(one, other, rtol=0.05, atol=0.1) for one, other in zip(states, light))
    for name, gradient in gradients(tested, x).items():
        exact = wanted[name]
        assert gradient is not None
        assert exact is not None
        assert gradient.dtype == torch.float32
        assert float((gradient - exact).norm()) <= 0.1 * float(exact.norm()), name  # 0.047 was seen


def test_weights_have_the_names_of_old() -> None:
    mix = LinearMix(LayerConfig(width=4, heads=1), 2)
    weights = {f"weights.{k}": (k + 1,) for k in range(3)}
    norms = {f"norms.{k}.{name}": (4,) for k in (1, 2) for name in ("weight", "bias")}
    assert {name: tuple(tensor.shape) for name, tensor in mix.state_dict().items()} == weights | norms


# ---- the rest of the product


@pytest.mark.parametrize("differentiable", [True, False])
def test_word_by_word_is_as_at_once(differentiable: bool) -> None:
    model = dlcl()
    expected = model.logits(model(BATCH, model.plan())).detach()
    with torch.set_grad_enabled(differentiable):
        decoder = model.start(BATCH.source, model.plan())
        for position in range(BATCH.target_in.shape[1]):
            tokens = BATCH.target_in[:, position]
            found = decoder.step(tokens)[tokens != PAD]
            assert torch.allclose(found, expected[:, position][tokens != PAD], atol=1e-10)


def test_an_export_keeps_the_mixture() -> None:
    model = dlcl()
    config, tensors = extracted(Run(Config(model=model.config), model, tokenizers=None), model.plan())
    assert config.model == model.config
    assert tensors.keys() == dict(model.named_parameters()).keys()


def test_plans_that_leave_layers_out_are_refused() -> None:
    with pytest.raises(ValueError, match="mix: dlcl combines the states of all layers, and prefix may leave some out"):
        StackConfig(mix="dlcl", depth=PrefixConfig())


def test_objectives_that_share_decoder_layers_are_refused() -> None:
    mixed = StackConfig(mix="dlcl")
    model = TranslatorConfig(encoder=StackConfig(depth=PrefixConfig()), decoder=mixed)
    with pytest.raises(ValueError, match=r"exit-grid shares decoder layers, which model\.decoder\.mix forbids"):
        Config(model=model, training=TrainingConfig(objective=ExitGridConfig()))


def test_a_mixed_encoder_serves_several_decoder_depths() -> None:
    layer = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0)
    stacks = {"encoder": StackConfig(layers=3, mix="dlcl"), "decoder": StackConfig(layers=2, depth=PrefixConfig())}
    model = Translator(TranslatorConfig(layer=layer, **stacks), 23, 23, PAD).double()
    assert_exits_equal_separate_runs(model, BATCH)
