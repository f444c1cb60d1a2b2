"""Cycles, leaves and chains of a dependency graph."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.model.graph import components, find_cycle, path_weights

DIAMOND = {"design": [], "api": ["design"], "ui": ["design"], "ship": ["api", "ui"], "lint": []}


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({}, None),
        (DIAMOND, None),
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c", "a"]),
        ({"0": ["a"], "a": ["b"], "b": ["c"], "c": ["b"]}, ["b", "c", "b"]),
        ({"a": ["gone"], "b": ["a", "a", "gone"]}, None),
        ({"x": ["y"], "y": ["x"], "a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"a": ["z", "b"], "b": ["a"], "z": ["a"]}, ["a", "b", "a"]),
    ],
)
def test_cycle_is_named_by_its_path(edges: dict[str, list[str]], cycle: list[str] | None) -> None:
    assert find_cycle(edges) == cycle


def test_weights_count_the_longest_chain_below() -> None:
    assert path_weights(DIAMOND) == {"design": 2, "api": 1, "ui": 1, "ship": 0, "lint": 0}
    assert path_weights({"b": ["a"], "c": ["b"], "d": ["a", "c"]}) == {"a": 3, "b": 2, "c": 1, "d": 0}


def test_parent_outside_the_batch_has_a_weight() -> None:
    assert path_weights({"a": ["outside"]}) == {"a": 0, "outside": 1}


def test_weights_of_a_cycle_are_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        path_weights({"a": ["b"], "b": ["a"]})


class Counted(str):
    """A name that counts how often any of them is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        Counted.lookups += 1
        return super().__hash__()


def test_work_grows_with_the_graph_and_no_faster() -> None:
    size = 20_000
    nodes: list[str] = [Counted(i) for i in range(size)]
    wide = {nodes[i]: {nodes[i * k // 7] for k in (1, 3, 5)} - {nodes[i]} for i in range(size)}
    chain = {nodes[i]: [nodes[i - 1]] for i in range(1, size)}
    ring = {**chain, nodes[0]: [nodes[size - 1]]}
    Counted.lookups = 0
    assert find_cycle(wide) is None
    assert path_weights(chain)[nodes[0]] == size - 1
    assert len(find_cycle(ring) or []) == size + 1
    assert Counted.lookups < 100 * size


names = st.sampled_from("abcdefgh")
graphs = st.dictionaries(names, st.frozensets(names, max_size=4))


@given(edges=graphs)
def test_found_cycle_is_valid_and_its_absence_gives_an_order(edges: dict[str, frozenset[str]]) -> None:
    cycle = find_cycle(edges)
    if cycle is None:
        weights = path_weights(edges)
        assert all(weights[parent] > weights[child] for child, parents in edges.items() for parent in parents)
    else:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(parent in edges[child] for child, parent in itertools.pairwise(cycle))


@given(edges=graphs)
def test_result_does_not_depend_on_the_order_of_names(edges: dict[str, frozenset[str]]) -> None:
    assert find_cycle(edges) == find_cycle(dict(reversed(edges.items())))


@pytest.mark.parametrize(
    ("edges", "groups"),
    [
        ({}, []),
        (DIAMOND, [["design", "api", "ui", "ship"], ["lint"]]),
        ({"a": ["gone"], "b": ["gone"]}, [["a"], ["b"]]),
        ({"a": ["c"], "b": [], "c": []}, [["a", "c"], ["b"]]),
    ],
)
def test_keys_are_grouped_by_the_edges_between_them(edges: dict[str, list[str]], groups: list[list[str]]) -> None:
    assert components(edges) == groups
