"""Run a command with the shared servers up: `python -m tests.services -- pytest -n 2`."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.services import ServiceError, shared
from tests.services.common import MEMORY, memory_is_roomy

PATIENCE = 20
"""Seconds that an interrupted command has to end by itself."""


def main(command: Sequence[str]) -> int:
    with ExitStack() as servers:
        postgres = servers.enter_context(shared.postgres())
        pgbouncer = servers.enter_context(shared.pgbouncer(postgres))
        redis = servers.enter_context(shared.redis())
        return _run(
            command,
            {
                shared.POSTGRES: postgres.dsn(),
                shared.PGBOUNCER: pgbouncer.dsn(),
                shared.REDIS: redis,
                **servers.enter_context(_fast_folders()),
            },
        )


@contextmanager
def _fast_folders() -> Iterator[dict[str, str]]:
    """The folders of the tests are in memory: a test on SQLite spends more time waiting for the disk than working.

    Under a folder of this run alone, so that another run that ends does not tidy it away.
    """
    if not memory_is_roomy():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-tests-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield {"PYTEST_DEBUG_TEMPROOT": folder}


def _run(command: Sequence[str], variables: dict[str, str]) -> int:
    child: subprocess.Popen[bytes] | None = None

    def interrupt(number: int, _: object) -> None:
        # A terminal sends Ctrl-C to both of us, and the command ends in its own way. Other signals come to us
        # alone and are passed on as Ctrl-C, so that the command can clean up; but not forever.
        if child is not None and number != signal.SIGINT:
            child.send_signal(signal.SIGKILL if number == signal.SIGALRM else signal.SIGINT)
            signal.alarm(PATIENCE)

    # Before the command starts: in a background job Ctrl-C is ignored, and it would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, interrupt)
    child = subprocess.Popen(command, env={**os.environ, **variables})
    code = child.wait()
    signal.alarm(0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments:
        sys.exit("usage: python -m tests.services -- COMMAND ...")
    try:
        sys.exit(main(arguments))
    except ServiceError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
