"""Words that stop early: the limits are plain depths, and the margin keeps the risk it promises."""

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import BOS, FULL, PAD, Cli, random_batch, talkative_translator, tiny_translator

import anydepth
from anydepth.calibrating.confidence import (
    Outcome,
    binomial_tail,
    calibrate_exit,
    fewest_texts,
    find_confidence,
    fixed_sequence,
    hoeffding_bentkus,
    keep_confidence,
    losses,
    read_confidences,
)
from anydepth.decoding.decoder import Hypothesis
from anydepth.decoding.greedy import greedy
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.plan import Plan
from anydepth.translating.confident import ConfidentDecoder

SOURCE = random_batch([(n % 7 + 2, 2) for n in range(16)]).source
LIMITS = torch.tensor([3 + n % 11 for n in range(16)])
END = 7
GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = ["July", "the first of May", "", "twenty-three euros", "Monday, 4 July 2011"]


def model() -> Translator:
    return talkative_translator(PrefixConfig())


def plain(translator: Translator, depth: str) -> list[list[int]]:
    return tokens(greedy(translator.start(SOURCE, translator.plan(depth)), BOS, END, PAD, LIMITS))


def confident(
    translator: Translator, margin: float, exit: int = 1, rows: slice = slice(None)
) -> tuple[list[list[int]], float]:
    decoder = ConfidentDecoder(translator, SOURCE[rows], translator.plan(), Plan(tuple(range(exit))), margin)
    found = greedy(decoder, BOS, END, PAD, LIMITS[rows])
    return tokens(found), decoder.mean_layers


def tokens(found: list[Hypothesis]) -> list[list[int]]:
    return [one.tokens for one in found]


def middle_margin(translator: Translator) -> float:
    """One that about half of the words reach."""
    return next(margin for margin in (k / 200 for k in range(200)) if confident(translator, margin)[1] > 2.5)


# ---- the decoder


@pytest.mark.parametrize("exit", [1, 2, 3])
def test_never_sure_is_full_depth_and_always_sure_the_exit(exit: int) -> None:
    translator = model()
    full, shallow = plain(translator, "4-4"), plain(translator, f"4-{exit}")
    assert full != shallow
    assert confident(translator, 1.0, exit) == (full, 4.0)
    assert confident(translator, 0.0, exit) == (shallow, exit)


def test_the_surer_it_must_be_the_deeper_it_goes() -> None:
    translator = model()
    middle = middle_margin(translator)
    depths = [confident(translator, margin)[1] for margin in (0, middle / 2, middle, 1.5 * middle, 1)]
    assert depths == sorted(depths)
    assert len(set(depths)) == 5


def test_batch_mates_do_not_matter() -> None:
    """Alone, the layers above are left out; beside others that are not sure, they run and are not looked at."""
    translator = model()
    margin = middle_margin(translator)
    together, _ = confident(translator, margin)
    assert together not in (plain(translator, "4-4"), plain(translator, "4-1"))
    alone = [confident(translator, margin, rows=slice(n, n + 1))[0][0] for n in range(16)]
    assert alone == together


@torch.no_grad()
def test_probabilities_depend_neither_on_batch_mates_nor_on_rows_that_left() -> None:
    """Also where the layers above see their first word after some rows have gone."""
    translator = model()
    everyone, plans, exit, margin = torch.arange(16), translator.plan(), Plan((0,)), middle_margin(translator)
    together = ConfidentDecoder(translator, SOURCE, plans, exit, 0.0)
    alone = [ConfidentDecoder(translator, SOURCE[row : row + 1], plans, exit, 0.0) for row in everyone]
    words = torch.randint(3, 23, (9, 16), generator=torch.Generator().manual_seed(1))
    for step, tokens in enumerate(words):
        found = together.step(tokens[everyone])
        expected = torch.cat([alone[row].step(tokens[row : row + 1]) for row in everyone])
        assert torch.allclose(found, expected, atol=1e-9), step
        if step == 0:
            everyone = everyone[1::2]
            together.reorder(everyone)
            for decoder in (together, *alone):
                decoder.margin = margin
    stopped = [int(alone[row].stopped) for row in everyone]
    assert len(set(stopped)) > 2  # each at words of its own


