"""huey on SQLite."""

import sqlite3
import sys
import time
from typing import Any

from common import main, mark, paced, timed
from huey import SqliteHuey
from huey.consumer_options import ConsumerConfig

QUEUE: dict[str, dict[str, bool]] = {"fast": {"fsync": False, "results": False}}
CONSUMER: dict[str, dict[str, Any]] = {"fast": {"initial_delay": 0.001, "max_delay": 0.01}}

huey = SqliteHuey("bench", filename=sys.argv[2].removeprefix("sqlite:///"), **QUEUE.get(sys.argv[-1], {}))


@huey.task()
def noop(_number: int) -> None:
    mark()


@huey.task()
def stamp(sent: int) -> None:
    mark(sent)


@huey.task()
def hang() -> None:
    mark()
    time.sleep(600)


def single(_url: str, count: int) -> None:
    with timed():
        for number in range(count):
            noop(number)


def bulk(url: str, count: int, mixed: int) -> None:
    """Copy the row of one message, since there is no bulk call."""
    noop(0)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "with recursive more (n) as (select 1 union all select n + 1 from more where n < ?) "
            f"insert into task (queue, data, priority) select queue, data, {'n / 100 % 100' if mixed else 'priority'} "
            "from task, more",
            (count - 1,),
        )
    connection.close()


def work(_url: str, settings: str) -> None:
    config = ConsumerConfig(**CONSUMER.get(settings, {}))
    config.validate()
    huey.create_consumer(**config.values).run()


main(
    prepare=lambda _url: None,
    single=single,
    bulk=bulk,
    send=lambda _url, count: paced(count, stamp),
    hang=lambda _url: hang(),
    work=work,
)
