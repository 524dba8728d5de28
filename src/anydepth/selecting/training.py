"""Training the selector's network: Nesterov SGD, fine-tuning. (search.py looks for the best one.)"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.errors import UserError
from anydepth.evaluation.metrics import Array
from anydepth.selecting.labels import Labels
from anydepth.selecting.model import (
    Kind,
    SelectorConfig,
    SelectorNet,
    prior_weights,
    quality_loss,
    ties_loss,
)

CLIP = 1.0
"""Largest norm of a gradient."""
TUNING_RATE = 0.1
"""Fine-tuning goes on with this share of the learning rate."""
WINDOW = 50
"""Batches are cut from so many batches' sentences sorted by length."""
PREDICT = 256
"""Sentences predicted together."""

Progress = Callable[[int, int], None]
"""Called with the number of epochs done and the most there can be."""


class Fitted(NamedTuple):
    net: SelectorNet
    """With the weights of the best epoch."""
    config: SelectorConfig
    losses: list[float]
    """On the validation sentences after every epoch."""
    yardstick: float
    """Of the best epoch, on the same sentences; comparable between all settings, see `measured_loss`."""


class Source(NamedTuple):
    """What a network starts from."""

    words: Tensor
    """The translation model's word vectors."""
    longest: int
    """Tokens of the longest source."""
    device: torch.device


def split(labels: Labels, share: float, seed: int) -> tuple[Labels, Labels]:
    """Sentences to learn from, and those held out, with all that are equal to them."""
    order = np.random.default_rng(seed).permutation(len(labels.ids))
    drawn = {tuple(labels.ids[row]) for row in order[: max(1, round(share * len(order)))]}
    held_out = np.array([tuple(labels.ids[row]) in drawn for row in order], dtype=bool)
    if held_out.all():
        said = f"{len(set(map(tuple, labels.ids)))} different sentences among {len(order)} that are labelled"
        raise UserError(f"{said}: expected at least 2, to learn from and to validate with")
    return labels.take(order[~held_out]), labels.take(order[held_out])


