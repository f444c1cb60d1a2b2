"""`python -m tests.simulation`: run seeds until one fails; `--seed N` replays one and prints what happened."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable

from tests.simulation.world import Run, run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="replay this one and print its events")
    parser.add_argument("--minutes", type=float, default=60.0, help="end after this long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also after a failure")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _replay(given.seed)
    seeds = range(given.first, given.first + given.seeds)
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        runs = pool.imap_unordered(run, seeds, chunksize=4)
        done = _watch(runs, began + 60 * given.minutes, keep_going=given.keep_going)
    return _report(done, time.perf_counter() - began)


def _watch(runs: Iterable[Run], until: float, *, keep_going: bool) -> list[Run]:
    done: list[Run] = []
    for each in runs:
        done.append(each._replace(log=[]))
        if len(done) % 100 == 0:
            print(f"{len(done)} seeds done", flush=True)
        if each.wrong is not None:
            print(f"seed {each.seed} fails: {each.wrong[:600]}", flush=True)
            if not keep_going:
                break
        if time.perf_counter() > until:
            break
    return done


def _replay(seed: int) -> int:
    found = run(seed)
    print("\n".join(found.log))
    print(f"{found.wrong or 'every invariant holds'} ({found.statements} statements, digest {found.digest})")
    return 1 if found.wrong else 0


def _report(done: list[Run], took: float) -> int:
    faults: Counter[str] = Counter()
    for each in done:
        faults.update(each.faults)
    failed = sorted(each.seed for each in done if each.wrong)
    print(
        f"{len(done)} seeds in {took:.0f} s: {sum(each.calls for each in done)} calls, "
        f"{sum(each.statements for each in done)} statements, {sum(each.checks for each in done)} checks, "
        f"{sum(each.virtual_sec for each in done) / 86_400:.1f} virtual days"
    )
    print(f"faults: {', '.join(f'{count} {name}' for name, count in sorted(faults.items()))}")
    if failed:
        print(f'failed: {", ".join(map(str, failed))}; replay with `make prove-seeds ARGS="--seed {failed[0]}"`')
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
