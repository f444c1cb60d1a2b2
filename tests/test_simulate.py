"""A small simulated day and week: the promises of `make simulate` hold, and its report can be read."""

from pathlib import Path

import pytest

from simulate import report, week, week_report
from simulate.day import Size, one_day

SMALL = Size(tasks=80, agents=30, providers=1, hours=1.0)


@pytest.mark.timeout(300)
async def test_fleet_sharing_cooldowns_is_refused_ten_times_less_within_budget(
    tmp_path: Path,
) -> None:
    shared = await one_day(tmp_path, SMALL, shares=True)
    alone = await one_day(tmp_path, SMALL, shares=False)
    found = report.figures(shared, alone)
    assert report.wrong(found) == []
    assert found["refused_alone"] > 0
    assert found["ceilings_raised"] > 0, "no ceiling was ever reached: the day shows nothing about budgets"
    assert found["tightest_usd"].keys() == {"agent", "dag", "day"}
    assert "times fewer" in "\n".join(report.lines(found))


@pytest.mark.timeout(300)
async def test_accounts_known_to_the_queue_are_refused_ten_times_less_and_used_up(tmp_path: Path) -> None:
    small = week.Size(tasks=60, accounts=2, agents=4, days=1.0)
    managed = await week.one_week(tmp_path, small, managed=True)
    alone = await week.one_week(tmp_path, small, managed=False)
    found = week_report.figures(managed, alone)
    assert week_report.wrong(found) == []
    assert found["alone"]["refused"] > 0
    assert found["managed"]["cost_usd"] > 0, "tokens of a known model have a price"
    assert "calls refused" in "\n".join(week_report.lines(found))