def fit(
    kind: Kind,
    config: SelectorConfig,
    source: Source,
    train: Labels,
    valid: Labels,
    start: SelectorNet | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Trains until the validation loss stops falling; `start` is a network to go on with."""
    with torch.random.fork_rng(), quick_products(source.device):
        torch.manual_seed(config.seed)
        net = fresh(kind, config, source, train) if start is None else start
        targets, truth = (tensor_of(kind, labels, source.device) for labels in (train, valid))
        loss_of = objective(kind, config, targets)
        optimizer = torch.optim.SGD(net.parameters(), config.learning_rate, config.momentum, nesterov=True)
        best, kept, losses = float("inf"), snapshot(net), []
        if start is not None:  # fine-tuning must be better than doing nothing
            best = float(loss_of(predict(net, valid.ids), truth))
        draw, bad = np.random.default_rng(config.seed), 0
        for epoch in range(config.epochs):
            train_epoch(net, train, targets, loss_of, optimizer, config.batch, draw)
            losses.append(float(loss_of(predict(net, valid.ids), truth)))
            if losses[-1] < best:
                best, kept, bad = losses[-1], snapshot(net), 0
            else:
                bad += 1
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            if progress:
                progress(config.epochs if bad == config.patience else epoch + 1, config.epochs)
            if bad == config.patience:
                break
    net.load_state_dict(kept)
    return Fitted(net.eval(), config, losses, measured_loss(kind, net, valid))


@contextmanager
def quick_products(device: torch.device) -> Iterator[None]:
    """On a GPU in TensorFloat-32: three times as fast, and precise enough to learn with."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def fine_tune(kind: Kind, fitted: Fitted, source: Source, labels: Labels) -> tuple[Fitted, bool]:
    """The same network adapted to other sentences (in the paper, the development set), of which some are held out; and
    whether its loss on those became lower. Where it did not, it is left as it was."""
    config = replace(fitted.config, learning_rate=TUNING_RATE * fitted.config.learning_rate)
    train, valid = split(labels, config.validation, config.seed)
    net = SelectorNet(config, source.words, source.longest, len(labels.depths)).to(source.device)
    net.load_state_dict(fitted.net.state_dict())
    before = measured_loss(kind, net.eval(), valid)
    tuned = fit(kind, config, source, train, valid, net)
    return tuned, tuned.yardstick < before


def fresh(kind: Kind, config: SelectorConfig, source: Source, train: Labels) -> SelectorNet:
    try:
        net = SelectorNet(config, source.words, source.longest, len(train.depths))
    except ValueError as error:
        raise UserError(f"selector: {error}") from None
    if kind == "quality":  # starts from the mean gain of each depth, in units of its spread
        gains = torch.from_numpy(train.gains()).float()
        net.shift.copy_(gains.mean(dim=0))
        net.scale.copy_(gains.std(dim=0, correction=0).clamp(min=1e-3))
        torch.nn.init.zeros_(net.output.weight)
        torch.nn.init.zeros_(net.output.bias)
    return net.to(source.device)


def tensor_of(kind: Kind, labels: Labels, device: torch.device) -> Tensor:
    return torch.from_numpy(labels.ties() if kind == "ties" else labels.gains()).float().to(device)


def objective(kind: Kind, config: SelectorConfig, targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Predictions and truth → the loss, with what must be known of all targets."""
    if kind == "quality":
        spread = targets.std(dim=0, correction=0).clamp(min=1e-3)
        return lambda predicted, truth: quality_loss(predicted, truth, spread)
    weights = prior_weights(targets, config.alpha)
    return lambda predicted, truth: ties_loss(predicted, truth, weights, config.beta, config.balance)


def measured_loss(kind: Kind, net: SelectorNet, labels: Labels) -> float:
    """The validation loss that a search compares. The paper compares each candidate's own loss, but losses with
    different α, β and λ are different scales: here all are measured with α = 0, β = 1 and λ = ½."""
    truth = tensor_of(kind, labels, net.shift.device)
    common = replace(SelectorConfig(), alpha=0.0, beta=1.0, balance=0.5)
    return float(objective(kind, common, truth)(predict(net, labels.ids), truth))


def train_epoch(
    net: SelectorNet,
    train: Labels,
    targets: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batch: int,
    draw: np.random.Generator,
) -> None:
    net.train()
    for rows in shuffled([len(ids) for ids in train.ids], batch, draw):
        optimizer.zero_grad(set_to_none=True)
        loss_of(net([train.ids[row] for row in rows]), targets[rows]).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
    net.eval()


def shuffled(lengths: list[int], batch: int, draw: np.random.Generator) -> Iterator[list[int]]:
    """Every sentence once, in batches of similar length and random order."""
    order, sizes = draw.permutation(len(lengths)), np.array(lengths)
    batches = []
    for start in range(0, len(order), WINDOW * batch):
        window = order[start : start + WINDOW * batch]
        window = window[np.argsort(sizes[window], kind="stable")]
        batches += [window[place : place + batch].tolist() for place in range(0, len(window), batch)]
    for number in draw.permutation(len(batches)):
        yield batches[number]


@torch.no_grad()
def predict(net: SelectorNet, ids: list[list[int]]) -> Tensor:
    """(sentences, depths), whatever their number and lengths."""
    order = np.argsort([len(tokens) for tokens in ids], kind="stable")
    found = torch.empty(len(ids), len(net.shift), device=net.shift.device)
    for start in range(0, len(order), PREDICT):
        rows = order[start : start + PREDICT].tolist()
        found[rows] = net([ids[row] for row in rows])
    return found


def snapshot(net: SelectorNet) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def explained(predicted: Array, truth: Array) -> float:
    """The share of the variance of the gains, over sentences, that predictions explain: 0 is no better than the mean
    gain of each depth."""
    error, spread = ((truth - predicted) ** 2).sum(), ((truth - truth.mean(axis=0)) ** 2).sum()
    return float(1 - error / spread) if spread else 0.0
