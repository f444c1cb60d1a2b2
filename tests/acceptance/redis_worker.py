"""A worker that takes one entry and never ends its work: `python -m tests.acceptance.redis_worker URL NAME`."""

import signal
import sys
from typing import Any

from redis import Redis


def main(url: str, name: str) -> None:
    redis = Redis.from_url(url, decode_responses=True)
    answer: Any = redis.xreadgroup("cg:workers", name, {"stream:task": ">"}, count=1)
    entries = dict(answer)["stream:task"]
    if isinstance(entries[0], list):
        entries = entries[0]
    print(entries[0][0], flush=True)  # noqa: T201  # for the test that reads it
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