def test_layers_above_are_really_left_out() -> None:
    translator = model()
    calls = dict[int, int]()
    for number, layer in enumerate(translator.decoder.layers):
        layer.register_forward_hook(lambda *_, number=number: calls.__setitem__(number, calls.get(number, 0) + 1))
    margin = middle_margin(translator)
    calls.update(dict.fromkeys(range(4), 0))
    decoder = ConfidentDecoder(translator, SOURCE[:1], translator.plan(), Plan((0,)), margin)
    greedy(decoder, BOS, 99, PAD, torch.tensor([30]))
    words, deep = int(decoder.words), int(decoder.words - decoder.stopped)
    assert [calls[n] for n in range(4)] == [words, deep, deep, deep]
    assert 0 < deep < words == 30


def test_what_cannot_go_on_is_refused() -> None:
    translator = tiny_translator(SubnetworkConfig())
    with pytest.raises(UserError, match="exit 2: its layers are not the first of 4-4"):
        ConfidentDecoder(translator, SOURCE, translator.plan(), translator.decoder_depth.plans()[2], 0.5)
    config = tiny_translator(FULL).config
    mixed = replace(config, decoder=replace(config.decoder, mix="dlcl")).build(23, 23, PAD).eval()
    with pytest.raises(UserError, match="DLCL"):
        ConfidentDecoder(mixed, SOURCE, mixed.plan(), Plan((0,)), 0.5)


# ---- the margin


def test_binomial_tails() -> None:
    assert binomial_tail(0, 3, 0.5) == pytest.approx(1 / 8)
    assert binomial_tail(1, 3, 0.5) == pytest.approx(4 / 8)
    assert binomial_tail(3, 3, 0.5) == binomial_tail(9, 3, 0.5) == pytest.approx(1)


