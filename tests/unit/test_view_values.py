"""Priorities, attempts, times and ids in the views of the documents, in both directions."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.compat.views import VIEWS, coscientist, loki, redis
from shiftwork.engine.rank import tier
from shiftwork.model import ids
from shiftwork.model.errors import InputError
from shiftwork.views.view import TIME
from tests.unit.view_records import ISO, UUID_1, T, task

LOKI, FACTORY, REDIS, AEGIS, COSCIENTIST = VIEWS.values()


@pytest.mark.parametrize(
    ("priority", "label"),
    [
        (10, "critical"),
        pytest.param(9, "high", marks=pytest.mark.requirement("L-146")),
        pytest.param(8, "high", marks=pytest.mark.requirement("L-146")),
        pytest.param(7, "normal", marks=pytest.mark.requirement("L-147")),
        pytest.param(6, "normal", marks=pytest.mark.requirement("L-147")),
        pytest.param(5, "normal", marks=pytest.mark.requirement("L-147")),
        pytest.param(4, "low", marks=pytest.mark.requirement("L-148")),
        pytest.param(3, "low", marks=pytest.mark.requirement("L-148")),
        pytest.param(2, "background", marks=pytest.mark.requirement("L-149")),
        pytest.param(1, "background", marks=pytest.mark.requirement("L-149")),
    ],
)
def test_loki_priorities_are_shown_in_their_bands(priority: int, label: str) -> None:
    submitted = LOKI.task_in({"type": "eng-backend", "priority": priority})
    shown = LOKI.task_out(task(priority=submitted["priority"], priority_tier=tier(submitted["priority"])))
    assert (shown["priority"], shown["priorityTier"]) == (priority, label)


@given(st.floats(0, 100))
def test_lower_internal_priority_is_never_less_urgent_in_loki(priority: float) -> None:
    shown = loki.priority_out(priority)
    assert 1 <= shown <= 10
    assert loki.priority_out(loki.priority_in(shown)) == shown
    assert loki.priority_out(min(100, priority + 10)) <= shown


@pytest.mark.parametrize("wrong", [0, 11, "high", True, 10.5])
def test_loki_refuses_a_priority_out_of_range(wrong: object) -> None:
    with pytest.raises(InputError) as caught:
        LOKI.task_in({"priority": wrong})
    assert caught.value.where == "priority"


@pytest.mark.parametrize(("word", "number"), [("High", 20), ("Medium", 50), ("Low", 70), ("low", 70)])
def test_coscientist_levels_have_numbers(word: str, number: int) -> None:
    assert COSCIENTIST.task_in({"agent_type": "Ranking", "priority": word})["priority"] == number
    assert coscientist.priority_out(number) == word.capitalize()


@pytest.mark.parametrize(
    ("number", "word"),
    [(0, "High"), (29.9, "High"), (30, "Medium"), (59, "Medium"), (60, "Low"), (100, "Low")],
)
def test_every_priority_has_a_level(number: float, word: str) -> None:
    shown = COSCIENTIST.task_out(task(priority=number))
    assert shown["priority"] == shown["original_priority"] == word


def test_escalated_task_is_shown_with_its_new_level() -> None:
    shown = COSCIENTIST.task_out(task(priority=70, priority_parts={"base": 70, "escalation": 20}))
    assert (shown["priority"], shown["original_priority"]) == ("Medium", "Low")


@pytest.mark.parametrize("wrong", ["Urgent", 5, "", ["High"]])
def test_coscientist_refuses_other_levels(wrong: object) -> None:
    with pytest.raises(InputError) as caught:
        COSCIENTIST.task_in({"agent_type": "Ranking", "priority": wrong})
    assert caught.value.where == "priority"


def test_attempts_are_counted_as_in_each_document() -> None:
    once_failed = task(attempts=1, max_attempts=4, status="ready")
    assert LOKI.task_out(once_failed)["retries"] == 1
    assert LOKI.task_out(once_failed)["maxRetries"] == 4
    assert FACTORY.task_out(once_failed)["attempts"] == 1
    assert REDIS.task_out(once_failed)["retry_count"] == 1
    assert REDIS.task_out(once_failed)["max_retries"] == 3
    assert AEGIS.task_out(once_failed)["attempt"] == 2
    assert COSCIENTIST.task_out(once_failed)["retry_count"] == 1


@pytest.mark.parametrize(
    ("attempts", "status", "attempt"),
    [(0, "ready", 1), (0, "completed", 1), (1, "failed", 1), (1, "running", 2), (2, "dead_lettered", 2)],
)
def test_aegis_shows_the_number_of_the_current_attempt(attempts: int, status: str, attempt: int) -> None:
    assert AEGIS.task_out(task(attempts=attempts, status=status))["attempt"] == attempt


@given(st.integers(0, 1000))
def test_redis_retries_survive_a_round_trip(retries: int) -> None:
    assert redis.RETRIES.out(REDIS.task_in({"max_retries": retries})["max_attempts"]) == retries


@given(st.floats(-6e10, 2.5e11))
def test_times_survive_a_round_trip(moment: float) -> None:
    text = TIME.out(moment)
    assert text.endswith("Z")
    assert TIME.back(text) == pytest.approx(moment, abs=1e-5)
    assert TIME.out(TIME.back(text)) == text


def test_time_is_accepted_as_number_or_in_any_zone() -> None:
    for written in (ISO, "2026-02-08T10:00:00+01:00", "2026-02-08T09:00:00Z", T, int(T)):
        assert FACTORY.task_in({"deadline": written})["deadline"] == T


@pytest.mark.parametrize("wrong", ["tomorrow", "2026-02-08T09:00:00", True, 1e300, float("nan"), []])
def test_time_without_zone_or_meaning_is_refused(wrong: object) -> None:
    with pytest.raises(InputError) as caught:
        FACTORY.task_in({"deadline": wrong})
    assert caught.value.where == "deadline"


@given(st.uuids(version=4))
def test_ids_are_plain_uuids_in_loki_and_aegis(number: uuid.UUID) -> None:
    shown = task(id=ids.show_task(str(number)), dependencies=[ids.show_task(str(number)), "mine"])
    assert LOKI.task_out(shown)["id"] == AEGIS.task_out(shown)["id"] == str(number)
    assert LOKI.task_out(shown)["dependencies"] == [str(number), "mine"]
    assert FACTORY.task_out(shown)["id"] == ids.show_task(str(number))


def test_external_id_is_shown_where_the_document_has_one() -> None:
    named = task(external_id="exp-42")
    assert LOKI.task_out(named)["id"] == "exp-42"
    assert REDIS.task_out(named)["task_id"] == "exp-42"
    assert COSCIENTIST.task_out(named)["id"] == "exp-42"
    assert AEGIS.task_out(named)["id"] == UUID_1
    assert REDIS.task_in({"task_id": "exp-42"})["id"] == "exp-42"
