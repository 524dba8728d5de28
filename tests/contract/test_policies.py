"""What every depth policy must do, over the union of their configurations: a new one is tested by being there."""

import typing

import pytest
import torch
from conftest import BOS, PAD, random_batch, tiny_translator

from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.policy import Depth
from anydepth.depth.prefix import PrefixConfig
from anydepth.errors import UserError
from anydepth.plan import Plan, Plans, Request

CONFIGS = [kind() for kind in typing.get_args(DepthConfig)]
CONFIGS += [PrefixConfig(exits=(2,)), LatentConfig(inference="soft"), LatentConfig(inference="sample")]
LAYERS = 4

pytestmark = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.type)


def policy(config: DepthConfig) -> Depth:
    return config.build(LAYERS)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_plans_name_layers_that_exist(config: DepthConfig) -> None:
    plans = policy(config).plans()
    assert plans
    for depth, plan in plans.items():
        assert len(plan) == depth
        assert set(plan.layers) <= set(range(LAYERS))


def test_plans_are_data(config: DepthConfig) -> None:
    first, again = policy(config).plans(), policy(config).plans()
    assert first == again
    assert {plan: depth for depth, plan in first.items()} == {plan: depth for depth, plan in again.items()}


def test_plan_is_deterministic_and_deepest_by_default(config: DepthConfig) -> None:
    depth = policy(config)
    plans = depth.plans()
    assert depth.plan(Request()) == depth.plan(Request()) == plans[max(plans)]
    for wanted, plan in plans.items():
        assert depth.plan(Request(depth=wanted)) == plan


def test_an_impossible_depth_is_refused_with_the_choices(config: DepthConfig) -> None:
    depth = policy(config)
    with pytest.raises(UserError, match=f"depth 99.*{max(depth.plans())}"):
        depth.plan(Request(depth=99))


def test_equal_seeds_draw_equal_plans(config: DepthConfig) -> None:
    depth = policy(config)

    def draws(seed: int) -> list[Plan]:
        source = generator(seed)
        return [depth.sample(Request(), source) for _ in range(50)]

    assert draws(3) == draws(3)
    for plan in draws(3):
        assert set(plan.layers) <= set(range(LAYERS))
    if len(set(draws(3))) > 1:
        assert draws(3) != draws(4)


def test_sampling_leaves_global_randomness_alone(config: DepthConfig) -> None:
    before = torch.get_rng_state()
    policy(config).sample(Request(), generator(1))
    assert torch.equal(before, torch.get_rng_state())


def test_incremental_decoding_equals_full_decoding_at_every_depth(config: DepthConfig) -> None:
    model = tiny_translator(config).double()
    batch = random_batch([(5, 6), (2, 4), (7, 3)])
    for name in model.depths():
        plans = model.plan(name)
        expected = model.logits(model(batch, plans))
        decoder = model.start(batch.source, plans)
        for position in range(batch.target_in.shape[1]):
            got = decoder.step(batch.target_in[:, position])
            real = batch.target_in[:, position] != PAD
            assert torch.allclose(got[real], expected[real, position], atol=1e-10), (name, position)


def test_reordered_rows_go_on_as_what_they_were(config: DepthConfig) -> None:
    model = tiny_translator(config).double()
    batch = random_batch([(5, 6), (3, 6), (7, 6)])
    plans = model.plan()
    expected = model.logits(model(batch, plans))
    decoder = model.start(batch.source, plans)
    decoder.step(batch.target_in[:, 0])
    order = torch.tensor([2, 0])
    decoder.reorder(order)
    got = decoder.step(batch.target_in[order, 1])
    assert torch.allclose(got, expected[order, 1], atol=1e-10)


def test_a_layer_not_in_the_plan_is_not_computed(config: DepthConfig) -> None:
    model = tiny_translator(config)
    calls: list[int] = []
    for stack in (model.encoder, model.decoder):
        for number, layer in enumerate(stack.layers):
            layer.register_forward_hook(lambda *_, number=number: calls.append(number))
    for name in model.depths():
        plans = model.plan(name)
        calls.clear()
        model(random_batch([(3, 3)]), plans)
        assert calls == [*plans.encoder.layers, *plans.decoder.layers]


