"""`make bench-peers`: Shiftwork and other queues in one interleaved run, with medians and ratios."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import psycopg

from bench.peers import figures, limit, page, rows
from bench.peers.catalogue import OURS, PEERS, ROOT, Peer, shiftwork
from bench.peers.contestant import Contestant, FailedError
from bench.peers.figures import Figure, Run, number
from bench.peers.install import NotInstalledError, version
from bench.peers.measurements import QUICK, Case, Measured, Sizes, cases
from bench.peers.sites import Sites
from bench.stores import machine

PLACES = ("postgres", "sqlite", "redis", "http")
IN_QUICK, QUICK_PEERS, QUICK_PLACES = (
    ("submit", "drain", "pickup"),
    ("graphile-worker", "pgqueuer", "huey"),
    ("postgres", "sqlite"),
)
"""The default measurements of a quick run."""
FAILURES = (FailedError, subprocess.TimeoutExpired, psycopg.Error, apsw.Error, OSError)
"""Errors that remove one queue from one case, and nothing else."""
MEASUREMENTS = (*dict.fromkeys(case.measurement for case in cases()), limit.MEASUREMENT)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # like Ctrl-C: stops workers and servers
    run = figures.read(options.of) if options.of else _run(options)
    _print_rows(run)
    if options.json is not None:
        figures.write(options.json, run)
    if options.page:
        page.write(run)
    return 0


def _run(options: argparse.Namespace) -> Run:
    began = time.perf_counter()
    sizes = (QUICK if options.quick else Sizes()).limited(options.tasks, options.rounds)
    wanted = options.only or (IN_QUICK if options.quick else MEASUREMENTS)
    chosen = [case for case in cases() if case.measurement in wanted and (case.in_quick or not options.quick)]
    with Sites() as sites:
        queues = _contestants(_chosen(options), sites)
        run = _described([queue.peer for queue in queues], quick=options.quick)
        for case in chosen:
            run.figures += _measure(case, queues, sizes)
            if options.json is not None:  # a run may take an hour: keep its figures if it is interrupted
                figures.write(options.json, run)
        if limit.MEASUREMENT in wanted:
            run.figures += _measure_limit(sites, sizes.limit_sec)
    print(f"\n{time.perf_counter() - began:.0f} s.")
    return run


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="repeatable")
    parser.add_argument("--peer", action="append", metavar="NAME", help="prefix of a name, repeatable; none: only ours")
    parser.add_argument("--store", action="append", choices=PLACES, help="repeatable; http: through a server")
    parser.add_argument("--also", action="append", type=Path, metavar="PATH", help="another checkout of Shiftwork")
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds")
    parser.add_argument("--rounds", type=int, metavar="N", help="number of measurements of each case")
    parser.add_argument("--tasks", type=int, metavar="N", help="the most tasks in a case; for trying it out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value")
    parser.add_argument("--page", action="store_true", help=f"write tables and chart to {page.PAGE.relative_to(ROOT)}")
    parser.add_argument("--of", type=Path, metavar="FILE", help="measure nothing: read a file written by --json")
    options = parser.parse_args()
    for name in options.peer or ():
        if name != "none" and not any(_matches(peer, name) for peer in PEERS):
            parser.error(f"there is no peer {name!r}; there are {', '.join(peer.name for peer in PEERS)}")
    for path in options.also or ():
        if not (path / "src" / "shiftwork").is_dir():
            parser.error(f"{path} is no checkout of Shiftwork: it has no src/shiftwork")
    return options


def _chosen(options: argparse.Namespace) -> list[Peer]:
    found = list(shiftwork(ROOT))
    for path in options.also or ():
        found += shiftwork(path.resolve(), f"{OURS} at {path.resolve().name}")
    names = options.peer or (QUICK_PEERS if options.quick and not options.store else [peer.name for peer in PEERS])
    found += [peer for peer in PEERS if any(_matches(peer, name) for name in names)]
    places = options.store or (QUICK_PLACES if options.quick and not options.only else PLACES)
    return [peer for peer in found if peer.place in places]


def _matches(peer: Peer, name: str) -> bool:
    return peer.name.lower().startswith(name.lower())


def _contestants(peers: list[Peer], sites: Sites) -> list[Contestant]:
    found = []
    for peer in peers:
        try:
            found.append(Contestant(peer, sites))
        except NotInstalledError as error:
            print(error, flush=True)
    return found


def _described(peers: list[Peer], *, quick: bool) -> Run:
    queues = [
        figures.Queue(
            label=peer.label,
            name=peer.name,
            store=peer.place,
            version=_commit(peer.checkout) if peer.checkout else version(peer),
            settings=peer.settings,
            lacks=peer.lacks,
        )
        for peer in peers
    ]
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return Run(date=date, commit=_commit(ROOT), quick=quick, environment=machine(), queues=queues)


def _commit(checkout: Path) -> str:
    line = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _measure(case: Case, queues: list[Contestant], sizes: Sizes) -> list[Figure]:
    """Measure every queue in each round, each round starting with another queue."""
    rounds = min(sizes.rounds, case.rounds or sizes.rounds)
    taking_part = [queue for queue in queues if case.applies(queue.peer)]
    values: dict[tuple[str, str], list[Measured | None]] = {}
    for turn in range(rounds):
        first = turn % max(1, len(taking_part))
        for queue in taking_part[first:] + taking_part[:first]:
            try:
                measured = case.run(queue, sizes.scaled(queue.peer.scale))
            except FAILURES as error:
                print(f"{case.measurement} {case.what} failed, {queue.peer.label}: {error}", flush=True)
                continue
            for name, value in measured.items():
                values.setdefault((queue.peer.label, name), [None] * rounds)[turn] = value
    found = [_figure(case, name, label, per_round) for (label, name), per_round in values.items()]
    _print(found)
    return found


def _figure(case: Case, name: str, label: str, per_round: list[Measured | None]) -> Figure:
    some = next(each for each in per_round if each is not None)
    return Figure(
        measurement=case.measurement,
        what=", ".join(filter(None, (case.what, name))),
        queue=label,
        unit=some.unit,
        values=[each.value if each else None for each in per_round],
        note=some.note,
    )


def _measure_limit(sites: Sites, seconds: int) -> list[Figure]:
    found = []
    for figure in limit.measure(sites, seconds):
        found.append(figure)
        _print([figure])
    return found


def _print(found: list[Figure]) -> None:
    """Print a line for each queue; secondary figures follow on the same line."""
    for label in dict.fromkeys(figure.queue for figure in found):
        main, *more = [figure for figure in found if figure.queue == label]
        measured = [value for value in main.values if value is not None]
        spread = f"{number(min(measured))} - {number(max(measured))}" if len(measured) > 1 else ""
        what = f"{main.measurement} {main.what}"
        behind = "".join(f"  {each.what.split(', ')[-1]} {number(each.median)} {each.unit}" for each in more)
        unit = main.note or main.unit
        print(f"{what:<28} {label:<28} {number(main.median):>9} {spread:>19}  {unit}{behind}", flush=True)


def _print_rows(run: Run) -> None:
    if found := rows.answers(run):
        print("\nRatios, more than one is better (aim in brackets):")
        for name, aim, answer in found:
            print(f"  {name} [{aim}]: {answer}")
    if compared := rows.old_and_new(run):
        print("\nThis checkout by another one, more than one is better:")
        for what, label, value in compared:
            print(f"  {what:<44} {label:<28} {value}")


if __name__ == "__main__":
    sys.exit(main())
