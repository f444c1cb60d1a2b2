"""Dramatiq on Redis."""

import os
import sys
import time

import dramatiq
from common import main, mark, paced, timed
from dramatiq.brokers.redis import RedisBroker

SETTINGS: dict[str, list[str]] = {"default": [], "fast": ["--processes", "1", "--threads", "2"]}

dramatiq.set_broker(RedisBroker(url=os.environ.get("PEER_URL") or sys.argv[2]))


@dramatiq.actor
def noop(_number: int) -> None:
    mark()


@dramatiq.actor
def stamp(sent: int) -> None:
    mark(sent)


@dramatiq.actor(time_limit=3_600_000)
def hang() -> None:
    mark()
    time.sleep(600)


def single(_url: str, count: int) -> None:
    with timed():
        for number in range(count):
            noop.send(number)


def work(url: str, settings: str) -> None:
    os.environ["PEER_URL"] = url
    if settings == "fast":
        os.environ["dramatiq_queue_prefetch"] = "200"  # noqa: SIM112  # its own name
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", "on_dramatiq", *SETTINGS[settings]])  # noqa: S606  # it needs none


if __name__ == "__main__":
    main(
        prepare=lambda _url: None,
        single=single,
        bulk=lambda url, count, _mixed: single(url, count),
        send=lambda _url, count: paced(count, stamp.send),
        hang=lambda _url: hang.send(),
        work=work,
    )
