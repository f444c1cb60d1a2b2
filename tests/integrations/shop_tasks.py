"""Tasks of a Django application."""

from typing import Any

from django_tasks import TaskContext, task

from shiftwork.integrations.django.framework import task_finished, task_started

seen: list[tuple[str, str]] = []
"""What the signals of the framework said: which, and the status."""


@task
def add(first: int, second: int = 0) -> int:
    return first + second


@task(queue_name="mail", priority=20)
async def greet(name: str) -> dict[str, Any]:
    return {"text": f"Hello {name}", "empty": None}


@task
def stumble(word: str) -> None:
    raise LookupError(word)


@task(takes_context=True)
def who(context: TaskContext) -> list[Any]:
    return [context.task_result.id, context.attempt]


@task(backend="elsewhere")
def far(number: int) -> int:
    return number


def _note(name: str) -> Any:
    def receive(task_result: Any, **_: Any) -> None:
        seen.append((name, str(task_result.status)))

    return receive


started, finished = _note("started"), _note("finished")
task_started.connect(started)
task_finished.connect(finished)
