"""The engine passed to every verb: settings, lanes, ids and randomness."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shiftwork.artifacts.blob_store import BlobStore
from shiftwork.engine.lanes import LaneRegistry
from shiftwork.engine.secrets import SecretBox
from shiftwork.limits.quota_cache import QuotaCache
from shiftwork.model.ids import IdMaker
from shiftwork.settings.cache import SettingsCache
from shiftwork.store.store import Row, Store

if TYPE_CHECKING:
    from shiftwork.snapshots.snapshot_folder import SnapshotFolder

MISSES = 2
"""Consecutive misses after which a workspace is assumed to have special work."""
REST_SEC = 1.0
"""How long that is assumed."""


class FastPath:
    """Records how the fast path of one verb fared, by workspace."""

    def __init__(self) -> None:
        self._misses: dict[str, int] = {}
        self._rests_until: dict[str, float] = {}

    def is_likely(self, workspace: str) -> bool:
        return not self._rests_until or time.monotonic() >= self._rests_until.get(workspace, 0.0)

    def record(self, workspace: str, *, is_plain: bool) -> None:
        if is_plain:
            self._misses.pop(workspace, None)
            self._rests_until.pop(workspace, None)
            return
        misses = self._misses[workspace] = self._misses.get(workspace, 0) + 1
        if misses >= MISSES:
            self._rests_until[workspace] = time.monotonic() + REST_SEC


log = logging.getLogger("shiftwork.engine")

NOWHERE: dict[str, int] = {}
"""Returned by a maintenance job that no workspace has configured: it is polled less often than its period says."""


class IdempotentRequest:
    """A request whose effect must happen once, however often it is sent."""

    def __init__(self, key: str, fingerprint: str) -> None:
        self.key = key
        self.fingerprint = fingerprint
        self._steps = 0

    @property
    def steps(self) -> int:
        """The number of its transactions already committed."""
        return self._steps

    def add(self, part: str) -> None:
        """Add to the request's identity: the hash of streamed content is known only at its end."""
        self.fingerprint = hashlib.sha256(f"{self.fingerprint} {part}".encode()).hexdigest()

    def begin_again(self) -> None:
        """Start over at the first transaction: the previous ones are in another database now."""
        self._steps = 0

    def next_step(self) -> int:
        """The number of the next transaction: each is recorded on its own, so a repeat continues where the first call
        stopped.
        """
        self._steps += 1
        return self._steps


StillAllowed = Callable[[], Awaitable[None]]
"""Returns if the caller still has access; otherwise raises the refusal."""


class Caller(NamedTuple):
    """The caller, recorded in every event."""

    actor: str = "system"
    request_id: str | None = None
    workspace: str | None = None
    """Tasks of other workspaces do not exist for this caller; None sees all, as the maintenance jobs do."""

    holder: str | None = None
    """The worker's access token: it may write only under claims made with the same token. None may write under any."""
    idempotency: IdempotentRequest | None = None
    still_allowed: StillAllowed | None = None
    """Called by waiting operations; None if access cannot be revoked during the call."""

    def may_see(self, workspace: str) -> bool:
        return self.workspace is None or self.workspace == workspace

    def may_write(self, owner: str | None) -> bool:
        """Whether this caller may write under a claim that was made with this token."""
        return self.holder is None or self.holder == owner

    def for_agent(self, agent_id: str | None) -> str:
        """The actor of a verb that only the holder may use: the agent, unless the caller names itself."""
        return f"agent:{agent_id}" if self.actor == "system" and agent_id else self.actor


MAX_AGENTS = 10_000
"""The most agents cached."""


class KnownAgent(NamedTuple):
    """The properties that decide which work an agent gets, as its row had them at its last claim."""

    announced: bool
    types: str | None
    capabilities: str
    models: str


class Engine:
    """Shared by all verbs of one open queue. Holds nothing that the store does not know."""

    def __init__(
        self,
        store: Store,
        profile: str,
        seed: int | None = None,
        blob_store: BlobStore | None = None,
        snapshots: SnapshotFolder | None = None,
        secrets: SecretBox | None = None,
        participants: Sequence[type[Any]] = (),
    ) -> None:
        self.store = store
        self.participants = participants
        """Features that take part in each unit of work (each a `work.Participant`), in the order of their locks."""
        self.snapshots = snapshots
        """The folder of snapshots; None if there is none."""
        self.secrets = secrets or SecretBox()
        """Encrypts and decrypts the secrets of sinks and hooks."""
        self.private_sinks = False
        """Whether notifications may be sent to addresses that are not public, if a sink asks for it."""
        self.blob_store = blob_store
        """The store of artifact bytes; None if none was configured."""
        self.mark: str | None = None
        """The mark by which the blob store tells our places from those of other queues; read once."""
        self.others: Sequence[Engine] = ()
        """Engines of the other databases of a map, whose workspaces may have come from here."""
        self.swept_to: str | None = None
        """The last place scanned for bytes that no row references."""
        self.measured_to: str | None = None
        """The last workspace whose metrics were kept."""
        self.watched_to: str | None = None
        """The last workspace checked for alerts."""
        self.log_seen = (0, 0.0)
        """The newest event when the search index was last filled, and when that was."""
        self.archived_to: str | None = None
        """The last workspace whose old tasks were archived."""
        self.presence_seen_at = 0.0
        """When the processes of this machine were last looked up."""
        self.settings_cache = SettingsCache(profile)
        self.lanes = LaneRegistry()
        self.known_agents: dict[tuple[str, str], KnownAgent] = {}
        """By workspace and id. A claim that relies on an entry makes the store compare it with the row."""
        self.plain_claims, self.plain_starts = FastPath(), FastPath()
        self.plain_beats, self.plain_ends = FastPath(), FastPath()
        self.quotas = QuotaCache()
        self.ids = IdMaker()
        self.random = random.Random(seed)
        self.counters: Counter[str] = Counter()
        self.refusals: dict[str, float] = {}
        """When a refused delivery was last reported, for each hook."""

    def remember_agent(self, workspace: str, agent: Row) -> None:
        """Cache the agent for its next claim."""
        if len(self.known_agents) >= MAX_AGENTS:
            self.known_agents.clear()
        known = KnownAgent(agent["announced"], agent["types"], agent["capabilities"], agent["models"])
        self.known_agents[workspace, agent["id"]] = known

    def conflict(self, code: str, **sides: Any) -> None:
        """Count a refused write and log both sides of it."""
        self.counters[code] += 1
        log.info(
            "%s %s",
            code,
            " ".join(f"{k}={v}" for k, v in sides.items()),
            extra={"code": code, **{f"side_{k}": v for k, v in sides.items()}},
        )
