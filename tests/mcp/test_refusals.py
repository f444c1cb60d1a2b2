"""Every error names the next step for a model."""

import pytest

from shiftwork.mcp.tool_errors import as_data, internal, next_step, sentence
from shiftwork.model.errors import ShiftworkError, all_errors


@pytest.mark.parametrize("kind", all_errors())
def test_every_error_has_a_next_step(kind: type[ShiftworkError]) -> None:
    error = kind("it did not work", where="here", task_id="task_1")
    assert next_step(error).endswith(".")
    assert as_data(error)["next"] == next_step(error)
    assert as_data(error)["code"] == kind.code
    assert "it did not work" in sentence(error)
    assert sentence(error).endswith(next_step(error))


def test_internal_error_reveals_no_details() -> None:
    assert as_data(internal())["code"] == "internal"
