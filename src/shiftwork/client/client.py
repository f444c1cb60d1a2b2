"""A client for a queue behind a server. It has the methods of `Queue`, so only the address changes."""

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
    """A queue behind a server. Each call returns after the server has committed it, and takes effect once."""

    def __init__(self, transport: Transport, workspace: str, caller: CallerIdentity) -> None:
        super().__init__(HttpExecutor(transport, workspace, caller))
        self._transport = transport
        self._caller = caller

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

        Await it, or use it with `async with`. The default token is SHIFTWORK_TOKEN, or the content of the file
        SHIFTWORK_TOKEN_FILE. A call times out after `timeout_sec`. While the server is unreachable, a call is retried
        for `patience_sec`.
        """

        async def opened() -> Self:
            from shiftwork.access.api import Account  # noqa: PLC0415  # a namespace is imported when it is first used

            if workspace is not None:
                check.name(workspace, "workspace")
            secret = token or (found.value if (found := config.token_of_environment()) else None)
            if secret is not None:
                header(secret, "token")
            caller = CallerIdentity(actor_header(actor), workspace=workspace)
            transport = Transport(url, secret, timeout_sec=timeout_sec, patience_sec=patience_sec)
            try:
                asked = time.time()
                me = await HttpExecutor(transport, "", caller).execute(operation_of(Account.me), {})
                transport.ahead_sec = me.now - (asked + time.time()) / 2
            except BaseException:
                await transport.close()
                raise
            return cls(transport, me.workspace, caller)

        return Opening(opened)

    def __repr__(self) -> str:
        return f"Client({self.url!r}, workspace={self.workspace!r})"

    @property
    def url(self) -> str:
        return self._transport.url

    def now(self) -> float:
        return time.time() + self._transport.ahead_sec

    def in_workspace(self, name: str) -> Self:
        caller = msgspec.structs.replace(self._caller, workspace=check.name(name, "workspace"))
        return type(self)(self._transport, name, caller)

    def as_caller(self, actor: str, request_id: str | None = None) -> Self:
        if request_id is not None:
            header(request_id, "request_id")
        caller = msgspec.structs.replace(self._caller, actor=actor_header(actor), request_id=request_id)
        return type(self)(self._transport, self.workspace, caller)

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
    """Open the queue at `sqlite:///path` or `postgresql://…`, or the server at `http://host:port`.

    Without an address it is the one that the command line would use: that of SHIFTWORK_STORE, of the nearest
    `shiftwork.toml`, or `sqlite:///shiftwork.db`. Without a workspace it is `default`, or the token's own.
    """

    async def opened() -> AnyQueue:
        resolved, space, secret = _resolved(url, workspace, token)
        if is_server(resolved):
            return await Client.open(resolved, token=secret, workspace=space, actor=actor, patience_sec=patience_sec)
        from shiftwork.queue import Queue  # noqa: PLC0415  # a client needs no engine

        return await Queue.open(resolved, workspace=space or "default", actor=actor)

    return Opening(opened)


def _resolved(url: str | None, workspace: str | None, token: str | None) -> tuple[str, str | None, str | None]:
    """Resolve the address. An explicit one ignores environment and file, whose token may be for another queue."""
    if url is not None:
        return url, workspace, token
    found = config.address(
        workspace=config.Chosen(workspace) if workspace else None, token=config.Chosen(token) if token else None
    )
    return found.store.value or config.DEFAULT_STORE, found.workspace.value, found.token.value
