"""What lies on the disk is for its owner alone, and secrets are encrypted where there is a key."""

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
from shiftwork.core.errors import HookRefused, InputError
from shiftwork.sinks.courier import Courier
from shiftwork.testing import MovedClock, pass_time
from shiftwork.worker.outbox import Kept, Outbox
from tests import deliveries
from tests.conformance.steps import bury, everything

MAIL = {
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


async def test_the_files_of_a_queue_are_for_their_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    async with await Queue.open(f"sqlite:///{home}/work.db") as queue:
        await queue.put_artifact(b"plans")
        await queue.take_snapshot()
        assert {path.name for path in home.iterdir()} >= {"work.db", "work.db-wal", "work.db.turn", "work.db.artifacts"}
        assert open_to_others(home) == []


async def test_rights_that_were_given_to_a_database_stay(tmp_path: Path) -> None:
    file = tmp_path / "work.db"
    async with await Queue.open(f"sqlite:///{file}"):
        pass
    file.chmod(0o640)
    async with await Queue.open(f"sqlite:///{file}"):
        assert file.stat().st_mode & 0o777 == 0o640


def test_results_in_the_outbox_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "outbox"
    assert Outbox(folder).keep(Kept(token="task_1.1", done=True, data={"secret": 1}))
    assert open_to_others(folder) == []


def test_a_log_file_is_for_its_owner_alone(tmp_path: Path) -> None:
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


# -- secrets -----------------------------------------------------------------------------------------------------


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
    await queue.add_sink({**MAIL, "secret": PASSWORD})
    on = {"kind": "hook", "signature": "github"}
    await queue.save_trigger("review", on=on, task={"type": "noop"}, secret=PASSWORD)


async def post(queue: Queue) -> Any:
    async def body() -> Any:
        yield deliveries.PULL_REQUEST

    headers = deliveries.github(PASSWORD, deliveries.PULL_REQUEST, "pull_request")
    return await queue.receive_hook("review", headers, body())


async def test_with_a_key_secrets_are_encrypted_and_work(store_url: str, tmp_path: Path) -> None:
    key = key_file(tmp_path / "key")
    async with await Queue.open(store_url, secrets_key=key) as queue:
        await add_both(queue)
        assert PASSWORD not in await secrets_kept(queue)
        assert (await post(queue)).outcome == "fired"
        await queue.update_sink("mail", sender="other@example.com")
        assert PASSWORD not in await secrets_kept(queue)
        await queue.save_trigger("review", on={"kind": "hook", "signature": "github"}, task={"type": "other"})
        assert PASSWORD not in await secrets_kept(queue)


async def test_without_the_key_an_encrypted_secret_is_of_no_use(
    store_url: str, tmp_path: Path, clock: MovedClock
) -> None:
    async with await Queue.open(store_url, secrets_key=key_file(tmp_path / "key"), clock=clock) as queue:
        await add_both(queue)
        await bury(queue)
    other = key_file(tmp_path / "other")
    for key, why in ((None, "has no key"), (other, "another key")):
        async with await Queue.open(store_url, secrets_key=key, clock=clock) as queue:
            await pass_time(queue, clock, 3600)
            await Courier(queue.engine).send_due()
            assert why in str((await queue.deliveries())[0].error)


async def test_a_key_is_changed_by_a_new_one_in_front(store_url: str, tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    async with await Queue.open(store_url, secrets_key=key_file(tmp_path / "key", old)) as queue:
        await add_both(queue)
    async with await Queue.open(store_url, secrets_key=key_file(tmp_path / "key", new, old)) as queue:
        assert (await post(queue)).outcome == "fired"
        await add_again(queue)
    async with await Queue.open(store_url, secrets_key=key_file(tmp_path / "key", new)) as queue:
        with pytest.raises(HookRefused):
            await queue.receive_hook("review", {}, _nothing())


async def add_again(queue: Queue) -> None:
    on = {"kind": "hook", "signature": "github"}
    await queue.save_trigger("review", on=on, task={"type": "noop"}, secret=PASSWORD)


async def _nothing() -> Any:
    yield b""


async def test_secrets_of_before_the_key_go_on_working(store_url: str, tmp_path: Path) -> None:
    async with await Queue.open(store_url) as queue:
        await add_both(queue)
        assert PASSWORD in await secrets_kept(queue)
    async with await Queue.open(store_url, secrets_key=key_file(tmp_path / "key")) as queue:
        assert (await post(queue)).outcome == "fired"


@pytest.mark.parametrize("content", ["", "short", "%" * 44])
async def test_a_key_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(InputError, match="holds no key"):
        await Queue.open(f"sqlite:///{tmp_path}/q.db", secrets_key=key_file(tmp_path / "key", content))


async def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = key_file(tmp_path / "key", rights=0o644)
    with pytest.raises(InputError, match="can be used by others"):
        await Queue.open(f"sqlite:///{tmp_path}/q.db", secrets_key=key)
    with pytest.raises(InputError, match="cannot be read"):
        await Queue.open(f"sqlite:///{tmp_path}/q.db", secrets_key=str(tmp_path / "none"))
