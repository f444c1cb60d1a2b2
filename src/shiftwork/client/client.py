"""The queue of a server as a program holds it: the verbs of `Queue`, so that only the address changes."""

from __future__ import annotations

import time
from typing import Self

import msgspec

from shiftwork import config
from shiftwork.client.executor import CallerIdentity, HttpExecutor, actor_header, header
from shiftwork.client.transport import Transport
from shiftwork.model import check
from shiftwork.operation.current import Opening
from shiftwork.operation.declare import operation_of
from shiftwork.operation.interface import AnyQueue

TIMEOUT_SEC = 30.0
PATIENCE_SEC = 10.0


class Client(AnyQueue):
    """A queue behind a server. Every method is answered after its commit there, and has its effect once."""

    def __init__(self, transport: Transport, workspace: str, speaker: CallerIdentity) -> None:
        super().__init__(HttpExecutor(transport, workspace, speaker))
        self._transport = transport
        self._speaker = speaker

    @classmethod
    def open(
        cls,
        url: str,
        *,
        token: str | None = None,
        workspace: str | None = None,
        actor: str = "system",
        timeout_sec: float = TIMEOUT_SEC,
        patience_sec: float = PATIENCE_SEC,
    ) -> Opening[Self]:
        """Connect to the server at `http://host:port`.

        Await it, or use it with `async with`. Without a token it is that of SHIFTWORK_TOKEN, or that in the file
        SHIFTWORK_TOKEN_FILE. An answer may take `timeout_sec`. While the server cannot be reached, a call is sent again
        for `patience_sec`.
        """

        async def opened() -> Self:
            from shiftwork.access.api import Account  # noqa: PLC0415  # a namespace is imported when it is first used

            if workspace is not None:
                check.name(workspace, "workspace")
            secret = token or (found.value if (found := config.token_of_environment()) else None)
            if secret is not None:
                header(secret, "token")
            speaker = CallerIdentity(actor_header(actor), workspace=workspace)
            transport = Transport(url, secret, timeout_sec=timeout_sec, patience_sec=patience_sec)
            try:
                asked = time.time()
                me = await HttpExecutor(transport, "", speaker).execute(operation_of(Account.me), {})
                transport.ahead_sec = me.now - (asked + time.time()) / 2
            except BaseException:
                await transport.close()
                raise
            return cls(transport, me.workspace, speaker)

        return Opening(opened)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, workspace={self.workspace!r})"

    @property
    def url(self) -> str:
        return self._transport.url

    def now(self) -> float:
        return time.time() + self._transport.ahead_sec

    def in_workspace(self, name: str) -> Self:
        speaker = msgspec.structs.replace(self._speaker, workspace=check.name(name, "workspace"))
        return type(self)(self._transport, name, speaker)

    def as_caller(self, actor: str, request_id: str | None = None) -> Self:
        if request_id is not None:
            header(request_id, "request_id")
        speaker = msgspec.structs.replace(self._speaker, actor=actor_header(actor), request_id=request_id)
        return type(self)(self._transport, self.workspace, speaker)

    async def close(self) -> None:
        await self._transport.close()


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
