"""Which model an agent uses: a preferred one, a fallback, or another; none in a cooldown."""

import pytest

from shiftwork.engine.model_choice import Choice, ModelFit, choose

PREFERRED, FALLBACK, OTHER = ModelFit


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
def test_best_available_model_without_cooldown_is_chosen(
    has: list[str], resting: list[str], chosen: tuple[str, ModelFit] | None
) -> None:
    found = choose(["opus", "sonnet"], ["haiku"], has, resting.__contains__)
    assert found == (None if chosen is None else Choice(*chosen))


def test_without_a_fallback_no_model_is_chosen() -> None:
    assert choose(["opus"], [], [], {"opus"}.__contains__) is None
