"""`doctor`: checks for problems of a queue, and prints hints."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from shiftwork.cli import blocked, printing
from shiftwork.cli.exit_codes import ExitCode
from shiftwork.cli.shell import Answer, Command, Shell, current
from shiftwork.client.client import is_server
from shiftwork.config import DEFAULT, without_password
from shiftwork.model import ids
from shiftwork.model.errors import Forbidden, ShiftworkError, StoreNeedsMigration, StoreNewer
from shiftwork.model.states import CLAIMED_STATES, State
from shiftwork.model.text import without_secrets
from shiftwork.observe import kept_counts

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue
    from shiftwork.control.model import MaintenanceJob
    from shiftwork.databases.model import DatabaseInfo
    from shiftwork.observe.model import Cause
    from shiftwork.queue import Queue
    from shiftwork.store.statements import Dialect

CLOCK_OFF_SEC = 1.0
CLOCK_BACK_SEC = 2.0
CLOCK_STEP_SHOWN_SEC = 86_400.0
OLD_TRANSACTION_SEC = 60
JOBS_LATE_SEC = 60.0
BRIDGE_SILENT_SEC = 60.0
INSTALL_REDIS = "pip install 'shiftwork[redis]'"
START_REDIS = "Start it, or correct SHIFTWORK_REDIS_URL; work resumes when it is back."
ROOM, ENOUGH = 2**20, 100 * 2**20
"""Bytes that must fit on the disk now, and below which it counts as nearly full."""

RESTORE = "Keep the file and restore a snapshot or a copy into a new one: shiftwork restore"
PAGE, PAGES = 1000, 10
"""How many waiting tasks are checked for missing dependencies."""

OLD_TRANSACTIONS = """
select pid, coalesce(nullif(application_name, ''), usename, '') as who, state,
  extract(epoch from clock_timestamp() - xact_start)::int as seconds
from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
  and xact_start < clock_timestamp() - make_interval(secs => $1::int) order by xact_start limit 10"""


NEEDS_SOMEONE = {
    *("no_agent", "agents_away", "agents_silent", "breaker_open", "budget", "cooldown", "paused", "unknown"),
}
"""Causes worth a warning even while other work runs."""

NEARLY = 0.9
"""The share of a quota that is worth a warning."""


class Finding(NamedTuple):
    """One line of the report."""

    level: Literal["ok", "warning", "error"]
    check: str
    what: str
    hint: str | None = None


@click.command(cls=Command)
def doctor() -> Answer:
    """Check what keeps the queue from working. Exit code 1 if something must be fixed."""
    shell = current()
    found = asyncio.run(examine_server(shell) if is_server(shell.store) else examine(shell))
    shell.answer(found, lambda: printing.table(["level", "check", "what", "hint"], found))
    return ExitCode.FAILED if any(finding.level == "error" for finding in found) else None


async def examine(shell: Shell) -> list[Finding]:
    found = [_address(shell), *_place(shell.store)]
    try:
        queue = await shell.open_database()
    except (StoreNeedsMigration, StoreNewer) as error:
        return [*found, Finding("error", "schema", error.what, error.hint)]
    except ShiftworkError as error:
        return [*found, Finding("error", "store", error.what, error.hint)]
    async with queue:
        for name, check in CHECKS.items():
            found += await _checked_in_each(name, check, queue)
    return found


async def _checked_in_each(
    name: str, check: Callable[[Queue], Awaitable[list[Finding]]], queue: Queue
) -> list[Finding]:
    """Run checks of a workspace in its database, and checks of databases in each database of a map."""
    if queue.routes is None or name not in OF_DATABASES:
        return await _checked(name, check(queue))
    found = []
    for database, each in zip(queue.routes.databases, queue.databases(), strict=True):
        found += [finding._replace(check=f"{name} {database}") for finding in await _checked(name, check(each))]
    return found


async def examine_server(shell: Shell) -> list[Finding]:
    """Check what is visible through a server; files and database are the server's."""
    began = time.monotonic()
    try:
        queue = await shell.open()
    except ShiftworkError as error:
        return [Finding("error", "server", error.what, error.hint)]
    async with queue:
        found = await _checked("server", _server(queue, began))
        if any(finding.level == "error" for finding in found):
            return found
        for name, check in CHECKS_OF_SERVERS.items():
            found += await _checked(name, check(queue))
    return found


