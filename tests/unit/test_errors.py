"""Errors in their serialised form."""

import pytest

from shiftwork.model.errors import LeaseLost, ShiftworkError, all_errors, from_dict


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_error_survives_a_round_trip(kind: type[ShiftworkError]) -> None:
    error = kind("it went wrong", where="there", status="ready", n=1)
    again = from_dict(error.as_dict())
    assert type(again) is kind
    assert again.as_dict() == error.as_dict()
    assert str(again) == str(error)


def test_error_can_carry_its_own_hint() -> None:
    assert from_dict(LeaseLost("gone", hint="Stop.").as_dict()).hint == "Stop."
    assert from_dict({"code": "lease_lost", "what": "gone"}).hint == LeaseLost.hint


def test_unknown_error_code_of_a_newer_version_is_kept() -> None:
    before = all_errors()
    error = from_dict({"code": "queue_on_fire", "what": "it burns", "hint": "Run.", "degrees": 451})
    assert (type(error), error.code, error.what) == (ShiftworkError, "queue_on_fire", "it burns")
    assert error.facts == {"degrees": 451}
    assert error.as_dict()["code"] == "queue_on_fire"
    assert all_errors() == before
    assert ShiftworkError("x").code == "error"
