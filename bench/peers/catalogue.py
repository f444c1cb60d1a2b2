"""The measured queues: how each is installed, its settings, and what it lacks."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Store = Literal["postgres", "sqlite", "redis", "folder"]
ROOT = Path(__file__).resolve().parents[2]
OURS = "Shiftwork"


class Peer(NamedTuple):
    """A queue on one store. Its program is in `programs/`, in Python or for Node.js."""

    name: str
    store: Store
    program: str
    left: tuple[str, ...]
    """Queries whose sum is the number of unfinished tasks; {count} were submitted."""
    settings: Mapping[str, str]
    """What `default` and `fast` mean for it, in its own words."""
    packages: tuple[str, ...] = ()
    """Python packages."""
    npm: str = ""
    """The Node.js package of the queue or of its server."""
    lacks: str = ""
    """What it lacks; shown next to its figures."""
    in_bulk: bool = True
    """Whether it has a bulk submit."""
    scale: float = 1.0
    """The share of the full number of tasks that it gets, since slow queues would take minutes for all."""
    over_http: bool = False
    """Whether a server stands between the callers and the store."""
    pushes: bool = False
    """Whether it calls the tasks itself and callers can wait for results: then its callers are measured as agents."""
    checkout: Path | None = None
    """For Shiftwork: the folder whose `src` is run."""

    @property
    def label(self) -> str:
        """Its name in the report; ours include the store."""
        if self.checkout is None:
            return self.name
        return f"{self.name} {'http ' if self.over_http else ''}{self.store}"

    @property
    def place(self) -> str:
        """The group it is compared in: queues behind a server only with each other."""
        return "http" if self.over_http else self.store

    @property
    def python(self) -> Path:
        """For Shiftwork: the interpreter of the checkout if it has one, otherwise this one."""
        own = (self.checkout or ROOT) / ".venv" / "bin" / "python"
        return own if own.exists() else Path(sys.executable)


def shiftwork(checkout: Path, name: str = OURS) -> Iterator[Peer]:
    """Yield one checkout of Shiftwork on each store. In every schema version, a finished task has an attempt."""
    stores: tuple[Store, ...] = ("postgres", "sqlite")
    for over_http, store in itertools.product((False, True), stores):
        yield Peer(
            name,
            store,
            "on_shiftwork.py",
            ("select {count} - count(*) from attempts",),
            {"default": "Worker() as it is", "fast": "concurrency 1000"},
            over_http=over_http,
            checkout=checkout,
        )


PEERS = (
    Peer(
        "graphile-worker",
        "postgres",
        "on_graphile.mjs",
        ("select count(*) from graphile_worker._private_jobs",),
        {
            "default": "one job at a time",
            "fast": "concurrentJobs 24, localQueue of 500, completeJobBatchDelay 0, as in its own performance test",
        },
        npm="graphile-worker",
        lacks="deletes a finished job: no result, no history; a completion does not check who holds the job",
    ),
    Peer(
        "pgqueuer",
        "postgres",
        "on_pgqueuer.py",
        ("select count(*) from pgqueuer",),
        {"default": "batch_size 10", "fast": "batch_size 1000, uvloop"},
        ("pgqueuer", "asyncpg", "uvloop"),
        lacks="moves a finished job to a log without its result; no check of who holds the job",
    ),
    Peer(
        "pg-boss",
        "postgres",
        "on_pgboss.mjs",
        ("select count(*) from pgboss.job where name = 'noop' and state < 'completed'",),
        {
            "default": "batchSize 1, polls every 2 s",
            "fast": "batchSize 1000, burstWhenBatchFull, listens for new jobs",
        },
        npm="pg-boss",
        lacks="no history of attempts; finished jobs are deleted; a lost worker's job waits 15 minutes for its expiry",
    ),
    Peer(
        "procrastinate",
        "postgres",
        "on_procrastinate.py",
        ("select count(*) from procrastinate_jobs where status in ('todo', 'doing')",),
        {"default": "concurrency 1", "fast": "concurrency 30, a pool of 20, finished jobs deleted"},
        ("procrastinate", "psycopg-binary", "psycopg-pool"),
        lacks="no result; a lost worker's job is retried only by a task of your own",
        scale=0.25,
    ),
    Peer(
        "DBOS",
        "postgres",
        "on_dbos.py",
        ("select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')",),
        {"default": "no limit, polls every second", "fast": "worker_concurrency 1000, polls every 50 ms"},
        ("dbos", "psycopg-binary"),
        lacks="runs a workflow of a lost process again only when a process of that name starts",
        in_bulk=False,
        scale=0.25,
    ),
    Peer(
        "Dramatiq",
        "redis",
        "on_dramatiq.py",
        ("HLEN dramatiq:default.msgs",),
        {"default": "2 processes of 8 threads", "fast": "2 threads, prefetch 200"},
        ("dramatiq", "redis", "hiredis"),
        lacks="no result or history unless added; Redis syncs once a second, so a crash of it loses that second",
        in_bulk=False,
        scale=0.5,
    ),
    Peer(
        "Celery",
        "redis",
        "on_celery.py",
        ("LLEN celery", "HLEN unacked"),
        {"default": "a process for each core, acknowledged before it runs", "fast": "2 processes, prefetch 200"},
        ("celery", "redis", "hiredis"),
        lacks="a task is acknowledged when it begins, so a crash loses it; no history; Redis syncs once a second",
        in_bulk=False,
        scale=0.25,
    ),
    Peer(
        "huey",
        "sqlite",
        "on_huey.py",
        ("select count(*) from task",),
        {
            "default": "one thread, a sync for each commit",
            "fast": "one thread, no fsync, no results, polls every 1 to 10 ms",
        },
        ("huey",),
        lacks="deletes a task when it begins: a crash loses it; no history",
        in_bulk=False,
    ),
    Peer(
        "Restate",
        "folder",
        "on_restate.py",
        (),  # it counts as drained when every task has begun
        {"default": "Hypercorn, one process", "fast": "Hypercorn on uvloop, one process"},
        ("restate-sdk", "hypercorn", "aiohttp", "uvloop"),
        npm="@restatedev/restate-server",
        lacks="no priorities, no claims by agents: it calls services itself; history is kept for a day",
        in_bulk=False,
        scale=0.05,
        over_http=True,
        pushes=True,
    ),
)
