"""Celery on Redis, without results."""

import os
import sys
import time
from pathlib import Path

from celery import Celery
from common import main, mark, paced, timed

FAST = os.environ.get("PEER_SETTINGS") == "fast"
SETTINGS: dict[str, list[str]] = {
    "default": [],
    "fast": ["-c2", "--without-gossip", "--without-mingle", "--without-heartbeat"],
}

app = Celery("on_celery", broker=os.environ.get("PEER_URL") or sys.argv[2])
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
if FAST:
    app.conf.worker_prefetch_multiplier = 100


@app.task(name="noop")
def noop(_number: int) -> None:
    mark()


@app.task(name="stamp")
def stamp(sent: int) -> None:
    mark(sent)


@app.task(name="hang")
def hang() -> None:
    mark()
    time.sleep(600)


def single(_url: str, count: int) -> None:
    app.connection_for_write().ensure_connection()
    with timed():
        for number in range(count):
            noop.delay(number)


def work(url: str, settings: str) -> None:
    os.environ.update(PEER_URL=url, PEER_SETTINGS=settings)
    line = [sys.executable, "-m", "celery", "-A", "on_celery", "worker", "-l", "ERROR", "-n", f"w{os.getpid()}"]
    os.chdir(Path(__file__).parent)
    os.execv(sys.executable, [*line, *SETTINGS[settings]])  # noqa: S606  # it needs none


if __name__ == "__main__":
    main(
        prepare=lambda _url: None,
        single=single,
        bulk=lambda url, count, _mixed: single(url, count),
        send=lambda _url, count: paced(count, stamp.delay),
        hang=lambda _url: hang.delay(),
        work=work,
    )
