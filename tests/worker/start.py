"""Starts a fleet as `shiftwork work` does: `python -m tests.worker.start URL PROCESSES [idle]`."""

import logging
import sys

from shiftwork.worker import worker_processes as fleet
from shiftwork.worker.load_worker import run

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    fleet.CRASH_SEC = 30.0  # beside other tests a process may need longer than 5 s to start and to crash
    url, processes, *idle = sys.argv[1:]
    sys.exit(run("tests.worker.mill:worker", url=url, processes=int(processes), until_idle=bool(idle)))