def test_p_values_fall_with_the_loss_and_with_more_sentences() -> None:
    assert hoeffding_bentkus(0.05, 100, 0.05) == 1
    assert hoeffding_bentkus(0.2, 100, 0.05) == 1
    values = [hoeffding_bentkus(loss, 400, 0.1) for loss in (0.09, 0.07, 0.05, 0.02, 0.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(0.9**400)  # Hoeffding's bound is exact there
    assert hoeffding_bentkus(0.05, 1000, 0.1) < hoeffding_bentkus(0.05, 100, 0.1)


def test_a_true_hypothesis_is_seldom_rejected() -> None:
    """Losses whose expectation is the risk: a p-value of at most 10 % comes up at most once in ten times."""
    draw = random.Random(5)
    rejected = sum(
        hoeffding_bentkus(sum(draw.random() < 0.1 for _ in range(60)) / 60, 60, 0.1) <= 0.1 for _ in range(2000)
    )
    assert 0 < rejected <= 200


def test_the_risk_is_kept_as_often_as_promised() -> None:
    """Sentences whose expected loss grows as the margin falls: 0.2 · (1 - margin). At most 5 % of the calibrations may
    end with a margin that loses more than 0.1 in truth."""
    draw, broken, chosen = random.Random(6), 0, []
    margins = [k / 20 for k in range(20)]
    for _ in range(300):

        def outcome(margin: float) -> Outcome:
            return Outcome([draw.random() < 0.2 * (1 - margin) for _ in range(150)], 1 + 5 * margin)

        trials = list(fixed_sequence(outcome, margins, risk=0.1, error=0.05))
        kept = [trial.margin for trial in trials if trial.p_value <= 0.05]
        assert kept == [trial.margin for trial in trials][: len(kept)] == sorted(kept, reverse=True)
        assert len(trials) - len(kept) <= 1
        chosen.append(min(kept, default=1.0))
        broken += 0.2 * (1 - chosen[-1]) > 0.1
    assert broken / 300 <= 0.05
    assert sum(chosen) / 300 < 0.9  # and it is not simply timid


def test_losses_are_distances_from_full_depth() -> None:
    same, other, nothing = losses(["ein Haus", "ein Haus", ""], ["ein Haus", "ein Hund", ""])
    assert (same, nothing) == (0, 0)
    assert 0.2 < other < 0.9


# ---- a run


def test_margins_of_a_run(tmp_path: Path) -> None:
    run = anydepth.load(GOLDEN, device="cpu")
    found = calibrate_exit(run, TEXTS, risk=0.9, confidence=0.5, margins=[0.9, 0.0])
    assert (found.depth, found.exit, found.sentences) == ("2-2", 1, 4)
    assert found.trials[-1].layers == 1 or found.margin == 0.9
    shy = calibrate_exit(run, TEXTS, risk=0.5, confidence=0.93, margins=[0.0])
    assert (shy.margin, len(shy.trials)) == (1.0, 1)  # four sentences could show it, if they lost nothing
    with pytest.raises(UserError, match=r"4 texts can show no risk of 0.05 with confidence 0.95: expected 59 at least"):
        calibrate_exit(run, TEXTS)
    run.folder = tmp_path
    with pytest.raises(UserError, match=r"exit 1 of depth 2-2 must be is not known: run anydepth confidence"):
        find_confidence(run, None, 1)
    keep_confidence(shy, tmp_path)
    with pytest.warns(UserWarning, match="exit 1: no margin keeps the risk, so no word stops early"):
        assert run.translate(TEXTS, beam=1, exit=1) == run.translate(TEXTS, beam=1)
    keep_confidence(found, tmp_path)
    assert find_confidence(run, "2-2", 1) == found
    assert read_confidences(tmp_path / "confidence.json") == [found]
    for wrong in ({"risk": 0.0}, {"confidence": 1.0}):
        with pytest.raises(UserError, match="expected between 0 and 1"):
            calibrate_exit(run, TEXTS, **wrong)
    with pytest.raises(UserError, match="no sentence to measure with"):
        calibrate_exit(run, [""])


def test_so_few_texts_that_no_p_value_is_small_enough() -> None:
    for risk, error in product((0.01, 0.05, 0.3, 0.9), (0.5, 0.05, 0.001)):
        count = fewest_texts(risk, error)
        assert hoeffding_bentkus(0.0, count, risk) <= error * (1 + 1e-6)
        assert count == 1 or hoeffding_bentkus(0.0, count - 1, risk) > error


def test_margins_that_are_found_at_once_are_all_kept(tmp_path: Path) -> None:
    found = calibrate_exit(anydepth.load(GOLDEN, device="cpu"), TEXTS, risk=0.9, confidence=0.5, margins=[0.9])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda exit: keep_confidence(replace(found, exit=exit), tmp_path), range(40)))
    assert sorted(one.exit for one in read_confidences(tmp_path / "confidence.json")) == list(range(40))


def test_in_python_an_exit_takes_the_margin_that_was_found(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "run")
    run = anydepth.load(tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match=r"exit 1 of depth 2-2 must be is not known: run .* \(--exit-margin, in Python"):
        run.translate(TEXTS, beam=1, exit=1)
    stopping = run.translate(TEXTS, beam=1, exit=1, exit_margin=0.0)
    full = run.translate(TEXTS, beam=1)
    assert stopping == run.translate(TEXTS, "2-1", beam=1) != full
    keep_confidence(calibrate_exit(run, TEXTS, risk=0.99, confidence=0.1, margins=[0.0]), tmp_path / "run")
    assert run.translate(TEXTS, beam=1, exit=1) == stopping
    assert run.translate(TEXTS, beam=1, exit=1, exit_margin=1.0) == full
    for unknown in ({"depth": "auto"}, {"budget_ms": 20.0}):
        with pytest.raises(UserError, match="exit: how sure it must be depends on the depth; give exit_margin"):
            run.translate(TEXTS, beam=1, exit=1, **unknown)
    own = anydepth.load(tmp_path / "run", "cpu", settings=["decoding.exit_margin=0.0"])
    assert own.translate(TEXTS, beam=1, exit=1) == stopping


