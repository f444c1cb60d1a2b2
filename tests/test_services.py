"""The test servers: data survives restarts, ports stay, and nothing outlives the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from tests.services import Databases, Postgres, Redis
from tests.services.postgres import execute
from tests.services.redis import ask, empty
from tests.services.shared import Pooler


async def test_each_test_gets_an_empty_database(postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    assert await connection.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
    await connection.close()


async def test_database_is_copied_from_a_template(postgres: Databases) -> None:
    template = postgres.create_database()
    execute(postgres.dsn(template), "CREATE TABLE t AS SELECT 7 AS n")
    copy = postgres.create_database(template)
    connection = await asyncpg.connect(postgres.dsn(copy))
    assert await connection.fetchval("SELECT n FROM t") == 7
    postgres.drop_database(copy)  # with a connection open
    postgres.drop_database(template)
    await connection.close()


async def test_pgbouncer_reaches_a_test_database(pgbouncer: Pooler, postgres_dsn: str) -> None:
    database = postgres_dsn.rpartition("/")[2]
    connection = await asyncpg.connect(pgbouncer.dsn(database), statement_cache_size=0)
    assert await connection.fetchval("SELECT current_database()") == database
    await connection.close()


def test_redis_is_empty_at_the_start_of_a_test(redis_url: str) -> None:
    assert ask(redis_url, "DBSIZE") == ":0\r\n"
    ask(redis_url, "SET left behind")
    empty(redis_url)
    assert ask(redis_url, "DBSIZE") == ":0\r\n"


def test_postgres_keeps_commits_through_stop_and_kill() -> None:
    with Postgres.start() as server:
        port = server.port
        execute(server.dsn(), "CREATE TABLE t (n int)")
        for number, mode in enumerate(("kill9", "fast", "immediate")):
            execute(server.dsn(), f"INSERT INTO t VALUES ({number})")
            if mode == "kill9":
                server.kill9()
            else:
                server.stop("fast" if mode == "fast" else "immediate")
            assert not server.running
            assert not server.ready()
            server.start_again()
            assert server.port == port
        execute(server.dsn(), "DO $$ BEGIN ASSERT (SELECT count(*) FROM t) = 3; END $$")
    assert not server.sandbox.folder.exists()


def test_redis_keeps_data_through_a_restart() -> None:
    with Redis.start() as server:
        ask(server.url, "SET kept 1")
        server.stop()
        server.start_again()
        assert ask(server.url, "EXISTS kept") == ":1\r\n"
    assert not server.sandbox.folder.exists()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_servers_end_with_the_process_that_started_them(end: signal.Signals) -> None:
    program = (
        "from tests.services import Postgres, Redis; import time;"
        "servers = [Postgres.start(durable=False), Redis.start()];"
        "print(*(f'{s._process.pid} {s.sandbox.folder}' for s in servers), flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        words = owner.stdout.readline().split()
        owner.send_signal(end)
    pids, folders = [int(word) for word in words[::2]], [Path(word) for word in words[1::2]]
    assert len(pids) == 2
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and (any(map(_alive, pids)) or any(f.exists() for f in folders)):
        time.sleep(0.05)
    assert not any(map(_alive, pids))
    assert not any(f.exists() for f in folders)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A container without an init process keeps the dead as zombies.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
