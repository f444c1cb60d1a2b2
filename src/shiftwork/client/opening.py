"""Opens the queue at any address: a database, or a server."""

from __future__ import annotations

from shiftwork import config
from shiftwork.client.client import PATIENCE_SEC, Client
from shiftwork.operation.interface import AnyQueue
from shiftwork.operation.opening import Opening


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def open_queue(
    url: str | None = None,
    *,
    workspace: str | None = None,
    actor: str = "system",
    token: str | None = None,
    patience_sec: float = PATIENCE_SEC,
) -> Opening[AnyQueue]:
    """Open the queue at `sqlite:///path` or `postgresql://…`, or that of the server at `http://host:port`.

    Without an address it is the one that the command line would use: that of SHIFTWORK_STORE, of the nearest
    `shiftwork.toml`, or `sqlite:///shiftwork.db`. Without a workspace it is `default`, or the token's own.
    """

    async def opened() -> AnyQueue:
        meant, space, secret = _meant(url, workspace, token)
        if is_server(meant):
            return await Client.open(meant, token=secret, workspace=space, actor=actor, patience_sec=patience_sec)
        from shiftwork.queue import Queue  # noqa: PLC0415  # a client needs no engine

        return await Queue.open(meant, workspace=space or "default", actor=actor)

    return Opening(opened)


def _meant(url: str | None, workspace: str | None, token: str | None) -> tuple[str, str | None, str | None]:
    """An address that is given stands alone; what the environment and a file say belongs to the one they name."""
    if url is not None:
        return url, workspace, token
    found = config.address(
        workspace=config.Chosen(workspace) if workspace else None, token=config.Chosen(token) if token else None
    )
    return found.store.value or config.DEFAULT_STORE, found.workspace.value, found.token.value
