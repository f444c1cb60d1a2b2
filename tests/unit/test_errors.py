"""Errors as machines pass them on."""

import pytest

from shiftwork.core.errors import LeaseLost, ShiftworkError, all_errors, from_dict


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_what_it_was(kind: type[ShiftworkError]) -> None:
    error = kind("it went wrong", where="there", status="ready", n=1)
    again = from_dict(error.as_dict())
    assert type(again) is kind
    assert again.as_dict() == error.as_dict()
    assert str(again) == str(error)


def test_how_to_mend_it_may_be_its_own() -> None:
    assert from_dict(LeaseLost("gone", mend="Stop.").as_dict()).how_to_mend == "Stop."
    assert from_dict({"code": "lease_lost", "what": "gone"}).how_to_mend == LeaseLost.mend


def test_an_error_of_a_newer_version_keeps_its_code() -> None:
    before = all_errors()
    error = from_dict({"code": "queue_on_fire", "what": "it burns", "mend": "Run.", "degrees": 451})
    assert (type(error), error.code, error.what) == (ShiftworkError, "queue_on_fire", "it burns")
    assert error.facts == {"degrees": 451}
    assert error.as_dict()["code"] == "queue_on_fire"
    assert all_errors() == before
    assert ShiftworkError("x").code == "error"