async def _checked(name: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        return await check
    except Forbidden as error:
        return [Finding("ok", name, f"not checked: {error.what}", error.hint)]
    except ShiftworkError as error:
        return [Finding("error", name, error.what, error.hint)]


async def _server(queue: AnyQueue, began: float) -> list[Finding]:
    await queue.settings.list()
    took = time.monotonic() - began
    return [Finding("ok", "server", f"{without_secrets(queue.url)} answered after {took * 1000:.0f} ms")]


def _address(shell: Shell) -> Finding:
    """Show which queue is used: a queue of another folder is the most common reason for a missing task."""
    what = f"{without_password(shell.store)}, from {shell.address.store.source}"
    if _file(shell.store) is not None and shell.address.store.source == DEFAULT:
        return Finding(
            "ok", "address", f"{what}, in {Path.cwd()}", "Pin it with shiftwork.toml: each folder has its own."
        )
    return Finding("ok", "address", what)


def _place(url: str) -> list[Finding]:
    """The folder of a database file; other stores have none."""
    file = _file(url)
    if file is None:
        return []
    folder = file.parent
    if not folder.is_dir():
        return [
            Finding("error", "folder", f"{folder} does not exist", "Create it, or name another place with --store.")
        ]
    if not os.access(folder, os.W_OK):
        return [Finding("error", "folder", f"{folder} is not writable", f"Make it writable: chmod u+w {folder}")]
    return [Finding("ok", "folder", f"{folder} is writable"), _room(folder)]


def _file(url: str) -> Path | None:
    """The database file; other stores have none."""
    scheme, _, rest = url.partition("://")
    name = rest.removeprefix("/")
    return None if scheme != "sqlite" or not name else Path(name).absolute()


def _room(folder: Path) -> Finding:
    """Whether the folder is writable: a quota or a limit can stop writes although the disk has room."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(ROOM))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        what = f"{ROOM >> 20} MiB cannot be written into {folder}: {error.strerror}"
        return Finding("error", "disk", what, "Free disk space, or raise the limit; acknowledged work is safe.")
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < ENOUGH:
        what = f"{folder} has only {free >> 20} MiB left"
        return Finding("warning", "disk", what, "Free disk space, or move the queue: shiftwork copy")
    return Finding("ok", "disk", f"{free >> 20} MiB are free")


async def _engine(queue: Queue) -> list[Finding]:
    dsn = getattr(queue.engine.store, "dsn", None)
    if dsn is None:
        import apsw  # noqa: PLC0415  # loaded with the store

        engine = f"SQLite {apsw.sqlite_lib_version()}"
    else:
        rows = await _query(dsn, "select current_setting('server_version') as version")
        engine = f"PostgreSQL {rows[0]['version']}"
    return [
        Finding("ok", "store", f"{engine} at {without_secrets(queue.url)}"),
        Finding("ok", "schema", "up to date"),
    ]


async def _query(dsn: str, query: str, *values: Any) -> list[Any]:
    """Run checks of the server itself, outside the queue's tables."""
    import asyncpg  # noqa: PLC0415  # an extra

    from shiftwork.store.postgres_connect import open_connection  # noqa: PLC0415  # likewise
    from shiftwork.store.postgres_errors import translate  # noqa: PLC0415  # likewise

    try:
        connection = await open_connection(dsn, statement_cache_size=0)
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        raise translate(error) from error


async def _clock(queue: AnyQueue) -> list[Finding]:
    jobs = await queue.control.maintenance()
    newest = max((job.last_run_at or 0.0 for job in jobs), default=0.0)
    if newest > queue.now() + CLOCK_BACK_SEC:
        what = f"the clock went back: maintenance last ran at {printing.when(newest)}, which is in the future"
        return [Finding("error", "clock", what, "Start a worker or a server: it corrects the times.")]
    offset = queue.now() - time.time()
    if abs(offset) < CLOCK_OFF_SEC:
        ok = Finding("ok", "clock", f"{offset * 1000:+.0f} ms from the store's")
        return [ok, *(_went_back(job, queue.now()) for job in jobs if _is_recent_step(job, queue.now()))]
    what = f"the store's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    return [Finding("warning", "clock", what, "Leases follow the store's clock; synchronise both with NTP.")]


def _is_recent_step(job: MaintenanceJob, now: float) -> bool:
    return job.name == "clock" and (job.last_run_at or 0.0) > now - CLOCK_STEP_SHOWN_SEC


def _went_back(job: MaintenanceJob, now: float) -> Finding:
    by, at = job.counts.get("back_sec", 0), printing.ago(job.last_run_at, now)
    what = f"the clock went back by {by} s ({at}); claims and waits count from then"
    return Finding("warning", "clock", what, "Slew the clock instead of stepping it: chrony or systemd-timesyncd.")


async def _waiting(queue: AnyQueue) -> list[Finding]:
    """Check what keeps ready work from running, and all waiting work if nothing runs."""
    waiting = await queue.control.blocked()
    causes = [cause for cause in waiting.causes if waiting.is_idle or cause.kind in NEEDS_SOMEONE]
    found = [Finding("warning", "waiting", blocked.sentence(cause), _hint(cause)) for cause in causes]
    return found or [Finding("ok", "waiting", blocked.headline(waiting))]


def _hint(cause: Cause) -> str:
    return f"{cause.lifts[:1].upper()}{cause.lifts[1:]}."


async def _dependencies(queue: Queue) -> list[Finding]:
    missing: dict[str, list[str]] = {}
    after, looked = None, 0
    for _ in range(PAGES):
        page = await queue.tasks.list(status=State.PENDING, after=after, limit=PAGE)
        roots = {ids.parse(task.root_task_id): task.id for task in page.tasks}
        for edge in await _missing(queue, [root for root in roots if root]):
            missing.setdefault(roots[edge["dependent"]], []).append(ids.shown(edge["name"]))
        looked, after = looked + len(page.tasks), page.next
        if after is None:
            break
    bound = f" (the first {looked} were checked)" if after else ""
    if not missing:
        return [Finding("ok", "dependencies", f"no task waits for one that does not exist{bound}")]
    task, names = next(iter(missing.items()))
    what = f"{len(missing)} waiting for tasks that were never submitted, e.g. {task} for {', '.join(names)}{bound}"
    return [Finding("warning", "dependencies", what, f"Submit it, or: shiftwork update {task} --clear dependencies")]


async def _missing(queue: Queue, roots: list[str]) -> list[Any]:
    if not roots:
        return []
    items = [(root,) for root in roots]
    return list(await queue.engine.store.read(lambda tx: tx.all("missing_dependencies", items=items)))


async def _maintenance(queue: AnyQueue) -> list[Finding]:
    """Check that maintenance runs: without it, dead workers go unnoticed and retries never run."""
    counts = (await queue.status()).counts
    waiting = sum(counts.get(state, 0) for state in [*CLAIMED_STATES, State.RETRYING])
    jobs = await queue.control.maintenance()
    last = max((job.last_run_at or 0.0 for job in jobs), default=0.0)
    if not waiting or queue.now() - last < JOBS_LATE_SEC:
        ran = f"last ran {printing.when(last)}" if last else "have nothing to do yet"
        return _late(jobs, last, queue.now()) + _resting(jobs) or [Finding("ok", "maintenance", ran)]
    ran = printing.when(last) if last else "never"
    tasks = "1 task is" if waiting == 1 else f"{waiting} tasks are"
    what = f"{tasks} claimed or waiting for a retry, and maintenance last ran {ran}"
    return [Finding("warning", "maintenance", what, "Start a worker, or run `shiftwork maintenance --run` from cron.")]


def _late(jobs: list[MaintenanceJob], last: float, now: float) -> list[Finding]:
    """Jobs that are late although others run."""
    late = [f"{job.name} ({job.late_sec:.0f} s)" for job in jobs if job.late_sec]
    if not late or now - last >= JOBS_LATE_SEC:
        return []
    what = f"maintenance has run recently, but these jobs are late: {', '.join(late)}"
    return [Finding("warning", "maintenance", what, "See the log of the servers and workers.")]


def _resting(jobs: list[MaintenanceJob]) -> list[Finding]:
    rests = [job for job in jobs if job.name == "reclaim" and job.rests_until]
    return [
        Finding("ok", "maintenance", f"silent agents keep their work until {printing.when(job.rests_until)}: {job.why}")
        for job in rests
    ]


async def _counts(queue: Queue) -> list[Finding]:
    """Compare the counts of finished tasks, which come from the log, with the rows, and correct them."""
    store = queue.engine.store
    _, wrong = await store.read(kept_counts.difference)
    if not wrong:
        return [Finding("ok", "counts", "the counts of finished tasks are right")]
    tasks = sum(map(abs, wrong.values()))
    mark = await store.read(kept_counts.read_mark)
    if mark is None or not mark.whole:
        return [Finding("ok", "counts", "finished tasks are not counted yet; the maintenance job `counts` does it")]
    repaired = await kept_counts.repair(store)
    what = f"the counts of finished tasks differed from the rows by {tasks}"
    return [Finding("warning", "counts", what, "They were corrected." if repaired else "Run this again.")]


async def _transactions(queue: Queue) -> list[Finding]:
    dsn = getattr(queue.engine.store, "dsn", None)
    if dsn is None:
        return []
    rows = await _query(dsn, OLD_TRANSACTIONS, OLD_TRANSACTION_SEC)
    return [
        Finding(
            "warning",
            "transactions",
            f"process {row['pid']} ({row['who']}, {row['state']}) has had a transaction open for {row['seconds']} s, "
            "which keeps dead rows from being removed",
            f"End it: select pg_terminate_backend({row['pid']})",
        )
        for row in rows
    ] or [Finding("ok", "transactions", f"none is older than {OLD_TRANSACTION_SEC} s")]


async def _contracts(queue: Queue) -> list[Finding]:
    """Whether the last upgrade was completed."""
    from shiftwork.store import missing_migrations  # noqa: PLC0415  # no store for `--help`

    left = [migration.title for migration in (await missing_migrations.look(queue.url, contract=True)).needed]
    if not left:
        return [Finding("ok", "upgrade", "complete; older versions are refused")]
    what = f"not complete, so that programs of the previous version can work: {', '.join(left)}"
    return [Finding("warning", "upgrade", what, "When none of them runs, run `shiftwork migrate --contract`.")]


async def _indexes(queue: Queue) -> list[Finding]:
    """Whether each index of the schema exists: without one, a claim reads the whole backlog."""
    from shiftwork.store import migrate  # noqa: PLC0415  # no store for `--help`

    dialect: Dialect = "sqlite" if getattr(queue.engine.store, "dsn", None) is None else "postgres"
    rows = await queue.engine.store.read(lambda tx: tx.all("index_names"))
    found = {row["name"] for row in rows}
    missing = {name: text for name, text in migrate.indexes(dialect).items() if name not in found}
    if not missing:
        return [Finding("ok", "indexes", "all are present")]
    what = f"{len(missing)} of the schema are missing or broken: {', '.join(missing)}"
    schema = getattr(queue.engine.store, "schema", None)
    there = "" if schema is None else f"set search_path = {schema}; "
    return [Finding("error", "indexes", what, "Recreate them: " + there + "; ".join(missing.values()))]


async def _content(queue: Queue) -> list[Finding]:
    """Whether the file's contents are readable. PostgreSQL checks its pages itself."""
    file = _file(queue.url)
    if file is None:
        return []
    from shiftwork.store import damage  # noqa: PLC0415  # likewise

    seen = await asyncio.to_thread(damage.scan, file)
    if seen.damage:
        return [Finding("error", "content", what, RESTORE) for what in seen.damage]
    part = "" if seen.whole else f" in the part that {2 * damage.SECONDS:g} s were enough to check"
    return [Finding("ok", "content", f"no damage was found{part}")]


async def _bridges(queue: Queue) -> list[Finding]:
    """Whether the bridges of this workspace poll, and whether the Redis named in the environment answers."""
    found = []
    for bridge in await queue.control.bridges():
        silent = queue.now() - bridge.seen_at
        carried = bridge.unread + bridge.taken + bridge.taken_in
        if silent > BRIDGE_SILENT_SEC and carried:
            what = f"bridge {bridge.name} has {carried} open entries and last polled {printing.when(bridge.seen_at)}"
            found.append(Finding("warning", "bridges", what, "Start it again: shiftwork bridge redis"))
    if url := os.environ.get("SHIFTWORK_REDIS_URL"):
        found.append(await _redis(url))
    return found


async def _redis(url: str) -> Finding:
    try:
        import redis.asyncio  # noqa: PLC0415  # an extra
    except ImportError:
        return Finding(
            "warning", "redis", "SHIFTWORK_REDIS_URL is set, but the Redis client is not installed", INSTALL_REDIS
        )
    try:
        client = redis.asyncio.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        try:
            version = (await client.info("server"))["redis_version"]
        finally:
            await client.aclose()
    except (redis.exceptions.RedisError, OSError, ValueError) as error:
        return Finding("error", "redis", f"{without_secrets(url)} does not answer: {error}", START_REDIS)
    return Finding("ok", "redis", f"Redis {version} at {without_secrets(url)}")


async def _databases(queue: AnyQueue) -> list[Finding]:
    """Check each database of a map; skipped for a single database."""
    return [_database(each) for each in await queue.workspaces.databases() if each.name is not None]


def _database(found: DatabaseInfo) -> Finding:
    name = f"database {found.name}"
    if found.state != "up":
        what = f"{found.error}; calls to its {found.workspaces} workspaces are refused"
        return Finding("error", name, what, "Start it, or correct its address in the map.")
    if found.maintenance_late_sec:
        what = f"its maintenance is {found.maintenance_late_sec:.0f} s late"
        return Finding("warning", name, what, "Start a server or a worker on the map.")
    what = f"{found.workspaces} workspaces, {found.open_tasks} open tasks, answered in {found.answered_in_ms:.0f} ms"
    return Finding("ok", name, what)


async def _quotas(queue: AnyQueue) -> list[Finding]:
    """Check for workspaces that soon cannot submit any more."""
    found = []
    for quota in await queue.quotas.list():
        for name, used, most in (("tasks", quota.tasks, quota.max_tasks), ("bytes", quota.bytes, quota.max_bytes)):
            if most is not None and used is not None and used >= NEARLY * most:
                what = f"workspace {quota.workspace} has {used} of at most {most} {name}"
                found.append(Finding("warning", "quotas", what, "Purge some, or raise it: shiftwork quotas set"))
    return found


CHECKS: dict[str, Callable[[Queue], Awaitable[list[Finding]]]] = {
    "store": _engine,
    "clock": _clock,
    "waiting": _waiting,
    "dependencies": _dependencies,
    "maintenance": _maintenance,
    "upgrade": _contracts,
    "indexes": _indexes,
    "content": _content,
    "databases": _databases,
    "quotas": _quotas,
    "bridges": _bridges,
    "counts": _counts,
    "transactions": _transactions,
}

OF_DATABASES = {"store", "upgrade", "indexes", "counts", "transactions"}
"""Checks made in each database of a map."""

CHECKS_OF_SERVERS: dict[str, Callable[[AnyQueue], Awaitable[list[Finding]]]] = {
    "clock": _clock,
    "waiting": _waiting,
    "maintenance": _maintenance,
    "databases": _databases,
    "quotas": _quotas,
}
"""Checks possible through a server; the rest needs its store."""
