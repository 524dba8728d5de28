"""Latent depth: its gates in training, its three ways at inference."""

from dataclasses import replace

import pytest
import torch
from conftest import PAD, random_batch, tiny_translator

from anydepth.data.collate import Packing
from anydepth.depth.latent import Latent, LatentConfig, draw_gates, logistic
from anydepth.errors import UserError
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.plan import Noise, Plan, Request
from anydepth.training.graphs import copied

BATCH = random_batch([(5, 6), (2, 4), (7, 3)])
MANY = 200_000


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def latent(layers: int = 4, **settings: object) -> Latent:
    return LatentConfig(**settings).build(layers)


def set_logits(model: Translator, *values: float) -> None:
    for policy in (model.encoder_depth, model.decoder_depth):
        with torch.no_grad():
            policy.logits[0].copy_(torch.tensor(values))


def many(alpha: float, hard: bool, temperature: float = 5.0) -> torch.Tensor:
    noise = Noise(logistic(MANY, generator()), torch.tensor(temperature), torch.tensor(float(hard)))
    return draw_gates(torch.tensor(alpha, dtype=torch.double), noise)


# ---- the gates of training


@pytest.mark.parametrize(("alpha", "mean"), [(0.0, 0.5), (3.0, 0.642), (10.0, 0.876)])
def test_soft_gates_at_the_default_temperature(alpha: float, mean: float) -> None:
    assert LatentConfig().temperature == 5.0
    assert float(many(alpha, hard=False).mean()) == pytest.approx(mean, abs=1e-3)
    if alpha == 0:
        assert float(many(alpha, hard=False).std()) == pytest.approx(0.087, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.1, 5.0])
@pytest.mark.parametrize("alpha", [-2.0, 0.0, 1.5])
def test_hard_gates_select_with_the_sigmoid_of_the_logit(alpha: float, temperature: float) -> None:
    gates = many(alpha, hard=True, temperature=temperature)
    assert set(gates.tolist()) == {0.0, 1.0}
    assert float(gates.mean()) == pytest.approx(float(torch.tensor(alpha).sigmoid()), abs=5e-3)


def test_noise_is_the_difference_of_two_gumbel_draws() -> None:
    uniform = torch.rand(2, MANY, generator=generator(), dtype=torch.double)
    gumbel = -torch.log(-torch.log(uniform))
    quantiles = torch.linspace(0.01, 0.99, 25, dtype=torch.double)
    ours, theirs = (torch.quantile(draws, quantiles) for draws in (logistic(MANY, generator(2)), gumbel[0] - gumbel[1]))
    assert torch.allclose(ours, theirs, atol=0.1)


def test_hard_gates_have_the_gradient_of_the_soft_ones() -> None:
    alpha = torch.randn(8, requires_grad=True)
    noise = Noise(logistic(8, generator()), torch.tensor(2.0), torch.tensor(0.0))
    soft = draw_gates(alpha, noise)
    hard = draw_gates(alpha, noise._replace(hard=torch.tensor(1.0)))
    assert torch.equal(hard, (soft > 0.5).float())
    (wanted,) = torch.autograd.grad(soft.sum(), alpha)
    (found,) = torch.autograd.grad(hard.sum(), alpha)
    assert torch.equal(found, wanted)


def test_logits_start_at_zero() -> None:
    for row in latent(6, per="pair", keys=("a", "b")).logits:
        assert torch.equal(row, torch.zeros(6))


def test_the_temperature_follows_its_schedule() -> None:
    constant = LatentConfig()
    assert constant.temperature_at(1) == constant.temperature_at(99_999) == 5.0
    linear = LatentConfig(anneal="linear", final_temperature=1.0, anneal_steps=10)
    assert [linear.temperature_at(step) for step in (1, 6, 11, 50)] == [5.0, 3.0, 1.0, 1.0]
    exponential = LatentConfig(anneal="exponential", temperature=4.0, final_temperature=1.0, anneal_steps=10)
    assert [exponential.temperature_at(step) for step in (1, 6, 11)] == pytest.approx([4.0, 2.0, 1.0])
    assert latent(anneal="linear", final_temperature=1.0, anneal_steps=10).noise(6, generator()).temperature == 3.0


def test_hard_samples_begin_after_the_soft_steps() -> None:
    policy = latent(samples="hard", soft_steps=5)
    assert [float(policy.noise(step, generator()).hard) for step in (1, 5, 6)] == [0.0, 0.0, 1.0]
    assert float(latent().noise(100, generator()).hard) == 0.0


def test_each_language_has_its_own_draw() -> None:
    policy = latent(per="target", keys=("de", "fr"))
    noise = policy.noise(1, generator())
    assert noise.logistic.shape == (2, 4)
    plan = policy.sample(Request(key="de"), generator())
    german, french = (policy.gates(plan, Request(key=key), noise) for key in ("de", "fr"))
    assert not torch.equal(german, french)
    german.sum().backward()
    assert policy.logits[0].grad is not None
    assert policy.logits[1].grad is None  # Adam would move a row that has a gradient of zero


# ---- keys


