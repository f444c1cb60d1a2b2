"""The engine passed to every verb: settings, lanes, ids and randomness."""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shiftwork.artifacts.blob_store import BlobStore
from shiftwork.engine.lanes import LaneRegistry
from shiftwork.engine.secrets import SecretBox
from shiftwork.engine.short_way import ShortWay
from shiftwork.limits.quota_cache import QuotaCache
from shiftwork.model.ids import IdMaker
from shiftwork.settings.cache import SettingsCache
from shiftwork.store.store import Row, Store

if TYPE_CHECKING:
    from shiftwork.snapshots.snapshot_folder import SnapshotFolder

log = logging.getLogger("shiftwork.engine")

NOWHERE: dict[str, int] = {}
"""What a maintenance job answers that no workspace has set up: it is looked at again later than its period says."""


class IdempotentRequest:
    """A request that must have its effect once, however often it is sent."""

    def __init__(self, key: str, fingerprint: str) -> None:
        self.key = key
        self.fingerprint = fingerprint
        self._steps = 0

    @property
    def steps(self) -> int:
        """How many of its transactions are done."""
        return self._steps

    def add(self, part: str) -> None:
        """What else makes it this request: of content that streams, its hash is known when it is here."""
        self.fingerprint = hashlib.sha256(f"{self.fingerprint} {part}".encode()).hexdigest()

    def begin_again(self) -> None:
        """It is run again from its first transaction: what it has done is in another database now."""
        self._steps = 0

    def next_step(self) -> int:
        """The number of its next transaction: each is kept by itself, and a repeat continues where the first ended."""
        self._steps += 1
        return self._steps


StillAllowed = Callable[[], Awaitable[None]]
"""Returns while the caller may still work, or raises what it is refused with."""


class Caller(NamedTuple):
    """Who asks: is in every event."""

    actor: str = "system"
    request_id: str | None = None
    workspace: str | None = None
    """Tasks of other workspaces do not exist for this caller; None sees all, as the maintenance jobs do."""

    holder: str | None = None
    """The token a worker came with: it may write only under claims made with it. None may write under any."""
    idempotency: IdempotentRequest | None = None
    still_allowed: StillAllowed | None = None
    """Asked by calls that wait; None where rights cannot be taken away meanwhile."""

    def sees(self, workspace: str) -> bool:
        return self.workspace is None or self.workspace == workspace

    def may_write(self, owner: str | None) -> bool:
        """Whether this caller may write under a claim that was made with this token."""
        return self.holder is None or self.holder == owner

    def for_agent(self, agent_id: str | None) -> str:
        """The actor of a verb that only the holder has: the agent, unless someone says that he speaks for it."""
        return f"agent:{agent_id}" if self.actor == "system" and agent_id else self.actor


MAX_AGENTS = 10_000
"""Agents remembered."""


class KnownAgent(NamedTuple):
    """What decides which work an agent gets, as its row said at its last claim."""

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
        """Where snapshots lie; None where there is no place for them."""
        self.secrets = secrets or SecretBox()
        """Encrypts and decrypts the secrets of sinks and hooks."""
        self.private_sinks = False
        """Whether notifications may be sent to addresses that are not public, where a sink asks for it."""
        self.blob_store = blob_store
        """Where the bytes of artifacts lie; None where no place was named."""
        self.mark: str | None = None
        """How the blob store knows our places from those of other queues, once it was asked for."""
        self.others: Sequence[Engine] = ()
        """Engines of the other databases of a map, whose workspaces may have come from here."""
        self.swept_to: str | None = None
        """The last place that was looked at for bytes which no row names."""
        self.measured_to: str | None = None
        """The last workspace whose metrics were kept."""
        self.watched_to: str | None = None
        """The last workspace that was looked at for alerts."""
        self.log_seen = (0, 0.0)
        """The newest event when the search index was last filled, and when that was."""
        self.archived_to: str | None = None
        """The last workspace of which old tasks were archived."""
        self.presence_seen_at = 0.0
        """When the processes of this machine were last looked up."""
        self.settings_cache = SettingsCache(profile)
        self.lanes = LaneRegistry()
        self.known_agents: dict[tuple[str, str], KnownAgent] = {}
        """By workspace and id. A claim that relies on it has the store compare it."""
        self.plain_claims, self.plain_starts, self.plain_ends = ShortWay(), ShortWay(), ShortWay()
        self.quotas = QuotaCache()
        self.ids = IdMaker()
        self.random = random.Random(seed)
        self.counters: Counter[str] = Counter()
        self.refusals: dict[str, float] = {}
        """When a refused delivery was last reported, for each hook."""

    def remember_agent(self, workspace: str, agent: Row) -> None:
        """For its next claim."""
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
