"""What is said of an effect that somebody has begun, and when steps are of use to a changed task."""

from typing import Any

import pytest

from shiftwork.core.states import FINAL, STORED, State
from shiftwork.policy.effects import Owner, standing
from shiftwork.policy.steps import is_same_work


@pytest.mark.parametrize("status", [*STORED, None])
@pytest.mark.parametrize("asks", [False, True])
def test_what_is_done_is_done_whoever_did_it(status: str | None, *, asks: bool) -> None:
    assert standing(Owner(status, asks, holds=False), done=True) == "done"


def test_whoever_began_it_and_asks_again_does_not_know() -> None:
    assert standing(Owner(State.RUNNING, asks=True, holds=True), done=False) == "unknown"


@pytest.mark.parametrize("status", [*STORED, None])
def test_others_take_it_up_only_when_its_owner_never_will(status: str | None) -> None:
    gone = status is None or status in FINAL
    assert standing(Owner(status, asks=False, holds=False), done=False) == ("unknown" if gone else "in_flight")


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
def test_who_does_it_when_and_at_what_cost_is_not_the_work(change: dict[str, Any]) -> None:
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
def test_what_is_to_be_done_is(change: dict[str, Any]) -> None:
    assert not is_same_work(BODY, {**BODY, **change})
