"""Opens the queue at any address: a database, or a server."""

from __future__ import annotations

from shiftwork.client.client import PATIENCE_SEC, Client
from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.opening import Opening


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def open_queue(
    url: str = "sqlite:///shiftwork.db",
    *,
    workspace: str | None = None,
    actor: str = "system",
    token: str | None = None,
    patience_sec: float = PATIENCE_SEC,
) -> Opening[AnyQueue]:
    """Open the queue at `sqlite:///path` or `postgresql://…`, or that of the server at `http://host:port`.

    Without a workspace it is `default`, or the token's own.
    """

    async def opened() -> AnyQueue:
        if is_server(url):
            return await Client.open(url, token=token, workspace=workspace, actor=actor, patience_sec=patience_sec)
        from shiftwork.queue import Queue  # noqa: PLC0415  # a client needs no engine

        return await Queue.open(url, workspace=workspace or "default", actor=actor)

    return Opening(opened)
