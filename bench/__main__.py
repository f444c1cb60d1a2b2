"""`python -m bench`: measure the queue on this machine and print a table."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import faults, growth, latency, report, retained, serving, starvation, throughput, watching, witness
from bench.stores import Place, PostgresPlace, SqlitePlace, machine
from shiftwork.worker.load_worker import run_fast

PLACES: dict[str, Callable[[], Place]] = {"sqlite": SqlitePlace, "postgres": PostgresPlace}
LIMITS = Path(__file__).with_name("limits.json")
"""The latest measurement of each limit of the documents, read by `make requirements`."""
MODULES = (throughput, latency, faults, growth, retained, serving, watching, starvation)
"""Importing these modules registers their measurements."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--only", action="append", metavar="NAME", help=", ".join(report.MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that it works, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and the limits checked")
    parser.add_argument(
        "--record", action="store_true", help=f"keep the limits checked in {LIMITS.name}, to be committed"
    )
    options = parser.parse_args()
    if options.record and (options.quick or options.store != "both"):
        parser.error("--record takes a whole measurement on both stores: leave out --quick and --store")
    unknown = set(options.only or ()) - set(report.MEASUREMENTS)
    if unknown:
        parser.error(f"there is no measurement {min(unknown)!r}; there are {', '.join(report.MEASUREMENTS)}")
    logging.getLogger("shiftwork").setLevel(logging.ERROR)
    sys.setswitchinterval(0.0005)  # like the worker's processes
    names = [name for name in report.MEASUREMENTS if not options.only or name in options.only]
    stores = [name for name in PLACES if options.store in {name, "both"}]
    with witness.watching() as watched:
        _measure(stores, names, options, watched=watched)
    return 0


def _measure(stores: list[str], names: list[str], options: argparse.Namespace, *, watched: bool) -> None:
    began = time.perf_counter()
    environment = machine()
    environment["witness"] = "on each core" if watched else "none: stalls of the machine are not detected"
    figures: list[report.Figure] = []
    checks: list[report.Check] = []
    for store in stores:
        place = PLACES[store]()
        try:
            environment |= place.about()
            if store == stores[0]:
                _print_environment(environment)
            else:
                _print_environment(place.about())
            bench = report.Bench(place, quick=options.quick)
            for name in names:
                run_fast(bench.run(name))  # on uvloop if installed, like the worker's processes
            figures += bench.figures
            checks += bench.checks
        finally:
            place.close()
    report.print_checks(checks)
    print(f"\n{time.perf_counter() - began:.0f} s.{_stood_still()}")
    if options.quick:
        print("Quick: the sizes are too small for figures to quote.")
    if options.record:
        where = f"{environment['cores']} cores, {environment['processor']}, {environment['speed']}"
        report.record(LIMITS, where, time.strftime("%Y-%m-%d", time.gmtime()), names, checks)
    if options.json is not None:
        report.write(options.json, environment | {"quick": options.quick}, figures, checks)


def _stood_still() -> str:
    lengths = [1000 * (ended - began) for began, ended in witness.stalls()]
    if not lengths:
        return ""
    return (
        f" The machine stood still {len(lengths)} times, {sum(lengths):.0f} ms in all, {max(lengths):.0f} ms at most."
    )


def _print_environment(facts: dict[str, str]) -> None:
    for name, value in facts.items():
        print(f"{name:<12} {value}")
    report.head()


if __name__ == "__main__":
    sys.exit(main())
