"""The benchmark knows which measurements a stalled machine disturbed, and still checks its limits with them."""

from pathlib import Path

import pytest

from bench import witness
from bench.times import Times


@pytest.fixture
def stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores: one stalled from 1 to 2 and from 5 to 6, the other from 1.5 to 3."""
    files = [tmp_path / "0", tmp_path / "1"]
    files[0].write_text("1.0 2.0\n5.0 6.0\n", encoding="ascii")
    files[1].write_text("1.5 3.0\n", encoding="ascii")
    monkeypatch.setattr(witness, "_files", files)


@pytest.mark.usefixtures("stood")
@pytest.mark.parametrize(
    ("began", "ended", "free"),
    [
        (0, 0.9, True),
        (0, 1.2, False),
        (1.6, 1.7, False),
        (2.5, 2.7, False),
        (3.1, 4.9, True),
        (4, 7, False),
        (6.5, 7, True),
    ],
)
def test_span_is_undisturbed_when_no_core_stalled(began: float, ended: float, *, free: bool) -> None:
    assert witness.undisturbed([(began, ended)]) == [(began, ended)] * free


@pytest.mark.usefixtures("stood")
def test_stalled_share_is_averaged_over_cores() -> None:
    assert witness.share(0, 10) == pytest.approx((1 + 1 + 1.5) / 10 / 2)
    assert witness.share(5.5, 6.5) == pytest.approx(0.5 / 1 / 2)
    assert witness.share(3, 5) == 0


def test_without_a_witness_every_span_counts() -> None:
    assert witness.undisturbed([(1, 2)]) == [(1, 2)]
    assert witness.share(1, 2) == 0


@pytest.mark.usefixtures("stood")
def test_limits_are_checked_with_all_calls() -> None:
    times = Times()
    times.add(100, ended=0.5)
    times.add(1400, ended=2.5)
    assert times.at(0.99) == pytest.approx(1400)
    assert times._without_stalls(0.99) == "100.0 without 1 of 2 during which the machine stood still"
