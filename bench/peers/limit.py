"""The limit of the PostgreSQL server itself: pgbench with hand-written statements on a narrow table."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench.peers.figures import Figure
from bench.peers.sites import Sites
from tests.services import Postgres

NAME = "pgbench"
MEASUREMENT = "limit"

TABLE = """
drop table if exists queue;
create table queue (
  id bigserial primary key, priority smallint not null default 0, status smallint not null default 0, payload jsonb,
  created_at timestamptz not null default now(), locked_at timestamptz, finished_at timestamptz);
create index on queue (priority, id) where status = 0;
"""

CLAIM = """with claimed as (
  update queue set status = 1, locked_at = now() where id in
    (select id from queue where status = 0 order by priority, id limit {batch} for update skip locked)
  returning id, payload)
select array_agg(id) as ids, count(payload) as found from claimed \\gset
"""
STATEMENTS = {
    "claim and update": CLAIM + "update queue set status = 2, finished_at = now() where id = any(:ids::bigint[]);",
    "claim and delete": CLAIM + "delete from queue where id = any(:ids::bigint[]);",
    "insert": "insert into queue (payload) select '{{\"n\": 1}}' from generate_series(1, {batch});",
}


class Load(NamedTuple):
    """A statement, the tasks per statement, and the connections."""

    statement: str
    batch: int
    connections: int

    @property
    def what(self) -> str:
        plural = "s" if self.connections > 1 else ""
        return f"{self.statement}, {self.batch} at a time, {self.connections} connection{plural}"

    @property
    def rows(self) -> int:
        """More rows than it can take in the time."""
        return 0 if self.statement == "insert" else {1: 100_000, 10: 200_000}.get(self.batch, 600_000)


LOADS = (
    Load("insert", 1, 1),
    Load("insert", 1000, 1),
    Load("claim and update", 1, 1),
    Load("claim and update", 1, 10),
    Load("claim and update", 100, 1),
    Load("claim and update", 1000, 1),
    Load("claim and update", 1000, 2),
    Load("claim and delete", 1000, 1),
)


def measure(sites: Sites, seconds: int) -> Iterator[Figure]:
    """Yield one figure for each load. Without pgbench, print a note and yield none."""
    server = sites.postgres
    program = Path(server.program.beside("pgbench"))
    if not program.exists():
        print(f"there is no {program}, so the limit of the server is not measured", flush=True)
        return
    database = server.create_database()
    with sites.folder() as folder:
        for load in LOADS:
            _fill(server.dsn(database), load.rows)
            script = folder / "script.sql"
            script.write_text(STATEMENTS[load.statement].format(batch=load.batch) + "\n", encoding="utf-8")
            rate = load.batch * _transactions(server, database, program, script, load, seconds)
            yield Figure(measurement=MEASUREMENT, what=load.what, queue=NAME, unit="tasks/s", values=[rate])
    server.drop_database(database)


def _fill(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE.encode())
        fill = "insert into queue (priority, payload) select g / 100 % 100, '{\"n\": 1}' from generate_series(1, $) g"
        connection.execute(fill.replace("$", str(rows)).encode())
        connection.execute("vacuum analyze queue")
        connection.execute("checkpoint")


def _transactions(server: Postgres, database: str, program: Path, script: Path, load: Load, seconds: int) -> float:
    line = [str(program), "-h", server.host, "-p", str(server.port), "-U", server.user, "-n", "-M", "prepared"]
    line += ["-f", str(script), "-c", str(load.connections), "-j", str(min(2, load.connections)), "-T", str(seconds)]
    done = subprocess.run(
        [*line, database], env=server.program.environment(), capture_output=True, text=True, check=False
    )
    return transactions_per_second(done.stdout + done.stderr)


def transactions_per_second(printed: str) -> float:
    """Read the rate from the output of pgbench."""
    found = re.search(r"^tps = ([\d.]+)", printed, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"pgbench printed no rate: {printed.strip()[-400:]}")
    return float(found[1])
