"""Several depths trained at once, with what they have in common computed once.

A task is a pair of plans with a weight; tied-multi's N×M exits and flexible depth's 24 sub-networks differ only in
their tasks. Plans that begin with the same layers share them. Of tied-multi's exits each is a prefix of the next, so
that the encoder runs once, and the decoder once per encoder exit; flexible depth's sub-networks share the encoder pass
over the decoder depths. All exits go through the shared final norms and the shared output matrix.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.data.any_batch import EncoderBatch
from anydepth.data.collate import Batch
from anydepth.depth import Depth
from anydepth.encoder_models import EncoderModel
from anydepth.models import Translator, View, look_at
from anydepth.nn.attention import Padded, Sees
from anydepth.nn.bridge import Memory
from anydepth.objectives.cross_entropy import Kernel, Loss, cross_entropy
from anydepth.plan import Plan, Plans, Request


class Task(NamedTuple):
    plans: Plans
    weight: float


Tasks = tuple[Task, ...]
"""Plain hashable data, like plans: recorded passes are kept by it."""
Memories = dict[int, Memory]
"""What each decoder layer reads."""


class Node(NamedTuple):
    """A layer that runs after its parent's. Plans with the same beginning share nodes."""

    layer: int
    children: "list[Node]"
    ends: list[Plan]
    """Plans whose last layer this is."""


def tree(plans: Iterable[Plan]) -> Node:
    """The plans as one tree of layers; the root stands for the input."""
    root = Node(-1, [], [])
    for plan in dict.fromkeys(plans):
        node = root
        for layer in plan.layers:
            known = [child for child in node.children if child.layer == layer]
            node.children.extend([] if known else [Node(layer, [], [])])
            node = known[0] if known else node.children[-1]
        node.ends.append(plan)
    return root


def walk(node: Node, x: Tensor, run: Callable[[int, Tensor], Tensor]) -> Iterator[tuple[Plan, Tensor]]:
    """Each plan's last state, every layer of the tree computed once."""
    yield from ((plan, x) for plan in node.ends)
    for child in node.children:
        yield from walk(child, run(child.layer, x), run)