def test_a_margin_is_true_for_one_precision_and_kind_of_device(tmp_path: Path, cli: Cli) -> None:
    run, text = shutil.copytree(GOLDEN, tmp_path / "run"), tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    bold = ("--source", text, "--risk", 0.99, "--confidence", 0.1, "--device", "cpu")
    assert cli("confidence", run, *bold)[0] == 0
    eight = ("translate", run, text, "--exit", 1, "--precision", "int8", "--device", "cpu")
    code, _, error = cli(*eight)
    assert code == 2
    assert "exit 1 of depth 2-2 must be is known for float32 on cpu, not for int8 on cpu: run anydepth conf" in error
    assert cli("confidence", run, *bold, "--precision", "int8")[0] == 0
    assert cli(*eight)[0] == 0
    kept = json.loads((run / "confidence.json").read_text())
    assert [(one["precision"], one["device"]) for one in kept] == [("float32", "cpu"), ("int8", "cpu")]
    (run / "confidence.json").write_text(json.dumps([{**kept[0], "device": "cuda"}]))
    assert "is known for float32 on cuda, not for float32 on cpu" in cli("translate", run, text, "--exit", 1)[2]
    of_before = {name: value for name, value in kept[0].items() if name not in ("precision", "device")}
    (run / "confidence.json").write_text(json.dumps([of_before]))
    assert "is known for an unknown precision, not for float32" in cli("translate", run, text, "--exit", 1)[2]


def test_from_the_command_line(tmp_path: Path, cli: Cli) -> None:
    run, text = shutil.copytree(GOLDEN, tmp_path / "run"), tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    exits = {margin: cli("translate", run, text, "--exit", 1, "--exit-margin", margin) for margin in (0, 1)}
    assert exits[0] == cli("translate", run, text, "--beam", 1, "--depth", "2-1")
    assert exits[1] == cli("translate", run, text, "--beam", 1)
    code, out, _ = cli("confidence", run, "--source", text, "--risk", 0.99, "--confidence", 0.1)
    assert code == 0
    assert "exit 1 of 2-2: margin 0; 10% sure that the loss stays below 0.99 (4 sentences)" in out
    assert cli("translate", run, text, "--exit", 1) == exits[0]
    for wrong, message in (
        (["--exit", 2], "how sure exit 2 of depth 2-2 must be is not known"),
        (["--exit", 2, "--exit-margin", 0.5], "exit 2: for 2-2 this run can exit at 1 decoder layers"),
        (["--exit", 1, "--exit-margin", 2], "exit_margin must be between 0 and 1"),
        (["--exit", 1, "--beam", 3], "exit: words stop early in greedy search"),
        (["--exit", 1, "--speculate"], "exit: words stop early in greedy search"),
        (["--exit", 1, "--depth", "auto"], "--exit: how sure it must be depends on the depth"),
        (["--exit", 1, "--depth", "selector@20"], "--exit: how sure it must be depends on the depth"),
        (["--exit-margin", 0.5], "--exit-margin is for early exits: give --exit as well"),
        (["--exit", 1, "--engine", "ctranslate2"], "--exit: not with --engine ctranslate2"),
    ):
        code, _, error = cli("translate", run, text, *wrong)
        assert code == 2
        assert message in error
    (run / "confidence.json").write_text("[")
    code, _, error = cli("confidence", run, "--source", text)
    assert code == 2
    assert "confidence.json is damaged" in error
