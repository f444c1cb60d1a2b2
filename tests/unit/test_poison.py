"""A task that fails with several agents is a poison pill."""

import pytest

from shiftwork.engine.decide import is_poison
from shiftwork.settings.model import Poison


@pytest.mark.requirement("F-198")
@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        (["A", "B", "B"], True),
        (["A", "A", "A"], False),
        (["A", "B"], False),
        (["A", "B", "C"], True),
        ([], False),
    ],
)
def test_three_failures_by_two_agents_are_poison(agents: list[str], *, expected: bool) -> None:
    assert is_poison(Poison(), agents, len(agents)) is expected


def test_poison_thresholds_can_be_set() -> None:
    strict = Poison(min_agents=3, min_attempts=4)
    assert not is_poison(strict, ["A", "B", "C"], 3)
    assert not is_poison(strict, ["A", "B", "B", "B"], 4)
    assert is_poison(strict, ["A", "B", "C", "C"], 4)


def test_without_a_rule_nothing_is_poison() -> None:
    assert not is_poison(None, ["A", "B", "C", "D"], 4)
