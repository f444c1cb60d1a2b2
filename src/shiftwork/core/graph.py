"""Dependencies as a graph: cycles, ends, and how long a chain waits for each task.

Edges lead from a child to the parents it waits for. A parent that is no key itself is a node without parents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Edges = Mapping[str, Collection[str]]


def find_cycle(edges: Edges) -> list[str] | None:
    """One cycle as a path whose last name is its first, or None. The same graph gives the same answer."""
    solved = set(_parents_first(edges))
    rest = {child for child in edges if child not in solved}
    if not rest:
        return None
    # What cannot be solved always has an unsolved parent, so a walk upwards must come back to itself.
    node = min(rest)
    place: dict[str, int] = {}
    while node not in place:
        place[node] = len(place)
        node = min(parent for parent in edges[node] if parent in rest)
    return [*list(place)[place[node] :], node]


def path_weights(edges: Edges) -> dict[str, int]:
    """Length of the longest chain of dependents below each task; a cycle is a bug of the caller."""
    order = _parents_first(edges)
    weights = dict.fromkeys(_nodes(edges), 0)
    if len(order) != len(weights):
        raise ValueError("the graph has a cycle")
    for child in reversed(order):
        below = weights[child] + 1
        for parent in edges.get(child, ()):
            weights[parent] = max(weights[parent], below)
    return weights


def roots(edges: Edges) -> list[str]:
    """Tasks that wait for nothing, in order of appearance."""
    return [node for node in _nodes(edges) if not edges.get(node)]


def leaves(edges: Edges) -> list[str]:
    """Tasks that nothing waits for, in order of appearance."""
    parents = {parent for found in edges.values() for parent in found}
    return [node for node in edges if node not in parents]


def _nodes(edges: Edges) -> dict[str, None]:
    nodes = dict.fromkeys(edges)
    for parents in edges.values():
        nodes.update(dict.fromkeys(parents))
    return nodes


def _parents_first(edges: Edges) -> list[str]:
    """Every node that is on or below no cycle, each after all its parents."""
    children: dict[str, list[str]] = {}
    missing: dict[str, int] = {}
    for child, parents in edges.items():
        distinct = set(parents)
        missing[child] = len(distinct)
        for parent in distinct:
            children.setdefault(parent, []).append(child)
    order = [node for node in _nodes(edges) if not missing.get(node)]
    for node in order:  # grows while it is walked
        for child in children.get(node, ()):
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    return order
