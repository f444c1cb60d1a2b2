"""The dashboard's address, so that a notification can link to its task."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from shiftwork.engine.engine import Engine
from shiftwork.model.errors import InputError
from shiftwork.store import crash_points
from shiftwork.store.store import Tx

DEFAULT = "default"


def checked(url: str) -> str:
    """The address without a trailing slash."""
    try:
        found = urlsplit(url)
        usable = found.scheme in {"http", "https"} and found.hostname and not found.query and not found.fragment
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url or len(url) > 1000:
        raise InputError(
            f"{url!r} is not the address of a web page", where="--public-url", hint="Write https://queue.example."
        )
    return url.rstrip("/")


async def remember(engine: Engine, url: str) -> None:
    """Store the address, so that every process that sends notifications has it."""
    known = checked(url)
    await crash_points.named(
        "public address", engine.store.run(lambda tx: tx.run("set_public_url", url=known, now=tx.now))
    )


async def read(tx: Tx) -> str | None:
    row = await tx.one("public_url")
    return None if row is None else str(row["url"])


def of_task(url: str, workspace: str, task_id: str) -> str:
    """The address of a task's page."""
    where = "" if workspace == DEFAULT else f"?workspace={quote(workspace, safe='')}"
    return f"{url}/tasks/{quote(task_id, safe='')}{where}"
