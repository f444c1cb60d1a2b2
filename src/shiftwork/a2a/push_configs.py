"""A2A push notification configs: where to notify a client of a task, stored in the database."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shiftwork.engine.engine import Engine
from shiftwork.model import check, ids
from shiftwork.model.errors import InputError
from shiftwork.model.task import Task
from shiftwork.notifications import policy
from shiftwork.notifications.model import SinkTarget
from shiftwork.queue import Queue
from shiftwork.store import crash_points
from shiftwork.store.store import Row, Tx

MAX_PER_TASK = 20
MAX_SECRET = 2000
MAX_URL = 2000


class PushConfig(NamedTuple):
    """One URL that is notified of one task."""

    id: str
    url: str
    token: str = ""
    """Sent with every notification, so that the receiver can authenticate it."""
    scheme: str = ""
    credentials: str = ""

    def headers(self) -> dict[str, str]:
        found = {"x-a2a-notification-token": self.token} if self.token else {}
        signed = {"authorization": f"{self.scheme} {self.credentials}"} if self.scheme and self.credentials else {}
        return found | signed


def check_config(config: PushConfig, *, allow_private: bool) -> None:
    """Refuse a URL that cannot be sent to or that leads into our own network."""
    place = SinkTarget("slack", config.url[: MAX_URL + 1], None, None, None, allow_private)  # an unsigned webhook
    if len(config.url) > MAX_URL:
        raise InputError(f"an address has at most {MAX_URL} characters", where="url")
    policy.check_place(place)
    check.name(config.id, "id")
    for where, text in (("token", config.token), ("scheme", config.scheme), ("credentials", config.credentials)):
        if len(text) > MAX_SECRET or not text.isascii() or not text.isprintable():
            raise InputError(f"expected at most {MAX_SECRET} printable ASCII characters", where=where)


async def save(queue: Queue, task: Task, config: PushConfig) -> None:
    """Send the task's current state and then every change; replaces a config with the same id."""
    engine, known = queue.engine, _key(queue, task)
    kept = msgspec.json.encode([config.token, config.scheme, config.credentials]).decode()

    async def write(tx: Tx) -> None:
        row = await tx.one("count_push_configs", **known, id=config.id)
        if row is not None and row["number"] >= MAX_PER_TASK:
            raise InputError(f"a task has at most {MAX_PER_TASK} push notification configs", where="id")
        await tx.run(
            "save_push_config",
            **known,
            id=config.id,
            url=config.url,
            secrets=engine.secrets.seal(kept),
            now=engine.store.now(),
            version=0,
        )

    await crash_points.named("a2a push", engine.store.run(write))


async def list_of(queue: Queue, task: Task) -> list[PushConfig]:
    known = _key(queue, task)

    async def read(tx: Tx) -> list[PushConfig]:
        return [opened(queue.engine, row) for row in await tx.all("list_push_configs", **known, count=MAX_PER_TASK)]

    return await queue.engine.store.read(read)


async def remove(queue: Queue, task: Task, config_id: str) -> bool:
    known = _key(queue, task)

    async def write(tx: Tx) -> bool:
        return await tx.one("delete_push_config", **known, id=config_id) is not None

    return await crash_points.named("a2a push", queue.engine.store.run(write))


def opened(engine: Engine, row: Row) -> PushConfig:
    token, scheme, credentials = msgspec.json.decode(engine.secrets.open(row["secrets"]) or '["", "", ""]')
    return PushConfig(row["id"], row["url"], token, scheme, credentials)


def _key(queue: Queue, task: Task) -> dict[str, Any]:
    return {"workspace": queue.workspace, "task_id": ids.parse(task.id)}
