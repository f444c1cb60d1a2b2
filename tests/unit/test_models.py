"""Which model an agent works with: preferred, else a fallback, that it has and that does not rest."""

import pytest

from shiftwork.policy.models import choose


@pytest.mark.parametrize(
    ("has", "resting", "chosen"),
    [
        ([], [], "opus"),
        ([], ["opus"], "sonnet"),
        ([], ["opus", "sonnet"], "haiku"),
        ([], ["opus", "sonnet", "haiku"], None),
        (["sonnet"], [], "sonnet"),
        (["sonnet"], ["opus"], "sonnet"),
        (["opus", "haiku"], ["opus"], "haiku"),
        (["haiku"], [], None),  # the task is for those who have what it prefers
        (["haiku"], ["opus"], None),
        (["haiku"], ["opus", "sonnet"], "haiku"),
        (["other"], ["opus", "sonnet"], None),
    ],
)
def test_the_first_that_the_agent_has_and_that_does_not_rest(
    has: list[str], resting: list[str], chosen: str | None
) -> None:
    assert choose(["opus", "sonnet"], ["haiku"], has, resting.__contains__) == chosen


def test_without_a_fallback_it_waits() -> None:
    assert choose(["opus"], [], [], {"opus"}.__contains__) is None