def test_keys_name_rows() -> None:
    assert latent().row("whatever") == 0
    assert latent(per="pair", keys=("en-de", "en-fr")).row("en-fr") == 1
    assert latent(per="target", keys=("de", "fr")).row("en-fr") == 1
    assert latent(per="source", keys=("de", "fr")).row("fr-en") == 1


def test_unknown_and_missing_keys_are_refused() -> None:
    policy = latent(per="target", keys=("de", "fr"))
    with pytest.raises(UserError, match="language 'en-it': unknown; this model knows de, fr"):
        policy.plan(Request(key="en-it"))
    with pytest.raises(UserError, match=r"say which \(--language\); this model knows de, fr"):
        policy.plan(Request())
    with pytest.raises(UserError, match="language 'en-it': unknown"):
        policy.sample(Request(key="en-it"), generator())
    with pytest.raises(UserError, match="this model knows none"):
        latent(per="target").row("en-de")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", 0.0), ("final_temperature", -1.0), ("anneal_steps", 0), ("soft_steps", -1), ("keys", ("a",))],
)
def test_settings_out_of_range_are_named(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{setting}"):
        LatentConfig(**{setting: value})


# ---- inference


def test_hard_leaves_layers_out() -> None:
    model = tiny_translator(LatentConfig())
    set_logits(model, 2.0, -1.0, 0.5, -0.01)
    assert model.plan().encoder == Plan((0, 2))
    assert model.depths() == ["2-2"]
    assert model.encoder_depth.gates(model.plan().encoder, Request()) is None


@pytest.mark.parametrize("values", [(-3.0, -1.0, -2.0, -9.0), (-3.0, 0.0, -2.0, -9.0)])
def test_a_plan_is_never_empty(values: tuple[float, ...]) -> None:
    model = tiny_translator(LatentConfig())
    set_logits(model, *values)
    assert model.plan().decoder == Plan((1,))


def test_before_training_there_is_a_plan() -> None:
    assert len(latent().plan(Request())) == 1


def test_saturated_gates_are_a_subset_of_the_layers() -> None:
    """Drawn, soft, hard or sampled: logits far from 0 make them all the same plain model with some layers left out."""
    config = LatentConfig(temperature=0.1)
    model = tiny_translator(config).double()
    set_logits(model, 90.0, -90.0, 90.0, -90.0)
    expected = model(BATCH, model.plan())
    assert model.plan().encoder == Plan((0, 2))
    everything = model.sample("", generator(), generator())
    assert len(everything.encoder) == 4
    drawn = model(BATCH._replace(noise=model.noise(1, generator(1), generator(2))), everything)
    assert torch.allclose(drawn, expected, atol=1e-12)
    for mode in ("soft", "sample"):
        other = Translator(with_depth(model.config, replace(config, inference=mode)), 23, 23, PAD).double().eval()
        other.load_state_dict(model.state_dict())
        assert torch.allclose(other(BATCH, other.plan()), expected, atol=1e-12)


def with_depth(config: TranslatorConfig, depth: LatentConfig) -> TranslatorConfig:
    stack = StackConfig(layers=config.encoder.layers, depth=depth)
    return replace(config, encoder=stack, decoder=stack)


def test_soft_gates_at_inference_are_the_mean_of_those_in_training() -> None:
    for samples in ("soft", "hard"):
        policy = latent(3, inference="soft", samples=samples)
        with torch.no_grad():
            policy.logits[0].copy_(torch.tensor([-2.0, 0.0, 3.0]))
        gates = policy.gates(policy.plan(Request()), Request())
        for alpha, gate in zip((-2.0, 0.0, 3.0), gates.tolist()):
            assert gate == pytest.approx(float(many(alpha, hard=samples == "hard").mean()), abs=3e-3)


def test_soft_gates_at_inference_are_those_after_annealing() -> None:
    falling = LatentConfig(inference="soft", anneal="linear", final_temperature=0.5, anneal_steps=40)
    hardening = LatentConfig(inference="soft", samples="hard", soft_steps=30_000)
    for config, last in ((falling, 41), (hardening, 30_001)):
        policy = config.build(3)
        with torch.no_grad():
            policy.logits[0].copy_(torch.tensor([-2.0, 0.5, 3.0]))
        gates, alpha = policy.gates(policy.plan(Request()), Request()), policy.logits[0].detach()
        assert torch.equal(gates, config.expected(alpha, last))
        assert not torch.allclose(gates, config.expected(alpha, 1), atol=0.01)


def test_sampled_gates_depend_on_the_sentence_alone() -> None:
    policy = latent(50, inference="sample")
    plan, tokens = policy.plan(Request()), torch.tensor([[5, 6, 2, 0], [7, 8, 9, 2]])
    gates = policy.gates(plan, Request(tokens=tokens, pad=0))
    assert gates.shape == (50, 2, 1, 1)
    assert set(gates.flatten().tolist()) == {0.0, 1.0}
    assert not torch.equal(gates[:, 0], gates[:, 1])
    alone = policy.gates(plan, Request(tokens=torch.tensor([[5, 6, 2]]), pad=0))
    assert torch.equal(alone[:, 0], gates[:, 0])
    assert not torch.equal(alone, policy.gates(plan, Request(tokens=torch.tensor([[5, 6, 2]]), stack=1)))
    reseeded = latent(50, inference="sample", seed=2)
    assert not torch.equal(alone, reseeded.gates(plan, Request(tokens=torch.tensor([[5, 6, 2]]))))


@pytest.mark.parametrize("mode", ["hard", "soft", "sample"])
def test_two_runs_give_the_same_output(mode: str) -> None:
    model = tiny_translator(LatentConfig(inference=mode))
    assert torch.equal(model(BATCH, model.plan()), model(BATCH, model.plan()))


@pytest.mark.parametrize("mode", ["hard", "soft", "sample"])
def test_word_by_word_is_as_at_once_in_every_language(mode: str) -> None:
    model = tiny_translator(LatentConfig(per="pair", keys=("a", "b"), inference=mode)).double()
    outputs = []
    for key in ("a", "b"):
        plans, batch = model.plan(key=key), BATCH._replace(key=key)
        outputs.append(model.logits(model(batch, plans)))
        decoder = model.start(batch.source, plans, key)
        rows = torch.tensor([2, 2, 0, 1, 1])  # as a beam search spreads sentences over rows
        decoder.reorder(rows)
        for position in range(batch.target_in.shape[1]):
            words = batch.target_in[rows, position]
            found = decoder.step(words)[words != PAD]
            assert torch.allclose(found, outputs[-1][rows, position][words != PAD], atol=1e-10)
    assert not torch.allclose(*outputs)


def test_what_is_left_for_all_languages_are_the_layers_of_any() -> None:
    """No row has them all; renumbered, each still selects its own."""
    policy = latent(5, per="pair", keys=("a", "b", "c"))
    chosen = {"a": (0, 3), "b": (2,), "c": (2, 3)}
    for row, layers in zip(policy.logits, chosen.values()):
        row.data.fill_(-1.0)[list(layers)] = 1.0
    left = policy.for_all_keys()
    assert left.layers == (0, 2, 3)
    smaller = left.depth.build(len(left.layers))
    smaller.load_state_dict(left.learnt)
    for key, layers in chosen.items():
        assert tuple(left.layers[layer] for layer in smaller.plan(Request(key=key)).layers) == layers


# ---- the batch carries the noise


def test_a_recorded_pass_reads_new_noise_where_the_old_was() -> None:
    """CUDA graphs read tensors where they were when recorded: words and noise are copied there."""
    policy = latent(per="pair", keys=("a", "b"), anneal="linear", anneal_steps=4, samples="hard", soft_steps=1)
    packing = Packing(torch.tensor([0, 6]), 6, torch.arange(6)[None])
    words = BATCH._replace(source_packing=packing, target_packing=packing)
    first, second = (words._replace(noise=(None, policy.noise(step, generator(step)))) for step in (1, 3))
    places = [tensor.data_ptr() for tensor in first.noise[1]]
    read = copied(second, first)
    assert [tensor.data_ptr() for tensor in read.noise[1]] == places
    for found, wanted in zip(read.noise[1], second.noise[1]):
        assert torch.equal(found, wanted)
    assert float(read.noise[1].hard) == 1.0
    assert float(read.noise[1].temperature) == 2.75


# ---- the models around it


@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("stacks", [("encoder",), ("decoder",), ("encoder", "decoder")], ids=str)
def test_either_stack_or_both_with_and_without_norm(stacks: tuple[str, ...], norm: str) -> None:
    layer = LayerConfig(width=16, ffn=24, heads=2, norm=norm, dropout=0.0)
    depths = {name: StackConfig(layers=3, depth=LatentConfig()) for name in stacks}
    model = Translator(TranslatorConfig(layer=layer, **depths), 23, 23, PAD)
    batch = BATCH._replace(noise=model.noise(1, generator(1), generator(2)))
    model(batch, model.sample("", generator(), generator())).sum().backward()
    for name in ("encoder", "decoder"):
        rows = list(getattr(model, f"{name}_depth").parameters())
        assert len(rows) == (name in stacks)
        assert all(row.grad is not None for row in rows)


def test_post_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"decoder\.depth: latent scales the residual branches"):
        TranslatorConfig(layer=LayerConfig(norm="post"), decoder=StackConfig(depth=LatentConfig()))


def test_a_hundred_decoder_layers() -> None:
    layer = LayerConfig(width=8, ffn=8, heads=1, dropout=0.0)
    deep = StackConfig(layers=100, depth=LatentConfig())
    model = Translator(TranslatorConfig(layer=layer, encoder=StackConfig(layers=1), decoder=deep), 23, 23, PAD)
    batch = BATCH._replace(noise=model.noise(1, generator(1), generator(2)))
    states = model(batch, model.sample("", generator(), generator()))
    states.square().sum().backward()
    assert bool(states.isfinite().all())
    assert bool(model.decoder_depth.logits[0].grad.isfinite().all())
    assert len(model.decoder.layers) == 100