class SharedPass:
    """Forward and backward of several tasks on one batch.

    The decoder starts from detached inputs and is back-propagated at once, for one encoder exit after the other; the
    encoder follows once at the end. So no more than one decoder's activations are held at a time. Where there is memory
    for it, `together` encoder exits are stacked on the batch axis instead: larger products, fewer of them.

    Self-taught, the last task is run first, and all others learn what it predicts instead of the words.
    """

    def __init__(
        self,
        model: Translator,
        batch: Batch,
        smoothing: float,
        kernel: Kernel,
        together: int = 1,
        self_taught: bool = False,
    ) -> None:
        self.model, self.batch, self.smoothing, self.kernel = model, batch, smoothing, kernel
        self.together, self.self_taught = together, self_taught
        self.teacher: Tensor | None = None
        """What the deepest exit predicts words from."""
        self.view = look_at(batch, model.pad)
        self.encoder_gates = gates_by_layer(model.encoder_depth, batch.key)
        self.decoder_gates = gates_by_layer(model.decoder_depth, batch.key)
        self.gate_leaf = leaf(self.decoder_gates)

    def backward(self, tasks: Tasks) -> Loss:
        """Adds the gradients of Σ weight · loss; gives the weighted means of the losses, for people."""
        model, view, batch = self.model, self.view, self.batch
        tasks = tasks[::-1] if self.self_taught else tasks
        read = self.encode(tasks)
        memories = list(dict.fromkeys(t for each in read.values() for m in each.values() for t in m if t is not None))
        leaves = {memory: memory.detach().requires_grad_() for memory in memories}
        read = {plan: {n: m.map(leaves.__getitem__) for n, m in each.items()} for plan, each in read.items()}
        target = model.target(batch.target_in, view.target_positions)
        start, found = target.detach().requires_grad_(), []
        for first in dict.fromkeys(task.plans.decoder.layers[0] for task in tasks):
            # the first layer's self-attention does not depend on the encoder: one for all its exits
            begun = model.decoder.begin(first, start, gate(self.gate_leaf, first), view.target)
            opened = begun.detach().requires_grad_()
            for encoders, weights in alike([task for task in tasks if task.plans.decoder.layers[0] == first]):
                while encoders:
                    size = 1 if self.self_taught and self.teacher is None else self.together
                    some, encoders = encoders[:size], encoders[size:]
                    found.append(self.decode(first, opened, [read[encoder] for encoder in some], weights))
            begun.backward(opened.grad)
        ends = [target, *memories, *([] if self.decoder_gates is None else [self.decoder_gates])]
        starts = [start, *leaves.values(), *([] if self.gate_leaf is None else [self.gate_leaf])]
        torch.autograd.backward(ends, [leaf.grad for leaf in starts])
        whole = sum(weight for _, weight in tasks)
        return Loss(*(torch.stack(parts).sum() / whole for parts in zip(*found)))

    def encode(self, tasks: Tasks) -> dict[Plan, Memories]:
        """What the decoder's layers read at each encoder exit."""
        model, view = self.model, self.view
        decoder = Plan(tuple(sorted({layer for task in tasks for layer in task.plans.decoder.layers})))
        plans = list(dict.fromkeys(task.plans.encoder for task in tasks))
        if len(plans) == 1:
            both, gates = Plans(plans[0], decoder), gates_of_steps(self.encoder_gates, plans[0])
            memories = model.encode(self.batch.source, view.source_positions, view.source, both, gates)
            return {plans[0]: dict(zip(decoder.layers, memories))}
        # only the last state of each plan is read: other bridges and mixes refuse an encoder with several
        x = model.source(self.batch.source, view.source_positions)

        def run(layer: int, x: Tensor) -> Tensor:
            return model.encoder.step(layer, x, gate(self.encoder_gates, layer), view.source)

        exits = {
            plan: model.bridge(lambda _, state=state: [state], decoder) for plan, state in walk(tree(plans), x, run)
        }
        return {plan: dict(zip(decoder.layers, memories)) for plan, memories in exits.items()}

    def decode(self, first: int, x: Tensor, memories: list[Memories], weights: dict[Plan, float]) -> Loss:
        """One decoder, begun, through all exits that read these memories, and back."""
        model, copies = self.model, Copies(self.batch, self.view, len(memories))
        read = copies.joined(memories)

        def run(layer: int, x: Tensor) -> Tensor:
            own = gate(self.gate_leaf, layer)
            return model.decoder.step(layer, x, own, copies.target, read[layer], copies.memory)

        (root,) = tree(weights).children
        x = copies.stacked([x] * len(memories))
        x = model.decoder.finish(first, x, gate(self.gate_leaf, first), read[first], copies.memory)
        words, output, pad = copies.stacked([self.batch.target_out] * len(memories)), model.output.weight, model.pad
        exits = []
        for plan, state in deepest_first(walk(root, x, run)):
            states = model.norm(state)
            teacher = None if self.teacher is None else copies.stacked([self.teacher] * len(memories))
            loss = cross_entropy(states, output, words, pad, self.smoothing, self.kernel, taught_by=teacher)
            exits.append((weights[plan], loss))
            if self.self_taught and self.teacher is None:
                self.teacher = states.detach()
        total = torch.stack([weight * loss.total for weight, loss in exits]).sum()
        total.backward()
        return Loss(total.detach(), torch.stack([weight * loss.nll for weight, loss in exits]).sum())


