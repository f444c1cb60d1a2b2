"""Which model an agent works with: a preferred one, a fallback, or another that it has; none that rests."""

import pytest

from shiftwork.policy.models import Choice, Standing, choose

PREFERRED, FALLBACK, OTHER = Standing


@pytest.mark.parametrize(
    ("has", "resting", "chosen"),
    [
        ([], [], ("opus", PREFERRED)),
        ([], ["opus"], ("sonnet", PREFERRED)),
        ([], ["opus", "sonnet"], ("haiku", PREFERRED)),
        ([], ["opus", "sonnet", "haiku"], None),
        (["sonnet"], [], ("sonnet", PREFERRED)),
        (["sonnet"], ["opus"], ("sonnet", PREFERRED)),
        (["opus", "haiku"], ["opus"], ("haiku", PREFERRED)),
        (["haiku"], [], ("haiku", FALLBACK)),
        (["haiku"], ["opus"], ("haiku", FALLBACK)),
        (["haiku"], ["opus", "sonnet"], ("haiku", PREFERRED)),
        (["haiku", "other"], [], ("haiku", FALLBACK)),
        (["other"], [], ("other", OTHER)),
        (["opus", "other"], ["opus"], ("other", OTHER)),
        (["other"], ["other"], None),
    ],
)
def test_the_best_model_that_the_agent_has_and_that_does_not_rest(
    has: list[str], resting: list[str], chosen: tuple[str, Standing] | None
) -> None:
    found = choose(["opus", "sonnet"], ["haiku"], has, resting.__contains__)
    assert found == (None if chosen is None else Choice(*chosen))


def test_without_a_fallback_it_waits() -> None:
    assert choose(["opus"], [], [], {"opus"}.__contains__) is None
