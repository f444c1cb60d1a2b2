"""Dependencies as a graph: cycles, and how long a chain waits for each task.

Edges lead from a dependent to its dependencies. A dependency that is not a key is a node without dependencies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Edges = Mapping[str, Collection[str]]


def find_cycle(edges: Edges) -> list[str] | None:
    """One cycle as a path whose last name is its first, or None. The same graph gives the same answer."""
    solved = set(_parents_first(edges))
    rest = {dependent for dependent in edges if dependent not in solved}
    if not rest:
        return None
    # Every unsolved node has an unsolved dependency, so a walk upwards must return to a node already seen.
    node = min(rest)
    place: dict[str, int] = {}
    while node not in place:
        place[node] = len(place)
        node = min(dependency for dependency in edges[node] if dependency in rest)
    return [*list(place)[place[node] :], node]


def path_weights(edges: Edges) -> dict[str, int]:
    """Length of the longest chain of dependents below each task; a cycle is a bug of the caller."""
    order = _parents_first(edges)
    weights = dict.fromkeys(_nodes(edges), 0)
    if len(order) != len(weights):
        raise ValueError("the graph has a cycle")
    for dependent in reversed(order):
        below = weights[dependent] + 1
        for dependency in edges.get(dependent, ()):
            weights[dependency] = max(weights[dependency], below)
    return weights


def _nodes(edges: Edges) -> dict[str, None]:
    nodes = dict.fromkeys(edges)
    for dependencies in edges.values():
        nodes.update(dict.fromkeys(dependencies))
    return nodes


def _parents_first(edges: Edges) -> list[str]:
    """Every node that is on or below no cycle, each after all its dependencies."""
    dependents: dict[str, list[str]] = {}
    missing: dict[str, int] = {}
    for dependent, dependencies in edges.items():
        distinct = set(dependencies)
        missing[dependent] = len(distinct)
        for dependency in distinct:
            dependents.setdefault(dependency, []).append(dependent)
    order = [node for node in _nodes(edges) if not missing.get(node)]
    for node in order:  # grows while it is walked
        for dependent in dependents.get(node, ()):
            missing[dependent] -= 1
            if missing[dependent] == 0:
                order.append(dependent)
    return order


def components(edges: Edges) -> list[list[str]]:
    """The keys in connected groups."""
    leader = {dependent: dependent for dependent in edges}

    def find(node: str) -> str:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for dependent, above in edges.items():
        for dependency in above:
            if dependency in leader:
                leader[find(dependent)] = find(dependency)
    groups: dict[str, list[str]] = {}
    for dependent in edges:
        groups.setdefault(find(dependent), []).append(dependent)
    return list(groups.values())
