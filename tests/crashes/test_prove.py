"""`shiftwork prove` hurts a fleet and counts; and its ledger would say so if something had been lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shiftwork import Queue
from shiftwork.prove.ledger import Ledger, Story, count
from shiftwork.prove.run import Plan, prove

STORY = Story(
    submitted=["a", "b"],
    statuses={"a": "completed", "b": "completed"},
    accepted={"a": 1, "b": 1},
    attempts=3,
    world=["act-a", "act-b"],
    task_costs=0.03,
    attempt_costs=0.03,
    kills=1,
    freezes=0,
    floods=2,
    took_sec=1.0,
)


@pytest.mark.requirement("C-249")
@pytest.mark.timeout(240)
async def test_a_fleet_that_is_killed_and_frozen_loses_nothing_and_does_nothing_twice(store_url: str) -> None:
    told: list[str] = []
    plan = Plan(tasks=80, agents=3, longest_sec=150, fault_every_sec=0.5, seed=11)
    found = await prove(store_url, plan, told.append)
    assert found.clean, found
    assert found.completed == found.submitted == 80
    assert found.kills + found.freezes > 0
    assert told
    async with await Queue.open(store_url) as queue:
        assert (await queue.tasks()).tasks == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"statuses": {"a": "completed"}}, "lost"),
        ({"statuses": {"a": "completed", "b": "running"}}, "stuck"),
        ({"statuses": {"a": "completed", "b": "dead_lettered"}}, "failed"),
        ({"accepted": {"a": 2, "b": 1}}, "done_twice"),
        ({"world": ["act-a", "act-b", "act-b"]}, "acted_twice"),
        ({"world": ["act-a"]}, "not_acted"),
        ({"attempt_costs": 0.02}, "misbooked_usd"),
    ],
)
def test_the_ledger_names_what_went_wrong(change: dict[str, Any], wrong: str) -> None:
    good = count(STORY)
    assert good.clean
    found: Ledger = count(msgspec.structs.replace(STORY, **change))
    assert not found.clean
    assert getattr(found, wrong) > 0
    assert getattr(good, wrong) == 0
