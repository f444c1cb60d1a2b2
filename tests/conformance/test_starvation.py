"""Nothing waits forever: under a flood of urgent work, old tasks are claimed in the minute that their age predicts."""

from collections.abc import Sequence

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.soak import Handed, gets_out_at, soak


@pytest.mark.timeout(180)
@pytest.mark.requirement("F-123")
async def test_aging_brings_every_old_task_out_in_its_minute(queue: Queue, clock: MovedClock) -> None:
    minutes, rate, urgent, background = 45, 5.0, 5, 90
    handed = await soak(queue, clock, minutes, (urgent, background), priority_boost_per_minute=rate)
    old = {each.came: each.went for each in handed if not each.urgent}
    due = {came: gets_out_at(came, background - urgent, rate) for came in range(minutes)}
    assert old == {came: went for came, went in due.items() if went < minutes}
    assert len(old) > 20


@pytest.mark.timeout(180)
@pytest.mark.requirement("C-024", "C-225")
async def test_escalated_task_is_not_overtaken_by_younger_tasks(coscientist: Queue, clock: MovedClock) -> None:
    minutes, escalated = 32, 20
    handed = await soak(coscientist, clock, minutes, (20, 70))
    old = [each for each in handed if not each.urgent]
    assert [each.came for each in old] == list(range(len(old)))
    assert len(old) > 5
    for place, each in enumerate(old):
        assert each.went >= escalated  # strict levels: before that, the flood of the better level goes first
        for before in _between(handed, each.came + escalated, handed.index(each)):
            assert before.came <= each.came, f"{before} went before number {place}, {each}"


def _between(handed: Sequence[Handed], minute: int, place: int) -> list[Handed]:
    """What was handed out from this minute on, before this place."""
    return [each for each in handed[:place] if each.went >= minute]


@pytest.mark.requirement("C-131")
async def test_starved_task_raises_one_alert(coscientist: Queue, clock: MovedClock) -> None:
    await coscientist.settings.set("escalation", [])
    starved = (await coscientist.submit(type="code", priority=70)).id
    await pass_time(coscientist, clock, 3599)
    assert await _alerts(coscientist) == []
    for _ in range(3):
        await pass_time(coscientist, clock, 5)
    assert await _alerts(coscientist) == [f"Task {starved} has waited for 3604 s and goes to the top"]


async def _alerts(queue: Queue) -> list[str]:
    return [alert.message for alert in await queue.alerts.list(kind="starved")]
