"""DBOS on PostgreSQL: a queue of workflows without steps."""

import os
import threading
import time
from typing import Any

import sqlalchemy as sa
from common import main, mark, paced, timed
from dbos import DBOS, DBOSClient

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "fast": {"worker_concurrency": 1000, "polling_interval_sec": 0.05},
}


def launch(url: str) -> None:
    name = f"bench-{os.getpid()}"  # with the same name, a second process would run what the first is running
    config = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "executor_id": name}
    DBOS(config={**config, "application_version": "bench"})  # type: ignore[typeddict-item]  # no types here

    @DBOS.workflow(name="noop")
    def noop(_number: int) -> None:
        mark()

    @DBOS.workflow(name="stamp")
    def stamp(sent: int) -> None:
        mark(sent)

    @DBOS.workflow(name="hang")
    def hang() -> None:
        mark()
        time.sleep(600)

    DBOS.launch()


def enqueue(client: DBOSClient, name: str, *arguments: int) -> None:
    client.enqueue({"workflow_name": name, "queue_name": "bench", "app_version": "bench"}, *arguments)


def prepare(url: str) -> None:
    launch(url)
    DBOS.destroy()


def single(url: str, count: int) -> None:
    client = DBOSClient(system_database_url=url)
    with timed():
        for number in range(count):
            enqueue(client, "noop", number)


def bulk(url: str, count: int, mixed: int) -> None:
    """Copy the rows of a hundred workflows, since there is no bulk call."""
    client = DBOSClient(system_database_url=url)
    own = min(count, 100)
    for number in range(own):
        enqueue(client, "noop", number)
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for table in ("dbos.workflow_status", "dbos.workflow_input"):
            columns = list(connection.execute(sa.text(f"select * from {table} limit 0")).keys())
            changed = {"workflow_uuid": "workflow_uuid || '-' || g", "created_at": "created_at + g"}
            if mixed:
                changed["priority"] = "g % 100"
            values = ", ".join(changed.get(column, column) for column in columns)
            copies = f"generate_series(1, {count // own - 1}) g"
            connection.execute(
                sa.text(f"insert into {table} ({', '.join(columns)}) select {values} from {table}, {copies}")
            )


def send(url: str, count: int) -> None:
    client = DBOSClient(system_database_url=url)
    paced(count, lambda sent: enqueue(client, "stamp", sent))


def hang_one(url: str) -> None:
    enqueue(DBOSClient(system_database_url=url), "hang")


def work(url: str, settings: str) -> None:
    launch(url)
    DBOS.register_queue("bench", **SETTINGS[settings])
    threading.Event().wait()


main(prepare=prepare, single=single, bulk=bulk, send=send, hang=hang_one, work=work)
