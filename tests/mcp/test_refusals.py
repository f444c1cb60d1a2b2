"""Whatever goes wrong, a model is told what to do next."""

import pytest

from shiftwork.core.errors import ShiftworkError, all_errors
from shiftwork.mcp.refusals import internal, next_step, sentence, told


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_has_a_next_step(kind: type[ShiftworkError]) -> None:
    error = kind("it did not work", where="here", task_id="task_1")
    assert next_step(error).endswith(".")
    assert told(error)["next"] == next_step(error)
    assert told(error)["code"] == kind.code
    assert "it did not work" in sentence(error)
    assert sentence(error).endswith(next_step(error))


def test_an_error_of_our_own_tells_nothing_of_itself() -> None:
    assert told(internal())["code"] == "internal"
