"""How long silence is tolerated after a stall."""

import pytest

from shiftwork.model.heartbeat_grace import Stall, rests_until
from shiftwork.store import stalls
from shiftwork.store.stalls import StallDetector

SPAN = 90.0


def stall(start: float, end: float) -> Stall:
    return Stall(start, end, "a test")


def test_silence_without_a_stall_is_not_forgiven() -> None:
    assert rests_until([], 100, SPAN) == 0
    assert rests_until([stall(10, 20)], 100, SPAN) == 0


def test_stall_restarts_the_timeout() -> None:
    assert rests_until([stall(110, 140)], 100, SPAN) == 140 + SPAN


def test_second_stall_adds_only_its_own_length() -> None:
    assert rests_until([stall(110, 140), stall(200, 205)], 100, SPAN) == 140 + SPAN + 5


def test_repeated_stalls_do_not_extend_a_lease_forever() -> None:
    """With stalls during half of the time, the claim ends after twice the time."""
    stalls = [stall(at, at + 5) for at in range(100, 1000, 10)]
    ends = rests_until(stalls, 99, SPAN)
    assert ends < 1000
    assert rests_until([each for each in stalls if each.end <= 300], 99, SPAN) <= 300


class Clocks:
    """The store's clock and a steady one, moved apart from each other."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.steady = 0.0

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def ear(clocks: Clocks) -> StallDetector:
    heard = StallDetector(lambda: clocks.now, steady=lambda: clocks.steady)
    heard.begin()
    return heard


def test_slow_answers_are_not_a_stall(ear: StallDetector, clocks: Clocks) -> None:
    for _ in range(20):
        clocks.pass_(2.0)
        ear.record(2.0)
    for _ in range(20):
        clocks.pass_(5.0)  # slower still, and always
        ear.record(5.0)
    assert ear.stalls == []


def test_stall_is_recorded_before_silence_is_checked(ear: StallDetector, clocks: Clocks) -> None:
    clocks.pass_(0.2)
    ear.record(0.001)
    beat = clocks.now
    clocks.pass_(120)
    ear.check()
    assert ear.rests_until(beat, SPAN) == clocks.now + SPAN


@pytest.mark.parametrize("ahead", [3600.0, 5.0])
def test_clock_jumping_ahead_is_a_stall(ear: StallDetector, clocks: Clocks, ahead: float) -> None:
    beat = clocks.now
    clocks.pass_(0.2)
    clocks.now += ahead
    ear.check()
    assert ear.rests_until(beat, SPAN) == clocks.now + SPAN


def test_clock_moved_by_a_test_is_not_a_stall(ear: StallDetector, clocks: Clocks) -> None:
    ear.watches_clock = False
    clocks.now += 3600
    ear.check()
    assert ear.stalls == []


def test_recorded_stalls_follow_the_clock_backwards(ear: StallDetector, clocks: Clocks) -> None:
    clocks.pass_(60)
    ear.check()
    clocks.pass_(1)
    clocks.now -= 3600
    ear.check()
    assert ear.rests_until(clocks.now - 2, SPAN) == clocks.now - 1 + SPAN


def test_stopped_listener_records_no_stall(ear: StallDetector, clocks: Clocks) -> None:
    ear.end()
    clocks.pass_(3600)
    ear.check()
    assert ear.stalls == []


def test_stall_noticed_twice_counts_once(ear: StallDetector, clocks: Clocks) -> None:
    beat = clocks.now
    clocks.pass_(3600)
    ear.forgive(Stall(beat + 10, clocks.now, "the database was away"))
    ear.check()
    assert ear.rests_until(beat, SPAN) == clocks.now + SPAN
    assert ear.missed(beat) == 3600


def test_number_of_recorded_stalls_is_bounded(ear: StallDetector, clocks: Clocks) -> None:
    for _ in range(stalls.MAX_STALLS + 10):
        clocks.pass_(10)
        ear.check()
        clocks.pass_(1)
        ear.check()
    assert len(ear.stalls) == stalls.MAX_STALLS
