"""A gate in the projections at the ends of a layer's branches is the gate of these branches."""

import pytest
import torch
from torch import Tensor, nn

from anydepth.nn.attention import Padded
from anydepth.nn.bridge import Memory
from anydepth.nn.gating import Ends
from anydepth.nn.layers import LayerConfig, initialise
from anydepth.nn.stack import Stack
from anydepth.plan import Plan

PLAN = Plan((2, 0, 1))


def stack_of(decoder: bool, bias: bool = True, norm: str = "pre") -> Stack:
    torch.manual_seed(0)
    layer = LayerConfig(width=8, ffn=16, heads=2, dropout=0.0, attention_bias=bias, norm=norm)  # type: ignore[arg-type]
    stack = Stack(layer, 3, decoder).double().train()
    stack.apply(initialise)
    for name, parameter in stack.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return stack


def run(stack: Stack, gates: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The last state, and the gradients of gates and parameters."""
    generator = torch.Generator().manual_seed(1)
    x, source = (torch.randn(2, length, 8, generator=generator).double() for length in (5, 4))
    memories = [Memory(source, None)] * len(PLAN)
    (*_, last) = stack.states(x, PLAN, gates, Padded(None), memories, Padded(None))
    every = [gates, *(p for p in stack.parameters() if p.requires_grad)]
    return last, list(torch.autograd.grad(last.square().sum(), every))


@pytest.mark.parametrize(
    ("decoder", "bias", "norm"), [(True, True, "pre"), (True, False, "none"), (False, True, "pre")]
)
def test_answers_and_gradients_are_those_of_gated_branches(decoder: bool, bias: bool, norm: str) -> None:
    stack = stack_of(decoder, bias, norm)
    gates = torch.tensor([0.3, 0.0, 1.7], dtype=torch.double, requires_grad=True)
    folded, gradients = run(stack, gates)
    each = gates.detach()[:, None, None, None].expand(-1, 2, 1, 1).clone().requires_grad_()  # of each sentence
    multiplied, expected = run(stack, each)
    torch.testing.assert_close(folded, multiplied)
    expected[0] = expected[0].sum((1, 2, 3))
    torch.testing.assert_close(gradients, expected)


def test_only_one_gate_for_all_words_is_folded() -> None:
    stack, gates = stack_of(decoder=True), torch.ones(3, dtype=torch.double)
    assert all(isinstance(gate, Ends) for gate in stack.gates(PLAN, gates))
    assert all(isinstance(gate, Tensor) for gate in stack.gates(PLAN, gates[:, None, None, None]))
    assert all(isinstance(gate, Tensor) for gate in stack.eval().gates(PLAN, gates))
    assert stack.gates(PLAN, None) == [None] * 3
