"""The measurements, the same for every queue."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from bench.peers.catalogue import Peer
from bench.peers.contestant import Contestant, FailedError, Workers
from bench.peers.sites import Site
from bench.report import percentile


class Sizes(NamedTuple):
    """How many tasks a case has, and how long a slow queue is watched."""

    single: int = 2_000
    bulk: int = 20_000
    drain: int = 20_000
    drain_sec: float = 8.0
    pickup: int = 200
    depths: tuple[int, ...] = (5_000, 200_000, 1_000_000)
    crash_sec: float = 60.0
    kept: int = 10_000
    agents: int = 5_000
    crowd_sec: int = 10
    limit_sec: int = 5
    rounds: int = 3

    def limited(self, tasks: int | None, rounds: int | None) -> Sizes:
        """Limit the tasks of a case, and set the number of rounds."""
        most = tasks or max(self.depths)
        return self._replace(
            single=min(most, self.single),
            bulk=min(most, self.bulk),
            drain=min(most, self.drain),
            pickup=min(most, self.pickup),
            depths=tuple(dict.fromkeys(min(most * (number + 1), depth) for number, depth in enumerate(self.depths))),
            kept=min(most, self.kept),
            agents=min(most, self.agents),
            rounds=rounds or self.rounds,
        )

    def scaled(self, scale: float) -> Sizes:
        """Return sizes for a slow queue: fewer tasks, but at least a few."""
        return self._replace(
            single=_part(self.single, max(scale, 0.25)),
            drain=_part(self.drain, scale),
            kept=_part(self.kept, scale),
            agents=_part(self.agents, scale),
        )


def _part(count: int, scale: float) -> int:
    return max(min(count, 100), int(count * scale))


QUICK = Sizes(
    single=500, bulk=10_000, drain=10_000, drain_sec=2.5, pickup=40, depths=(2_000, 20_000), crash_sec=5.0,
    kept=2_000, agents=1_000, crowd_sec=3, limit_sec=1, rounds=2,
)  # fmt: skip


class Measured(NamedTuple):
    """A value, or None and the reason: it did not happen in time."""

    value: float | None
    unit: str
    note: str = ""


Values = Mapping[str, Measured]
"""The values of a case by name; the main value has an empty name."""


class Case(NamedTuple):
    """One line of the report, measured for one queue after the other in each round."""

    measurement: str
    what: str
    run: Callable[[Contestant, Sizes], Values]
    applies: Callable[[Peer], bool] = lambda _peer: True
    in_quick: bool = True
    """Whether quick runs include it."""
    rounds: int | None = None
    """Its own number of rounds, if it takes minutes or varies little."""


def _submit_singly(queue: Contestant, sizes: Sizes) -> Values:
    with queue.site() as site:
        return {"": Measured(sizes.single / queue.submit_singly(site, sizes.single), "tasks/s")}


def _submit_in_bulk(queue: Contestant, sizes: Sizes) -> Values:
    with queue.site() as site:
        return {"": Measured(sizes.bulk / queue.submit_in_bulk(site, sizes.bulk), "tasks/s")}


def _drain(settings: str, processes: int) -> Callable[[Contestant, Sizes], Values]:
    def run(queue: Contestant, sizes: Sizes) -> Values:
        with queue.site() as site:
            queue.submit_in_bulk(site, sizes.drain)
            site.settle()
            with queue.working(site, settings, processes) as workers:
                return _watched(queue, site, workers, sizes.drain, sizes.drain_sec)

    return run


def _watched(queue: Contestant, site: Site, workers: Workers, count: int, seconds: float) -> Values:
    """Measure from the first tasks begun until all are finished in the queue's own tables, or the time is up.

    The start of the process and its first fetch are not included.
    """
    first = workers.must_begin()
    began, used, served = time.perf_counter(), workers.cpu(), site.server_cpu()
    done = workers.wait_for(count, seconds)
    if done >= count:
        done = count
        while site.left(queue.peer.left, count) > 0:
            if time.perf_counter() - began > seconds + 10:
                raise FailedError(f"{queue.peer.label} began every task and did not finish them all")
            time.sleep(0.002)
    took = time.perf_counter() - began
    if done <= first:
        return {"": Measured(first / took, "tasks/s")}
    each = 1e6 / (done - first)
    return {
        "": Measured((done - first) / took, "tasks/s"),
        "worker": Measured(each * (workers.cpu() - used), "us/task"),
        "server": Measured(each * (site.server_cpu() - served), "us/task"),
    }


def _pickup(settings: str) -> Callable[[Contestant, Sizes], Values]:
    def run(queue: Contestant, sizes: Sizes) -> Values:
        with queue.site() as site, queue.working(site, settings) as workers:
            warm = 5
            queue.send(site, warm)
            workers.must_begin()
            _wait_for_lines(workers, warm)
            queue.send(site, sizes.pickup)
            times = _wait_for_lines(workers, warm + sizes.pickup)[warm:]
            return {"p50": Measured(percentile(times, 0.5), "ms"), "p99": Measured(percentile(times, 0.99), "ms")}

    return run


def _wait_for_lines(workers: Workers, count: int, seconds: float = 20.0) -> list[float]:
    until = time.perf_counter() + seconds
    while len(found := workers.latencies()) < count:
        if time.perf_counter() > until:
            raise FailedError(f"{workers.name} began {len(found)} of {count} tasks in {seconds:.0f} s")
        time.sleep(0.02)
    return found


def _depth(queue: Contestant, sizes: Sizes) -> Values:
    """Measure how fast tasks of mixed priority begin, out of ever deeper backlogs."""
    begun = sizes.depths[0]
    return {
        f"{depth:,} ready": Measured(_begun_out_of(queue, depth, begun, sizes), "tasks/s") for depth in sizes.depths
    }


def _begun_out_of(queue: Contestant, depth: int, begun: int, sizes: Sizes) -> float:
    """Return the median of three, out of one backlog if that is deep enough."""
    rates: list[float] = []
    with ExitStack() as stack:
        site = None
        for _ in range(3):
            if site is None or depth < 10 * begun:
                site = stack.enter_context(queue.site())
                queue.submit_in_bulk(site, depth, mixed=True)
            site.settle()
            with queue.working(site, "fast") as workers:
                first, began = workers.must_begin(), time.perf_counter()
                done = workers.wait_for(begun, sizes.drain_sec)
                rates.append(max(1, done - first) / (time.perf_counter() - began))
                workers.end()
    return statistics.median(rates)


def _crash(queue: Contestant, sizes: Sizes) -> Values:
    """Measure from `kill -9` of a worker until its task begins again in another worker, which is up and idle.

    If the queue pushes, there is one service, which is started again after the kill.
    """
    with queue.site() as site, queue.working(site, "default") as first:
        queue.send_one_that_hangs(site)
        first.must_begin()
        if queue.peer.pushes:
            first.stop()
        began = time.perf_counter()
        with queue.working(site, "default") as other:
            if not queue.peer.pushes:
                other.wait_until_idle()
                if other.count():
                    raise FailedError("the task was begun twice while its worker lived")
                first.stop()
                began = time.perf_counter()
            if not other.wait_for(1, sizes.crash_sec):
                return {"": Measured(None, "s", f"not in {sizes.crash_sec:.0f} s")}
            return {"": Measured(time.perf_counter() - began, "s")}


def _bytes(queue: Contestant, sizes: Sizes) -> Values:
    """Measure the disk space of a finished task, with everything that the queue keeps about it."""
    with queue.site() as site:
        site.settle()
        before = site.size()
        queue.submit_in_bulk(site, sizes.kept)
        with queue.working(site, "fast") as workers:
            _watched(queue, site, workers, sizes.kept, 120)
        site.settle()
        return {"": Measured(max(0, site.size() - before) / sizes.kept, "bytes")}


def _agents(queue: Contestant, sizes: Sizes) -> Values:
    """Measure 50 agents in one process, one task at a time each; if the queue pushes, 50 callers awaiting results."""
    with queue.site() as site:
        if queue.peer.pushes:
            with queue.working(site, "fast"):
                queue.work_by_agents(site, 1)  # the service is up
                return {"": Measured(sizes.agents / queue.work_by_agents(site, sizes.agents), "tasks/s")}
        queue.submit_in_bulk(site, sizes.agents)
        site.settle()
        return {"": Measured(sizes.agents / queue.work_by_agents(site, sizes.agents), "tasks/s")}


def _crowd(queue: Contestant, sizes: Sizes) -> Values:
    with queue.site() as site:
        half, most = queue.waits_of_crowd(site, sizes.crowd_sec)
    return {"p50": Measured(half, "ms"), "p95": Measured(most, "ms")}


def _is_ours(peer: Peer) -> bool:
    return peer.checkout is not None


def cases() -> Iterator[Case]:
    """Yield the cases in the order of the report."""
    yield Case("submit", "one by one", _submit_singly)
    yield Case("submit", "in batches of 1000", _submit_in_bulk, lambda peer: peer.in_bulk)
    for settings in ("default", "fast"):
        for processes in (1, 2):
            what = f"{settings}, {processes} process{'es' if processes > 1 else ''}"
            quick = (settings, processes) != ("default", 2)
            applies = (lambda peer: not peer.pushes) if processes > 1 else (lambda _peer: True)
            yield Case("drain", what, _drain(settings, processes), applies, in_quick=quick)
    yield Case("pickup", "default", _pickup("default"))
    yield Case("pickup", "fast", _pickup("fast"), in_quick=False)
    yield Case("agents", "50 at once", _agents, lambda peer: _is_ours(peer) or peer.pushes)
    yield Case("crowd", "200 wait", _crowd, lambda peer: _is_ours(peer) and peer.over_http)
    yield Case("depth", "", _depth, lambda peer: peer.place in {"postgres", "sqlite"}, rounds=1)
    yield Case("crash", "kill -9 to re-run", _crash, rounds=1)
    yield Case("bytes", "per finished task", _bytes, lambda peer: peer.store != "redis", rounds=1)
