"""A queue in the run: calls its program, and starts, watches and stops its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from bench.peers import install
from bench.peers.catalogue import Peer
from bench.peers.sites import Site, Sites
from bench.processor import seconds_of_tree

START_SEC = 60.0
GRACE_SEC = 10.0
IDLE_CPU_SEC = 0.1
LOG_CHARS = 600


class FailedError(Exception):
    """A program of a queue failed or did nothing; the message names it and shows the end of its output."""


class Workers:
    """The worker processes of one queue, and the file that its tasks write to."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.marks = folder / "marks"
        self.marks.touch()
        self.log = folder / "log"
        self.processes: list[subprocess.Popen[bytes]] = []

    def count(self) -> int:
        """Return the number of tasks begun."""
        return self.marks.stat().st_size

    def latencies(self) -> list[float]:
        """Return the milliseconds from the call of submit to the first line of each task."""
        return [int(line) / 1e6 for line in self.marks.read_text(encoding="ascii").split()]

    def wait_for(self, count: int, seconds: float) -> int:
        """Wait until this many tasks have begun or the time is up; return how many have begun."""
        until = time.perf_counter() + seconds
        while (found := self.count()) < count and time.perf_counter() < until:
            if self.processes and all(process.poll() is not None for process in self.processes):
                raise FailedError(f"the workers of {self.name} ended: {self._said()}")
            time.sleep(0.001)
        return found

    def must_begin(self) -> int:
        found = self.wait_for(1, START_SEC)
        if not found:
            raise FailedError(f"{self.name} began no task in {START_SEC:.0f} s: {self._said()}")
        return found

    def wait_until_idle(self) -> None:
        """Wait until they have started: until they use almost no CPU time for a second."""
        until = time.perf_counter() + START_SEC
        used, before = self.cpu(), -1.0
        while (used - before > IDLE_CPU_SEC or used < IDLE_CPU_SEC) and time.perf_counter() < until:
            time.sleep(1)
            used, before = self.cpu(), used

    def cpu(self) -> float:
        """Return the CPU seconds of all of them."""
        return seconds_of_tree([process.pid for process in self.processes])

    def start(self, line: list[str], environment: dict[str, str]) -> None:
        """Start a worker in its own process group, so that its children end with it."""
        variables = {**environment, "PEER_MARKS": str(self.marks)}
        with self.log.open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    line, cwd=install.PROGRAMS, env=variables, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def kill(self, number: int) -> None:
        """Kill a worker and its children with SIGKILL."""
        os.killpg(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].wait()

    def end(self) -> None:
        """Stop gracefully, so that the next workers find the queue as after a restart, not as after a crash."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SEC)

    def stop(self) -> None:
        """Stop at once: the queue is deleted anyway."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARS:].strip() or "it printed nothing"


class Contestant:
    """One queue, and the servers for its measurements."""

    def __init__(self, peer: Peer, sites: Sites) -> None:
        self.peer = peer
        self._sites = sites
        self._line = install.command(peer)
        self._environment = install.environment(peer)

    @contextmanager
    def site(self) -> Iterator[Site]:
        """An empty queue."""
        with self._sites.fresh(self.peer, self._prepare) as site:
            if not self.peer.over_http:
                yield site
                return
            with self._served(site.url) as (url, pid):
                site.url = url
                site.servers.append(pid)
                yield site

    def submit_singly(self, site: Site, count: int) -> float:
        """Seconds."""
        return float(self._call("single", site.url, str(count)))

    def submit_in_bulk(self, site: Site, count: int, *, mixed: bool = False) -> float:
        """Return the seconds of a bulk submit, if the queue has one; `mixed` uses a hundred priorities."""
        return float(self._call("bulk", site.url, str(count), str(int(mixed))) or 0)

    def send(self, site: Site, count: int) -> None:
        self._call("send", site.url, str(count))

    def send_one_that_hangs(self, site: Site) -> None:
        self._call("hang", site.url)

    def work_by_agents(self, site: Site, count: int) -> float:
        """Return the seconds to drain the ready tasks or, if the queue pushes, to make `count` calls."""
        return float(self._call("agents", site.url, str(count)))

    def waits_of_crowd(self, site: Site, seconds: int) -> tuple[float, float]:
        """Return p50 and p95, in milliseconds, from submit to claim by one of 200 waiting agents."""
        half, most = self._call("crowd", site.url, str(seconds)).split()
        return float(half), float(most)

    @contextmanager
    def working(self, site: Site, settings: str, processes: int = 1) -> Iterator[Workers]:
        """Yield running worker processes; stop them afterwards."""
        with self._sites.folder() as folder:
            workers = Workers(self.peer.label, folder)
            try:
                for _ in range(processes):
                    workers.start([*self._line, "work", site.url, settings], self._environment)
                yield workers
            finally:
                workers.stop()

    @contextmanager
    def _served(self, store: str) -> Iterator[tuple[str, int]]:
        """Start a server of the queue in its own process group, yield its URL and process id, kill it afterwards."""
        with self._sites.folder() as folder, (folder / "log").open("w+b") as log:
            server = subprocess.Popen(
                [*self._line, "serve", store], cwd=install.PROGRAMS, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                assert server.stdout is not None
                if not (line := server.stdout.readline().decode().strip()):
                    raise FailedError(f"the server of {self.peer.label} does not start: {_end_of(log)}")
                yield line, server.pid
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)
                server.communicate()

    def _prepare(self, url: str) -> None:
        self._call("prepare", url)

    def _call(self, *words: str) -> str:
        with self._sites.folder() as folder, (folder / "log").open("w+b") as log:
            done = subprocess.run(
                [*self._line, *words], cwd=install.PROGRAMS, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, check=False, timeout=900,
            )  # fmt: skip
            if done.returncode:
                raise FailedError(f"{self.peer.label} could not {words[0]}: {_end_of(log)}")
            return done.stdout.decode().strip()


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")[-LOG_CHARS:].strip()