def test_the_batch_does_not_matter(config: DepthConfig) -> None:
    model = tiny_translator(config).double()
    batch = random_batch([(5, 6), (2, 4), (7, 3)])
    together = model(batch, model.plan())
    for row in range(3):
        length = int((batch.source[row] != PAD).sum())
        alone = batch._replace(
            source=batch.source[row : row + 1, :length],
            target_in=batch.target_in[row : row + 1],
            target_out=batch.target_out[row : row + 1],
        )
        real = batch.target_in[row] != PAD
        assert torch.allclose(model(alone, model.plan())[0, real], together[row, real], atol=1e-10)


def test_gradients_reach_the_policy(config: DepthConfig) -> None:
    model = tiny_translator(config, layers=2).double()
    own = [*model.encoder_depth.parameters(), *model.decoder_depth.parameters()]
    if not own:
        pytest.skip("this policy learns nothing")
    batch = random_batch([(3, 3)])._replace(noise=model.noise(1, generator(1), generator(2)))
    plans = model.sample("", generator(1), generator(2))

    def total(*_: torch.Tensor) -> torch.Tensor:
        return model(batch, plans).sum()

    assert torch.autograd.gradcheck(total, own)
    for gradient in torch.autograd.grad(total(), own):
        assert bool((gradient != 0).all())


def test_equal_seeds_draw_equal_noise(config: DepthConfig) -> None:
    model = tiny_translator(config)

    def noise(seed: int) -> list[torch.Tensor]:
        return [tensor for both in model.noise(7, generator(seed), generator(seed + 1)) for tensor in both or ()]

    for one, same, other in zip(noise(3), noise(3), noise(5)):
        assert torch.equal(one, same)
        assert one.dim() == 0 or not torch.equal(one, other)


def test_weights_round_trip(config: DepthConfig) -> None:
    from anydepth.training.checkpoint import load_weights, weights

    one, other = tiny_translator(config), tiny_translator(config)
    load_weights(other, {name: value.clone() for name, value in weights(one).items()})
    batch = random_batch([(3, 3)])
    for name in one.depths():
        assert torch.equal(one(batch, one.plan(name)), other(batch, other.plan(name)))


def test_plans_of_both_stacks_have_a_name(config: DepthConfig) -> None:
    model = tiny_translator(config)
    for name in model.depths():
        plans = model.plan(name)
        assert isinstance(plans, Plans)
        assert plans.name == name


def test_the_decoder_starts_with_any_word(config: DepthConfig) -> None:
    model = tiny_translator(config)
    logits = model.start(torch.tensor([[5, 6, 2]]), model.plan()).step(torch.tensor([BOS]))
    assert logits.shape == (1, 23)
    assert bool(logits.isfinite().all())


def test_an_extracted_model_computes_what_the_large_one_does_at_that_depth(config: DepthConfig) -> None:
    from anydepth.config import Config
    from anydepth.interop.extract import extracted
    from anydepth.models import Translator
    from anydepth.run import Run
    from anydepth.training.checkpoint import load_weights

    if config.type == "per-word":
        pytest.skip("for classifiers alone; tests/integration/test_classification.py exports one")
    model = tiny_translator(config)
    run = Run(Config(model=model.config), model, tokenizers=None)
    batch = random_batch([(5, 6), (2, 4)])
    for name in model.depths():
        smaller_config, tensors = extracted(run, model.plan(name))
        smaller = Translator(smaller_config.model, 23, 23, PAD).eval()
        load_weights(smaller, tensors)
        assert smaller.depths()[-1] == name
        assert torch.equal(smaller(batch, smaller.plan()), model(batch, model.plan(name)))
        if config.type != "recurrent":
            assert smaller.depths() == [name]
