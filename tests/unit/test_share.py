"""Which share a task belongs to, and whose turn is next."""

import pytest

from shiftwork.engine import rank
from shiftwork.fairness import policy
from shiftwork.settings.model import FairShare, Settings


def test_without_the_setting_there_are_no_shares() -> None:
    assert policy.share_of(FairShare(), "alice", "issue", ["team-a"]) is None


def test_share_of_a_key_is_constant_and_within_the_count() -> None:
    fair = FairShare(by="created_by", shares=8)
    found = {name: policy.share_of(fair, name, None, []) for name in map(str, range(1000))}
    assert set(found.values()) == set(range(8))
    assert found == {name: policy.share_of(fair, name, "other", ["tag"]) for name in found}


@pytest.mark.parametrize("by", ["created_by", "issue_id", "tag:team-"])
def test_only_the_chosen_field_decides_the_share(by: str) -> None:
    fair = FairShare(by=by, shares=64)

    def of(key: str, rest: str) -> policy.Share:
        fields = {"created_by": rest, "issue_id": rest, "tag:team-": rest, by: key}
        return policy.share_of(
            fair, fields["created_by"], fields["issue_id"], ["urgent", f"team-{fields['tag:team-']}"]
        )

    assert of("a", "x") == of("a", "y")
    assert len({of(str(number), "x") for number in range(200)}) > 32


def test_order_of_tags_does_not_change_the_share() -> None:
    fair = FairShare(by="tag:team-", shares=64)
    assert policy.share_of(fair, None, None, ["team-b", "team-a"]) == policy.share_of(
        fair, None, None, ["team-a", "team-b"]
    )


def test_never_served_share_is_first_then_longest_unserved() -> None:
    round_robin: list[policy.Share] = []
    dealt = []
    for _ in range(7):
        dealt.append(policy.next_share(round_robin, [2, None, 1]))
        round_robin = policy.after_serving(round_robin, dealt[-1])
    assert dealt == [None, 1, 2, None, 1, 2, None]
    assert policy.next_share(round_robin, [1]) == 1
    assert policy.next_share(round_robin, [1, 5]) == 5


@pytest.mark.parametrize("priority", [0, 50, 100])
def test_band_is_the_strict_level_and_urgent_tasks_go_first(priority: float) -> None:
    strict, now = Settings(ordering="strict_level"), 1.8e9
    facts = rank.RankFacts(priority, 0, now, now)
    urgent = facts._replace(deadline=now + 60)
    assert rank.band(rank.rank(facts, strict, now).rank, strict) == ["high", "medium", "low"].index(
        rank.level(priority)
    )
    assert rank.band(rank.rank(urgent, strict, now).rank, strict) == -1


@pytest.mark.parametrize("rate", [0, 0.1, 10])
@pytest.mark.parametrize("age", [0, 3600, 86_400 * 365])
def test_tasks_without_deadline_are_in_one_band_at_any_age(rate: float, age: float) -> None:
    settings, now = Settings(), 1.8e9
    facts = rank.RankFacts(90, rate, now - age, now - age)
    shift = rate * now / 60
    assert rank.band(rank.rank(facts, settings, now).rank - shift, settings) == 0
    assert rank.band(rank.rank(facts._replace(deadline=now), settings, now).rank - shift, settings) == -1
