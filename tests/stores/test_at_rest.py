"""Files on the disk are readable only by their owner, and secrets are encrypted if there is a key."""

from __future__ import annotations

import base64
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue, logs
from shiftwork.model.errors import HookRefused, InputError
from shiftwork.model.reports import TaskResult
from shiftwork.notifications.sender import NotificationSender
from shiftwork.testing import MovedClock, pass_time
from shiftwork.triggers.hooks import receive_hook
from shiftwork.worker.outbox import Outbox, StoredResult
from tests import deliveries
from tests.conformance.steps import dead_letter, everything

MAIL: dict[str, Any] = {
    "name": "mail",
    "kind": "email",
    "address": "ada@example.com",
    "server": "smtp://queue@127.0.0.1:9",
    "sender": "queue@example.com",
    "allow_private": True,
}
PASSWORD = "correct-horse-battery"


@pytest.fixture(autouse=True)
def _usual_rights() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return [str(path) for path in [folder, *folder.rglob("*")] if path.stat().st_mode & 0o077]


async def test_queue_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    async with Queue.open(f"sqlite:///{home}/work.db") as queue:
        await queue.artifacts.put(b"plans")
        await queue.snapshots.take()
        assert {path.name for path in home.iterdir()} >= {"work.db", "work.db-wal", "work.db.turn", "work.db.artifacts"}
        assert open_to_others(home) == []


async def test_permissions_given_to_a_database_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "work.db"
    async with Queue.open(f"sqlite:///{file}"):
        pass
    file.chmod(0o640)
    async with Queue.open(f"sqlite:///{file}"):
        assert file.stat().st_mode & 0o777 == 0o640


def test_outbox_results_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    assert Outbox(folder).keep(StoredResult("task_1.1", TaskResult({"secret": 1})))
    assert open_to_others(folder) == []


def test_log_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.set_up(json=False, file=tmp_path / "server.log")
        assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600
    finally:
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


def key_file(path: Path, *keys: str, rights: int = 0o600) -> str:
    path.write_text("\n".join(keys or [new_key()]))
    path.chmod(rights)
    return str(path)


def new_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


async def secrets_kept(queue: Queue) -> str:
    found: Any = await everything(queue)
    return str(found["sinks"]) + str(found["triggers"])


async def add_both(queue: Queue) -> None:
    await queue.sinks.add(**{**MAIL, "secret": PASSWORD})
    on = {"kind": "hook", "signature": "github"}
    await queue.triggers.save("review", on=on, task={"type": "noop"}, secret=PASSWORD)


async def post(queue: Queue) -> Any:
    async def body() -> Any:
        yield deliveries.PULL_REQUEST

    headers = deliveries.github(PASSWORD, deliveries.PULL_REQUEST, "pull_request")
    return await receive_hook(queue.executor, "review", headers, body())


async def test_with_a_key_secrets_are_encrypted_and_usable(store_url: str, tmp_path: Path) -> None:
    key = key_file(tmp_path / "key")
    async with Queue.open(store_url, secrets_key=key) as queue:
        await add_both(queue)
        assert PASSWORD not in await secrets_kept(queue)
        assert (await post(queue)).outcome == "fired"
        await queue.sinks.update("mail", sender="other@example.com")
        assert PASSWORD not in await secrets_kept(queue)
        await queue.triggers.save("review", on={"kind": "hook", "signature": "github"}, task={"type": "other"})
        assert PASSWORD not in await secrets_kept(queue)


async def test_without_the_key_encrypted_secrets_are_unusable(
    store_url: str, tmp_path: Path, clock: MovedClock
) -> None:
    async with Queue.open(store_url, secrets_key=key_file(tmp_path / "key"), clock=clock) as queue:
        await add_both(queue)
        await dead_letter(queue)
    other = key_file(tmp_path / "other")
    for key, why in ((None, "has no key"), (other, "another key")):
        async with Queue.open(store_url, secrets_key=key, clock=clock) as queue:
            await pass_time(queue, clock, 3600)
            await NotificationSender(queue.engine).send_due()
            assert why in str((await queue.deliveries.list())[0].error)


async def test_key_is_rotated_by_a_new_one_in_front(store_url: str, tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    async with Queue.open(store_url, secrets_key=key_file(tmp_path / "key", old)) as queue:
        await add_both(queue)
    async with Queue.open(store_url, secrets_key=key_file(tmp_path / "key", new, old)) as queue:
        assert (await post(queue)).outcome == "fired"
        await add_again(queue)
    async with Queue.open(store_url, secrets_key=key_file(tmp_path / "key", new)) as queue:
        with pytest.raises(HookRefused):
            await receive_hook(queue.executor, "review", {}, _nothing())


async def add_again(queue: Queue) -> None:
    on = {"kind": "hook", "signature": "github"}
    await queue.triggers.save("review", on=on, task={"type": "noop"}, secret=PASSWORD)


async def _nothing() -> Any:
    yield b""


async def test_secrets_from_before_the_key_keep_working(store_url: str, tmp_path: Path) -> None:
    async with Queue.open(store_url) as queue:
        await add_both(queue)
        assert PASSWORD in await secrets_kept(queue)
    async with Queue.open(store_url, secrets_key=key_file(tmp_path / "key")) as queue:
        assert (await post(queue)).outcome == "fired"


@pytest.mark.parametrize("content", ["", "short", "%" * 44])
async def test_key_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="contains no key"):
        await Queue.open(f"sqlite:///{tmp_path}/q.db", secrets_key=key_file(tmp_path / "key", content))


async def test_key_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    key = key_file(tmp_path / "key", rights=0o644)
    with pytest.raises(InputError, match="other users can access the key file"):
        await Queue.open(f"sqlite:///{tmp_path}/q.db", secrets_key=key)
    with pytest.raises(InputError, match="cannot be read"):
        await Queue.open(f"sqlite:///{tmp_path}/q.db", secrets_key=str(tmp_path / "none"))
