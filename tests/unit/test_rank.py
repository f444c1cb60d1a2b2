"""Order of tasks: the stored rank and the shown priority agree."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.engine.rank import MIN_RATE, Parts, RankFacts, ageing_rate, lane_rate, level, parts, rank, tier
from shiftwork.settings.model import AgeBoost, Deadline, Escalation, Settings

T0 = 1_770_000_000.0
MINUTE = 60.0
STANDARD = Settings()
COSCIENTIST = Settings(
    ordering="strict_level",
    priority_boost_per_minute=0,
    escalation=(Escalation(after_sec=600, to_level="medium"), Escalation(after_sec=1200, to_level="high")),
    age_boost=AgeBoost(threshold_sec=300, pct_per_min=10),
    starvation_threshold_sec=3600,
    requeue_front=True,
)
HIGH, MEDIUM, LOW = 20.0, 50.0, 70.0


def task(priority: float = 50, *, boost: float = 0.1, created: float = T0, **more: Any) -> RankFacts:
    return RankFacts(priority, boost, created, created, **more)


def key(facts: RankFacts, settings: Settings, now: float, *, ranked_at: float | None = None) -> float:
    """What a claim at `now` compares, with the rank as it was stored at `ranked_at`."""
    stored = rank(facts, settings, now if ranked_at is None else ranked_at).rank
    return stored - lane_rate(settings, facts.boost_per_minute) * now / MINUTE


def claim_order(settings: Settings, now: float, **tasks: RankFacts) -> str:
    """Names of the tasks as a claim at `now` would hand them out."""
    order = sorted(tasks, key=lambda name: (key(tasks[name], settings, now), tasks[name].ordered_at))
    return " ".join(order)


@pytest.mark.requirement("F-118", "F-119", "F-120", "F-121", "F-122")
@pytest.mark.parametrize(
    ("priority", "name"),
    [
        (0, "critical"),
        (9, "critical"),
        (10, "high"),
        (29, "high"),
        (30, "normal"),
        (59, "normal"),
        (60, "low"),
        (79, "low"),
        (80, "background"),
        (100, "background"),
        (-3, "critical"),
        (9.99, "critical"),
        (59.5, "normal"),
        (79.5, "low"),
        (130, "background"),
    ],
)
def test_priority_is_in_the_tier_of_its_floor(priority: float, name: str) -> None:
    assert tier(priority) == name


@pytest.mark.parametrize(
    ("priority", "name"),
    [(-5, "high"), (0, "high"), (29.5, "high"), (30, "medium"), (59.5, "medium"), (60, "low"), (100, "low")],
)
def test_level_contains_its_tiers(priority: float, name: str) -> None:
    assert level(priority) == name


@pytest.mark.requirement("F-113")
def test_new_task_has_its_priority_as_effective_priority() -> None:
    assert parts(task(37), STANDARD, T0).effective == 37.0


@pytest.mark.requirement("F-114", "F-115")
def test_age_boost_is_minutes_times_rate() -> None:
    shown = parts(task(50, boost=0.1), STANDARD, T0 + 60 * MINUTE)
    assert (shown.age_minutes, shown.age, shown.effective) == (60.0, 6.0, 44.0)
    assert parts(task(), STANDARD, T0 + 30 * MINUTE).age_minutes == 30.0


@pytest.mark.requirement("F-124")
@pytest.mark.parametrize(
    ("minutes", "effective", "name"), [(0, 90, "background"), (300, 60, "low"), (310, 59, "normal")]
)
def test_background_task_becomes_normal_after_five_hours(minutes: float, effective: float, name: str) -> None:
    shown = parts(task(90, boost=0.1), STANDARD, T0 + minutes * MINUTE)
    assert (shown.effective, shown.tier) == (effective, name)


def test_every_part_is_subtracted_from_the_base() -> None:
    settings = msgspec.structs.replace(
        STANDARD,
        type_boost=2.5,
        age_boost=AgeBoost(threshold_sec=300, pct_per_min=10),
        escalation=(Escalation(after_sec=600, to_level="medium"),),
    )
    facts = task(70, boost=0.1, path_weight=3, deadline=T0 + 25 * MINUTE)
    shown = parts(facts, settings, T0 + 10 * MINUTE)
    assert shown == Parts(
        base=70.0,
        age=1.0,
        deadline=25.0,
        dependency=4.0,
        escalation=20.0,
        percentage=25.0,
        type=2.5,
        effective=-7.5,
        age_minutes=10.0,
        tier="critical",
        level="medium",
        urgent=False,
    )


def test_priority_parts_survive_json_encoding() -> None:
    shown = parts(task(), STANDARD, T0)
    assert msgspec.json.decode(msgspec.json.encode(shown), type=Parts) == shown


@pytest.mark.requirement("F-116")
def test_deadline_boost_grows_faster_than_linearly() -> None:
    deadline = T0 + 60 * MINUTE
    ten, five, one = (
        parts(task(deadline=deadline), STANDARD, deadline - left * MINUTE).deadline for left in (10, 5, 1)
    )
    assert 0 < (five - ten) / 5 < (one - five) / 4


@pytest.mark.parametrize(("minutes_left", "boost"), [(30, 12.5), (15, 25.0), (0, 50.0), (-10, 50.0)])
def test_deadline_boost_halves_every_quarter_of_an_hour(minutes_left: float, boost: float) -> None:
    deadline = T0 + 60 * MINUTE
    assert parts(task(deadline=deadline), STANDARD, deadline - minutes_left * MINUTE).deadline == boost


@pytest.mark.parametrize(("urgent_sec", "moves"), [(120, 8), (None, 8)])
def test_stored_rank_changes_eight_times_before_the_deadline(urgent_sec: float | None, moves: int) -> None:
    settings = msgspec.structs.replace(STANDARD, deadline=Deadline(urgent_sec=urgent_sec))
    facts = task(deadline=T0 + 7 * 24 * 60 * MINUTE)
    stored = [rank(facts, settings, T0)]
    while (moment := stored[-1].rerank_at) is not None:
        stored.append(rank(facts, settings, moment))
    assert len(stored) - 1 == moves
    assert all(later.rank < earlier.rank for earlier, later in itertools.pairwise(stored))


def test_task_inside_the_urgent_time_goes_first() -> None:
    now = T0 + 100 * MINUTE
    tasks = {
        "urgent": task(100, boost=0, created=now, deadline=now + 119),
        "soon": task(100, boost=0, created=now, deadline=now + 121),
        "old": task(0, boost=10, created=T0 - 1e6 * MINUTE),
    }
    assert claim_order(STANDARD, now, **tasks) == "urgent old soon"
    assert claim_order(COSCIENTIST, now, **tasks) == "urgent old soon"
    assert [parts(facts, STANDARD, now).urgent for facts in tasks.values()] == [True, False, False]
    assert rank(tasks["urgent"], STANDARD, now).rerank_at is None


def test_longer_chain_of_dependents_goes_first_at_any_length() -> None:
    lengths = [0, 1, 2, 10, 11, 500, 501, 20_000]
    ranks = [rank(task(path_weight=length), STANDARD, T0).rank for length in lengths]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)


def test_type_boost_moves_a_type_ahead() -> None:
    boosted = msgspec.structs.replace(STANDARD, type_boost=5)
    assert rank(task(50), boosted, T0) == rank(task(45), STANDARD, T0)


def test_aging_task_needs_no_new_rank() -> None:
    ranked = {rank(task(90), STANDARD, T0 + minutes * MINUTE) for minutes in (0, 1, 60, 100_000)}
    assert len(ranked) == 1
    assert ranked.pop().rerank_at is None


def test_equal_tasks_are_claimed_in_creation_order() -> None:
    tasks = {name: task(created=T0 + place / 1000) for place, name in enumerate("abc")}
    assert claim_order(STANDARD, T0 + 60, **tasks) == "a b c"


@pytest.mark.parametrize(
    ("ordering", "order"),
    [
        ("effective", "old_low high middle"),
        ("static", "high middle old_low"),
        ("fifo", "old_low middle high"),
    ],
)
def test_each_ordering_has_its_own_claim_order(ordering: str, order: str) -> None:
    settings = msgspec.convert({"ordering": ordering}, Settings)
    tasks = {
        "high": task(10, created=T0),
        "middle": task(50, created=T0 - 60),
        "old_low": task(70, created=T0 - 700 * MINUTE),
    }
    assert claim_order(settings, T0, **tasks) == order


@pytest.mark.parametrize("ordering", ["strict_level", "static", "fifo"])
def test_without_aging_rank_and_lane_ignore_the_rate(ordering: str) -> None:
    settings = msgspec.convert({"ordering": ordering}, Settings)
    now = T0 + 30 * MINUTE
    assert lane_rate(settings, 0.5) == 0
    assert rank(task(boost=0.5), settings, now) == rank(task(boost=0), settings, now)
    assert parts(task(boost=0.5), settings, now).effective == 50.0


def test_static_and_fifo_show_the_plain_priority() -> None:
    for ordering in ("static", "fifo"):
        settings = msgspec.convert({"ordering": ordering, "type_boost": 3.0}, Settings)
        shown = parts(task(40, path_weight=9, deadline=T0 + 60, front=True), settings, T0)
        assert (shown.effective, shown.level, shown.urgent) == (40.0, "medium", False)


@pytest.mark.parametrize(
    ("minutes", "name"), [(0, "low"), (9.98, "low"), (10, "medium"), (19.98, "medium"), (20, "high")]
)
def test_low_task_is_medium_at_ten_and_high_at_twenty_minutes(minutes: float, name: str) -> None:
    assert parts(task(LOW, boost=0), COSCIENTIST, T0 + minutes * MINUTE).level == name


def test_escalated_task_is_ordered_by_age_in_its_new_level() -> None:
    now = T0 + 10 * MINUTE
    tasks = {
        "before": task(MEDIUM, created=T0 - 30),
        "escalated": task(LOW, created=T0),
        "after": task(MEDIUM, created=T0 + 30),
    }
    assert claim_order(COSCIENTIST, now, **tasks) == "before escalated after"


@pytest.mark.parametrize(("minutes", "percentage"), [(0, 0), (4.9, 0), (5, 0), (6, 5), (7, 10), (15, 50), (60, 50)])
def test_score_improves_by_a_tenth_a_minute_up_to_double(minutes: float, percentage: float) -> None:
    settings = msgspec.structs.replace(COSCIENTIST, escalation=(), starvation_threshold_sec=None)
    shown = parts(task(MEDIUM), settings, T0 + minutes * MINUTE)
    assert (shown.percentage, shown.effective) == (percentage, 50 - percentage)


def test_no_boost_crosses_a_level_in_strict_order() -> None:
    settings = msgspec.structs.replace(COSCIENTIST, type_boost=1e9)
    plain = msgspec.structs.replace(COSCIENTIST, type_boost=-1e9)
    best_low = task(60, path_weight=20_000, front=True, deadline=T0 + 130)
    assert rank(best_low, settings, T0).rank > rank(task(59), plain, T0).rank
    assert rank(task(59, front=True), settings, T0).rank > rank(task(29), plain, T0).rank


def test_task_of_a_lost_worker_goes_to_the_front_of_its_level() -> None:
    now = T0 + 9 * MINUTE
    tasks = {
        "high": task(HIGH, created=now),
        "older": task(MEDIUM, created=T0),
        "lost": task(MEDIUM, created=now, front=True),
        "lost_low": task(LOW, created=now, front=True),
        "low": task(LOW, created=T0),
    }
    assert claim_order(COSCIENTIST, now, **tasks) == "high lost older lost_low low"


def test_front_mark_lifts_to_the_top_of_the_level_in_continuous_order() -> None:
    shown = parts(task(50, front=True), STANDARD, T0)
    assert (shown.escalation, shown.effective, shown.level) == (20.0, 30.0, "medium")


def test_starving_task_goes_to_the_top_of_high() -> None:
    now = T0 + 3600
    tasks = {
        "starving": task(100, created=T0),
        "lost": task(0, created=now, front=True),
        "critical": task(0, created=now),
    }
    assert claim_order(COSCIENTIST, now, **tasks) == "starving lost critical"
    assert claim_order(COSCIENTIST, now - 1, **tasks) == "lost starving critical"


def test_strict_task_is_reranked_at_its_next_change() -> None:
    moments, moment = [], rank(task(LOW), COSCIENTIST, T0).rerank_at
    while moment is not None:
        moments.append((moment - T0) / MINUTE)
        moment = rank(task(LOW), COSCIENTIST, moment).rerank_at
    assert moments == [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20, 60]


priorities = st.floats(0, 100)
moments = st.floats(T0 - 30 * 24 * 3600, T0)
aged = st.builds(
    RankFacts,
    priority=priorities,
    boost_per_minute=st.floats(0, 10).map(ageing_rate),
    created_at=moments,
    ordered_at=moments,
    deadline=st.none(),
    path_weight=st.integers(0, 100),
    front=st.booleans(),
)
dated = st.builds(RankFacts._replace, aged, deadline=st.floats(T0 - 3600, T0 + 24 * 3600))
boosted_settings = st.builds(
    Settings,
    ordering=st.sampled_from(["effective", "strict_level"]),
    escalation=st.sampled_from([(), COSCIENTIST.escalation]),
    age_boost=st.sampled_from([None, COSCIENTIST.age_boost]),
    starvation_threshold_sec=st.sampled_from([None, 3600.0]),
    deadline=st.sampled_from([Deadline(), Deadline(urgent_sec=None)]),
)


@pytest.mark.parametrize(
    ("asked", "rate"),
    [(0, 0), (0.1, 0.1), (0.15, 0.15), (1 / 3, 0.333), (10, 10), (0.0001, MIN_RATE)],
)
def test_aging_rate_is_kept_to_three_decimals_and_never_zero(asked: float, rate: float) -> None:
    assert ageing_rate(asked) == rate


@pytest.mark.requirement("F-123")
@given(facts=aged, earlier=st.floats(0, 1e6), later=st.floats(0, 1e6))
def test_effective_priority_never_gets_worse_with_age(facts: RankFacts, earlier: float, later: float) -> None:
    earlier, later = sorted((earlier, later))
    assert parts(facts, STANDARD, T0 + later).effective <= parts(facts, STANDARD, T0 + earlier).effective


@given(one=aged, other=aged, wait=st.floats(0, 1e7))
def test_stored_rank_orders_like_effective_priority_at_any_later_time(
    one: RankFacts, other: RankFacts, wait: float
) -> None:
    now = T0 + wait
    stored = key(one, STANDARD, now, ranked_at=T0) - key(other, STANDARD, now, ranked_at=T0)
    shown = parts(one, STANDARD, now).effective - parts(other, STANDARD, now).effective
    assert stored == pytest.approx(shown, abs=1e-4)


@given(facts=dated, now=st.floats(T0, T0 + 25 * 3600))
def test_stored_deadline_boost_is_at_most_one_step_behind(facts: RankFacts, now: float) -> None:
    settings = msgspec.structs.replace(STANDARD, deadline=Deadline(urgent_sec=None))
    behind = key(facts, settings, now) - parts(facts, settings, now).effective
    assert -1e-4 <= behind <= 6.25 + 1e-4


@given(facts=aged | dated, settings=boosted_settings, wait=st.floats(0, 2e5))
def test_rank_holds_until_its_rerank_time(facts: RankFacts, settings: Settings, wait: float) -> None:
    now = T0 + wait
    ranked = rank(facts, settings, now)
    if ranked.rerank_at is None:
        assert rank(facts, settings, now + 1e6) == ranked
    else:
        assert rank(facts, settings, (now + ranked.rerank_at) / 2) == ranked
        assert rank(facts, settings, ranked.rerank_at).rerank_at != ranked.rerank_at


@given(facts=aged | dated, settings=boosted_settings, earlier=st.floats(0, 2e5), later=st.floats(0, 2e5))
def test_stored_rank_never_gets_worse(facts: RankFacts, settings: Settings, earlier: float, later: float) -> None:
    earlier, later = sorted((earlier, later))
    assert rank(facts, settings, T0 + later).rank <= rank(facts, settings, T0 + earlier).rank
