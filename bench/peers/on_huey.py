"""huey on SQLite, as it is unless told otherwise: one thread, a sync for each commit.

`fill FILE COUNT` puts this many in, `work FILE MARKS` works, `send FILE COUNT EVERY` submits one by one, with the time
of the call.
"""

import os
import sqlite3
import sys
import time

from huey import SqliteHuey
from huey.consumer_options import ConsumerConfig

VERB, FILE, WHAT, *MORE = sys.argv[1:]
OUT = os.open(WHAT if VERB == "work" else os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
huey = SqliteHuey("bench", filename=FILE)


@huey.task()
def noop(_number: int) -> None:
    os.write(OUT, b".")


@huey.task()
def stamp(sent: int) -> None:
    os.write(OUT, b"%d\n" % (time.time_ns() - sent))


def fill(count: int) -> None:
    """It has no call for many: one message is copied."""
    noop(1)
    with sqlite3.connect(FILE) as connection:
        connection.execute(
            "with recursive more (n) as (select 1 union all select n + 1 from more where n < ?) "
            "insert into task (queue, data, priority) select queue, data, priority from task, more",
            (count - 1,),
        )


def work() -> None:
    config = ConsumerConfig()
    config.validate()
    huey.create_consumer(**config.values).run()


def send(count: int, every_sec: float) -> None:
    for _ in range(count):
        stamp(time.time_ns())
        time.sleep(every_sec)


if __name__ == "__main__":
    if VERB == "fill":
        fill(int(WHAT))
    elif VERB == "send":
        send(int(WHAT), float(MORE[0]))
    else:
        work()
