"""Limits concurrent streams per token and per workspace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from shiftwork.access.authenticator import ANONYMOUS, Identity
from shiftwork.model.errors import Overloaded, TooManyRequests

AGAIN_SEC = 5.0
_HALF, _QUARTER = 2, 4


class StreamLimit:
    """A limit on one kind of stream. A workspace may use half of it, a token a quarter, loopback without tokens all."""

    def __init__(self, what: str, most: int) -> None:
        self.most = most
        self._what = what
        self._taken = 0
        self._workspaces: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    @contextmanager
    def place(self, who: Identity = ANONYMOUS) -> Iterator[None]:
        """Use one place inside the block; raises if none is free."""
        self.check(who)
        self._count(who, 1)
        try:
            yield
        finally:
            self._count(who, -1)

    def check(self, who: Identity = ANONYMOUS) -> None:
        for owner, found, share in (
            ("token", self._tokens[who.token_id or ""], max(1, self.most // _QUARTER)),
            ("workspace", self._workspaces[who.workspace or ""], max(1, self.most // _HALF)),
        ):
            if found >= share:
                raise TooManyRequests(f"this {owner} has {share} {self._what} open, the maximum", retry_after=AGAIN_SEC)
        if self._taken >= self.most:
            raise Overloaded(f"{self.most} {self._what} are open at this server", retry_after=AGAIN_SEC)

    def _count(self, who: Identity, change: int) -> None:
        self._taken += change
        for counts, key in ((self._tokens, who.token_id), (self._workspaces, who.workspace)):
            if key is not None:
                counts[key] += change
                if not counts[key]:
                    del counts[key]
