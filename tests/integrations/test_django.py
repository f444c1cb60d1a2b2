"""Django's tasks framework on a queue in Django's own database."""

import asyncio
import io
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone
from django_tasks import TaskResultStatus, default_task_backend, task_backends
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch

from shiftwork import SyncQueue
from shiftwork.integrations.django import ShiftworkBackend
from shiftwork.integrations.django.backend import open_once
from tests.services import Databases


@pytest.fixture(scope="module", autouse=True)
def _configured(postgres: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Django has one configuration for a process."""
    name = postgres.create_database()
    store = f"{postgres.dsn(name)}?schema=work_queue"
    elsewhere = f"sqlite:///{tmp_path_factory.mktemp('elsewhere')}/queue.db"
    backend = "shiftwork.integrations.django.ShiftworkBackend"
    settings.configure(
        USE_TZ=True,
        INSTALLED_APPS=["django_tasks", "shiftwork.integrations.django"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": name,
                "HOST": postgres.host,
                "PORT": postgres.port,
                "USER": postgres.user,
                "PASSWORD": postgres.password or "",
            }
        },
        TASKS={
            "default": {"BACKEND": backend, "QUEUES": ["default", "mail"], "OPTIONS": {"store": store}},
            "elsewhere": {"BACKEND": backend, "OPTIONS": {"store": elsewhere}},
            "dummy": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"},
        },
    )
    django.setup()
    with connection.cursor() as cursor:
        cursor.execute("create table orders (note text); create table tasks (id int)")
    yield
    connection.close()
    for address in (store, elsewhere):
        open_once(address, "default").close()
    postgres.drop_database(name)


@pytest.fixture
def shop() -> Any:
    from tests.integrations import shop_tasks  # noqa: PLC0415  # its tasks need the configuration

    shop_tasks.seen.clear()
    return shop_tasks


@pytest.fixture(autouse=True)
def queue(_configured: None) -> SyncQueue:
    found: SyncQueue = task_backends["default"].queue
    found.settings.set("max_attempts", 1)
    return found


def work(*words: str) -> str:
    out = io.StringIO()
    call_command("shiftwork_worker", "--until-idle", *words, stdout=out)
    return out.getvalue()


def orders() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from orders")
        return int(cursor.fetchone()[0])


def test_task_runs_and_its_result_is_read(shop: Any) -> None:
    result = shop.add.enqueue(2, second=3)
    assert result.status == TaskResultStatus.READY
    assert "1 completed" in work()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 5, 1)
    assert (result.args, result.kwargs, result.errors) == ([2], {"second": 3}, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert shop.add.get_result(result.id) == result
    assert shop.seen == [("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_coroutine_runs_in_its_queue(shop: Any, queue: SyncQueue) -> None:
    result = shop.greet.enqueue("Ada")
    assert queue.get(result.id).priority == 40
    assert "0 completed" in work("--queue", "default")
    assert "1 completed" in work("--queue", "mail")
    result.refresh()
    assert result.return_value == {"text": "Hello Ada", "empty": None}
    assert result.task.queue_name == "mail"


def test_failure_has_its_exception_and_traceback(shop: Any) -> None:
    result = shop.stumble.enqueue("nowhere")
    work()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is LookupError
    assert "raise LookupError(word)" in error.traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value
    assert shop.seen[-1] == ("finished", "FAILED")


def test_retried_task_counts_its_attempts(shop: Any, queue: SyncQueue) -> None:
    queue.settings.set("max_attempts", 2)
    queue.settings.set("retry.strategy", "immediate")
    result = shop.stumble.enqueue("twice")
    work()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)


def test_task_gets_its_context(shop: Any) -> None:
    result = shop.who.enqueue()
    work()
    result.refresh()
    assert result.return_value == [result.id, 1]


def test_urgent_task_runs_first(shop: Any, queue: SyncQueue) -> None:
    late, soon = shop.add.using(priority=-100).enqueue(1), shop.add.using(priority=100).enqueue(2)
    assert [queue.get(each.id).priority for each in (late, soon)] == [100, 0]
    work("--concurrency", "1")
    late.refresh()
    soon.refresh()
    assert soon.finished_at < late.finished_at


def test_deferred_task_waits(shop: Any, queue: SyncQueue) -> None:
    result = shop.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    assert queue.get(result.id).status != "ready"
    assert "0 completed" in work()
    queue.cancel(result.id)


def test_task_commits_with_the_rows_of_its_transaction(shop: Any, queue: SyncQueue) -> None:
    before = orders()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("insert into orders values ('book')")
        result = shop.add.enqueue(1)
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(result.id)
    assert default_task_backend.get_result(result.id).status == TaskResultStatus.READY
    assert orders() == before + 1
    queue.cancel(result.id)


def test_rolled_back_transaction_enqueues_nothing(shop: Any) -> None:
    with transaction.atomic():
        made = [shop.add.enqueue(1), shop.far.enqueue(1)]
        transaction.set_rollback(True)
    for result in made:
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()


def test_queue_in_another_database_gets_the_task_after_the_commit(shop: Any) -> None:
    with transaction.atomic():
        result = shop.far.enqueue(7)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
    assert "1 completed" in work("--backend", "elsewhere")
    result.refresh()
    assert result.return_value == 7


def test_event_loop_enqueues_and_reads(shop: Any) -> None:
    async def use() -> None:
        result = await shop.add.aenqueue(4)
        assert (await shop.add.aget_result(result.id)).status == TaskResultStatus.READY

    asyncio.run(use())
    assert "1 completed" in work()


def test_unknown_and_foreign_ids_have_no_result(shop: Any, queue: SyncQueue) -> None:
    other = queue.submit(type="code")
    for name in ("nope", other.id):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(name)
    queue.cancel(other.id)
    result = shop.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        shop.who.get_result(result.id)
    queue.cancel(result.id)


def test_bad_tasks_and_settings_are_refused(shop: Any) -> None:
    with pytest.raises(InvalidTaskError, match="Queue 'nope'"):
        shop.add.using(queue_name="nope")
    with pytest.raises(TypeError, match="Unsupported type"):
        shop.add.enqueue(object())
    with pytest.raises(ImproperlyConfigured, match="unknown option 'stroe'"):
        ShiftworkBackend("default", {"OPTIONS": {"stroe": "x"}})
    with pytest.raises(CommandError, match="no queue 'nope'"):
        work("--queue", "nope")
    with pytest.raises(CommandError, match="does not use Shiftwork"):
        work("--backend", "dummy")
