"""The assignment tables of specs of flexible depth (Table 3): sub-networks, task balance, average layer distance."""

import pytest

from anydepth.depth.layerdrop import pruned
from anydepth.depth.subnetwork import assign, average_layer_distance, divisors, task_balance
from anydepth.errors import UserError

TABLE = {
    12: {"head": (1.7753, 1.0), "seq": (0.4924, 1.0), "left": (1.4975, 2.0),
         "middle-left": (0.7785, 2.0), "optimal": (0.4924, 2.0455)},
    6: {"head": (1.2649, 1.0), "seq": (0.0, 1.0), "left": (1.0954, 1.5),
        "middle-left": (0.8944, 1.5), "optimal": (0.0, 1.625)},
    18: {"head": (1.5435, 1.0), "seq": (0.3835, 1.0), "left": (1.3394, 2.0909),
         "middle-left": (1.0432, 2.0909), "optimal": (0.3835, 2.1212)},
    24: {"head": (2.1059, 1.0), "seq": (0.5108, 1.0), "left": (1.7693, 2.5385),
         "middle-left": (0.6594, 2.5385), "optimal": (0.5108, 2.5577)},
    36: {"head": (2.1842, 1.0), "seq": (0.5063, 1.0), "left": (1.8124, 2.8415),
         "middle-left": (0.9706, 2.8415), "optimal": (0.5063, 2.8537)},
}  # fmt: skip


@pytest.mark.parametrize("layers", TABLE)
@pytest.mark.parametrize("strategy", TABLE[12])
def test_balance_and_distance_to_four_decimals(layers: int, strategy: str) -> None:
    assignment = assign(layers, strategy)
    balance, distance = TABLE[layers][strategy]
    assert round(task_balance(assignment, layers), 4) == balance
    assert round(average_layer_distance(assignment), 4) == distance


def from_one(assignment: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
    return {depth: [layer + 1 for layer in layers] for depth, layers in assignment.items()}


def test_optimal_sub_networks_layer_by_layer() -> None:
    assert from_one(assign(12)) == {
        1: [7],
        2: [4, 10],
        3: [2, 6, 10],
        4: [2, 6, 8, 12],
        6: [1, 3, 5, 7, 9, 11],
        12: list(range(1, 13)),
    }
    assert from_one(assign(6)) == {1: [4], 2: [2, 6], 3: [1, 3, 5], 6: [1, 2, 3, 4, 5, 6]}


def test_seq_slides_back_where_a_block_does_not_fit() -> None:
    assert from_one(assign(12, "seq"))[6] == [7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("layers", range(1, 49))
@pytest.mark.parametrize("strategy", TABLE[12])
def test_every_sub_network_has_its_depth_in_ascending_order(layers: int, strategy: str) -> None:
    assignment = assign(layers, strategy)
    assert list(assignment) == divisors(layers)
    for depth, chosen in assignment.items():
        assert len(chosen) == depth
        assert list(chosen) == sorted(set(chosen))
        assert set(chosen) <= set(range(layers))


def test_depths_must_divide() -> None:
    assert list(assign(12, "left", (12, 3))) == [3, 12]
    with pytest.raises(UserError, match="5 does not divide the 12 layers"):
        assign(12, "left", (5,))
    with pytest.raises(UserError, match="expected one of head, seq"):
        assign(12, "best")


def test_layerdrop_pruning_follows_equation_3_where_it_holds() -> None:
    assert pruned(12, 8) == (0, 1, 3, 4, 6, 7, 9, 10)  # its floating-point form gives 6 layers here
    assert pruned(12, 11) == tuple(range(11))
    assert pruned(12, 6) == (0, 2, 4, 6, 8, 10)
    assert pruned(12, 3) == (0, 4, 8)  # Left: Eq. 3 would delete everything
    for layers in range(1, 40):
        for depth in range(1, layers + 1):
            kept = pruned(layers, depth)
            assert len(kept) == depth
            assert list(kept) == sorted(set(kept))