def encoder_exits(
    model: EncoderModel, batch: EncoderBatch, tasks: Tasks, smoothing: float, kernel: Kernel, self_taught: bool = False
) -> Loss:
    """What `SharedPass.backward` does, in a model without a decoder: each exit's head runs forward and back at once,
    the encoder follows at the end. Self-taught, shallower exits learn what the deepest answers instead of labels."""
    (x, sees), gates = model.embed(batch), gates_by_layer(model.encoder_depth, batch.key)
    weights = {task.plans.encoder: task.weight for task in tasks}

    def run(layer: int, x: Tensor) -> Tensor:
        return model.encoder.step(layer, x, gate(gates, layer), sees)

    ends, gradients, found = [], [], []
    output, bias, answers = model.output.weight, model.output_bias, batch.target_out
    teacher = None
    for plan, state in deepest_first(walk(tree(weights), x, run)):
        start = state.detach().requires_grad_()
        states = model.predict(start, batch)
        loss = cross_entropy(states, output, answers, model.no_target, smoothing, kernel, bias, teacher)
        if self_taught and teacher is None:
            teacher = states.detach()
        (weights[plan] * loss.total).backward()
        ends.append(state)
        gradients.append(start.grad)
        found.append((weights[plan] * loss.total.detach(), weights[plan] * loss.nll))
    torch.autograd.backward(ends, gradients)
    return Loss(*(torch.stack(parts).sum() / sum(weights.values()) for parts in zip(*found)))


def deepest_first(exits: Iterable[tuple[Plan, Tensor]]) -> list[tuple[Plan, Tensor]]:
    return sorted(exits, key=lambda exit: -len(exit[0].layers))


def alike(tasks: list[Task]) -> Iterator[tuple[list[Plan], dict[Plan, float]]]:
    """Encoder plans that the same decoder plans read, with the same weights."""
    read: dict[Plan, dict[Plan, float]] = {}
    for (encoder, decoder), weight in tasks:
        read.setdefault(encoder, {})[decoder] = weight
    groups: dict[tuple[tuple[Plan, float], ...], list[Plan]] = {}
    for encoder, weights in read.items():
        groups.setdefault(tuple(weights.items()), []).append(encoder)
    return ((encoders, dict(weights)) for weights, encoders in groups.items())


class Copies:
    """A batch several times over, as one: further rows of a padded batch, a longer row of a packed one."""

    def __init__(self, batch: Batch, view: View, times: int) -> None:
        self.axis = 0 if batch.target_packing is None else 1
        sizes = batch.target_in.shape[1], batch.source.shape[1]
        self.target = repeated(view.target, times, sizes[0], sizes[0])
        self.memory = repeated(view.memory, times, *sizes)

    def stacked(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors, self.axis) if len(tensors) > 1 else tensors[0]

    def joined(self, exits: list[Memories]) -> Memories:
        """What the layers read at several encoder exits as one; what they share is copied once."""
        read = {layer: tuple(memories[layer] for memories in exits) for layer in exits[0]}
        stacked = {
            memories: Memory(*(None if parts[0] is None else self.stacked(list(parts)) for parts in zip(*memories)))
            for memories in read.values()
        }
        return {layer: stacked[memories] for layer, memories in read.items()}


def repeated(sees: Sees, times: int, queries: int, keys: int) -> Sees:
    """What the words of a batch see when it stands there several times; a packed row has so many queries and keys."""
    if times == 1:
        return sees
    if isinstance(sees, Padded):
        return Padded(None if sees.keys is None else torch.cat([sees.keys] * times))
    query_starts, key_starts = (
        torch.cat([starts[:1], *(starts[1:] + size * k for k in range(times))])
        for starts, size in ((sees.query_starts, queries), (sees.key_starts, keys))
    )
    return sees._replace(query_starts=query_starts, key_starts=key_starts)


def gates_by_layer(depth: Depth, key: str) -> Tensor | None:
    return depth.gates(Plan(tuple(range(depth.layers))), Request(key=key))


def gates_of_steps(gates: Tensor | None, plan: Plan) -> Tensor | None:
    return None if gates is None else torch.stack([gates[layer] for layer in plan.layers])


def gate(gates: Tensor | None, layer: int) -> Tensor | None:
    return None if gates is None else gates[layer]


def leaf(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().requires_grad_()
