"""The status of an effect that was begun before, and when steps stay valid for a changed task."""

from typing import Any

import pytest

from shiftwork.model.states import FINAL, STORED, State
from shiftwork.steps.policy import Owner, is_same_work, status_of


@pytest.mark.parametrize("status", [*STORED, None])
@pytest.mark.parametrize("asks", [False, True])
def test_completed_effect_is_done_for_every_caller(status: str | None, *, asks: bool) -> None:
    assert status_of(Owner(status, asks, holds=False), done=True) == "done"


def test_effect_begun_before_by_the_caller_is_unknown() -> None:
    assert status_of(Owner(State.RUNNING, asks=True, holds=True), done=False) == "unknown"


@pytest.mark.parametrize("status", [*STORED, None])
def test_effect_passes_to_others_only_when_its_owner_ended(status: str | None) -> None:
    gone = status is None or status in FINAL
    assert status_of(Owner(status, asks=False, holds=False), done=False) == ("unknown" if gone else "in_flight")


BODY: dict[str, Any] = {
    "type": "code",
    "payload": {"n": 1},
    "spec": {"prompt": "do it", "constraints": {"max_cost_usd": 1}},
    "priority": 50,
}


@pytest.mark.parametrize(
    "change",
    [
        {"priority": 1},
        {"max_attempts": 9},
        {"timeout_sec": 60},
        {"estimated_cost_usd": 3},
        {"settings": {"max_attempts": 2}},
        {"spec": {"prompt": "do it", "constraints": {"max_cost_usd": 9, "model_preferences": ["m"]}}},
        {"spec": {"prompt": "do it"}},
        {"title": None},
        {"output": None},
    ],
)
def test_changed_agent_time_or_cost_is_the_same_work(change: dict[str, Any]) -> None:
    assert is_same_work(BODY, {**BODY, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"payload": {"n": 2}},
        {"payload": {}},
        {"spec": {"prompt": "do it otherwise"}},
        {"spec": {"prompt": "do it", "context_refs": ["artifact:x"]}},
        {"tool_name": "other"},
        {"title": "Something else"},
        {"output": {"type": "json"}},
    ],
)
def test_changed_content_is_different_work(change: dict[str, Any]) -> None:
    assert not is_same_work(BODY, {**BODY, **change})
