"""`manage.py shiftwork_worker`: runs the tasks that Django enqueues."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from shiftwork.integrations.django.backend import ShiftworkBackend
from shiftwork.integrations.django.django_worker import worker_of
from shiftwork.integrations.django.framework import task_backends
from shiftwork.model.errors import ShiftworkError


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    help = "Run enqueued tasks until stopped by SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="The name of the backend in TASKS.")
        parser.add_argument("--queue", action="append", help="Run only tasks of this queue. Repeatable.")
        parser.add_argument("--concurrency", type=int, help="Number of concurrent tasks.")
        parser.add_argument("--until-idle", action="store_true", help="End when nothing is left to do.")

    def handle(self, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, ShiftworkBackend):
            raise CommandError(f"the backend {options['backend']!r} does not use Shiftwork")
        queues = options["queue"] or sorted(backend.queues)
        if unknown := [name for name in queues if backend.queues and name not in backend.queues]:
            raise CommandError(f"the backend has no queue {unknown[0]!r}; it has {', '.join(sorted(backend.queues))}")
        if not queues:
            raise CommandError("the backend does not list its queues: name those to run with --queue")
        try:
            worker = worker_of(backend, queues, options["concurrency"])
            summary = asyncio.run(worker.run(backend.address, until_idle=options["until_idle"]))
        except ShiftworkError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{summary.completed} completed, {summary.failed} failed")
