"""`python -m simulate`: live through a day twice and say what sharing was worth; exit 1 where something was wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from simulate import report
from simulate.day import Size, one_day


async def simulate(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shiftwork-simulate-") as folder:
        shared = await one_day(Path(folder), size, shares=True)
        alone = await one_day(Path(folder), size, shares=False)
    return report.figures(shared, alone)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulate", description=__doc__)
    for name, value in Size()._asdict().items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = vars(parser.parse_args(arguments))
    in_json = given.pop("json")
    logging.getLogger("shiftwork").setLevel(logging.ERROR)
    found = asyncio.run(simulate(Size(**given)))
    print(json.dumps(found, indent=2) if in_json else "\n".join(report.lines(found)))
    problems = report.wrong(found)
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
