"""`python -m simulate`: simulate a day or a week twice, and report the benefit of sharing; exit 1 if there is none."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from simulate import report, week, week_report
from simulate.day import Size, one_day


async def simulate(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shiftwork-simulate-") as folder:
        shared = await one_day(Path(folder), size, shares=True)
        alone = await one_day(Path(folder), size, shares=False)
    return report.figures(shared, alone)


async def simulate_week(size: week.Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shiftwork-simulate-") as folder:
        managed = await week.one_week(Path(folder), size, managed=True)
        alone = await week.one_week(Path(folder), size, managed=False)
    return week_report.figures(managed, alone)


def main(arguments: list[str]) -> int:
    of_week = arguments[:1] == ["week"]
    defaults: Any = week.Size() if of_week else Size()
    parser = argparse.ArgumentParser(prog=f"python -m simulate{' week' * of_week}", description=__doc__)
    for name, value in defaults._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = vars(parser.parse_args(arguments[of_week:]))
    in_json = given.pop("json")
    logging.getLogger("shiftwork").setLevel(logging.ERROR)
    found = asyncio.run(simulate_week(week.Size(**given)) if of_week else simulate(Size(**given)))
    said: Any = week_report if of_week else report
    print(json.dumps(found, indent=2) if in_json else "\n".join(said.lines(found)))
    problems = said.wrong(found)
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
