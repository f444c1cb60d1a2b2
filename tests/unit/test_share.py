"""Which share a task belongs to, and whose turn it is."""

import pytest

from shiftwork.core.settings import FairShare, Settings
from shiftwork.policy import rank, share


def test_without_the_setting_there_are_no_shares() -> None:
    assert share.share_of(FairShare(), "alice", "issue", ["team-a"]) is None


def test_a_key_keeps_its_bucket_and_there_are_no_more_than_asked_for() -> None:
    fair = FairShare(by="created_by", shares=8)
    found = {name: share.share_of(fair, name, None, []) for name in map(str, range(1000))}
    assert set(found.values()) == set(range(8))
    assert found == {name: share.share_of(fair, name, "other", ["tag"]) for name in found}


@pytest.mark.parametrize("by", ["created_by", "issue_id", "tag:team-"])
def test_only_the_field_that_was_chosen_decides(by: str) -> None:
    fair = FairShare(by=by, shares=64)

    def of(key: str, rest: str) -> share.Share:
        fields = {"created_by": rest, "issue_id": rest, "tag:team-": rest, by: key}
        return share.share_of(fair, fields["created_by"], fields["issue_id"], ["urgent", f"team-{fields['tag:team-']}"])

    assert of("a", "x") == of("a", "y")
    assert len({of(str(number), "x") for number in range(200)}) > 32


def test_of_several_tags_the_order_in_which_they_were_given_does_not_matter() -> None:
    fair = FairShare(by="tag:team-", shares=64)
    assert share.share_of(fair, None, None, ["team-b", "team-a"]) == share.share_of(
        fair, None, None, ["team-a", "team-b"]
    )


def test_who_was_never_served_comes_first_then_who_was_served_longest_ago() -> None:
    turns: list[share.Share] = []
    dealt = []
    for _ in range(7):
        dealt.append(share.next_of(turns, [2, None, 1]))
        turns = share.after(turns, dealt[-1])
    assert dealt == [None, 1, 2, None, 1, 2, None]
    assert share.next_of(turns, [1]) == 1
    assert share.next_of(turns, [1, 5]) == 5


@pytest.mark.parametrize("priority", [0, 50, 100])
def test_a_band_is_a_strict_level_and_urgent_work_is_before_all(priority: float) -> None:
    strict, now = Settings(ordering="strict_level"), 1.8e9
    facts = rank.RankFacts(priority, 0, now, now)
    urgent = facts._replace(deadline=now + 60)
    assert rank.band(rank.rank(facts, strict, now).rank, strict) == ["high", "medium", "low"].index(
        rank.level(priority)
    )
    assert rank.band(rank.rank(urgent, strict, now).rank, strict) == -1


@pytest.mark.parametrize("rate", [0, 0.1, 10])
@pytest.mark.parametrize("age", [0, 3600, 86_400 * 365])
def test_however_old_it_is_work_without_a_deadline_is_in_one_band(rate: float, age: float) -> None:
    settings, now = Settings(), 1.8e9
    facts = rank.RankFacts(90, rate, now - age, now - age)
    shift = rate * now / 60
    assert rank.band(rank.rank(facts, settings, now).rank - shift, settings) == 0
    assert rank.band(rank.rank(facts._replace(deadline=now), settings, now).rank - shift, settings) == -1
