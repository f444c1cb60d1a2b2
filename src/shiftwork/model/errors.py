"""Every error a caller can get: a stable code, what happened, where, and a hint.

The tree, by who can fix it:

ShiftworkError
  InputError      the request is invalid
  Unauthorized    the caller is not identified
  Forbidden       the caller is known but not allowed
  NotFound        it does not exist, or not for this caller
  ConflictError   the request is valid, but the current state forbids it
  TooManyRequests the caller has used up its share for now
  Overloaded      the server is at capacity
  StoreError      the database is unavailable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ShiftworkError(Exception):
    """Base of all errors. `code` never changes its meaning once released."""

    code: ClassVar[str] = "error"
    hint: str = ""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None, **facts: Any) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint if hint is not None else type(self).hint
        self.facts = facts

    def __str__(self) -> str:
        place = f" (at {self.where})" if self.where else ""
        hint = f" {self.hint}" if self.hint else ""
        return f"{self.code}: {self.what}{place}.{hint}"

    def as_dict(self) -> dict[str, Any]:
        """The error as a machine reads it."""
        return {
            "code": self.code,
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
            **self.facts,
        }


class InputError(ShiftworkError):
    code = "invalid_input"
    hint = "Correct the field named and send the request again; nothing was changed."


class InvalidConfig(InputError):
    code = "invalid_config"
    hint = "Correct shiftwork.toml, or name the queue with --store or SHIFTWORK_STORE."


class BadText(InputError):
    code = "bad_text"
    hint = "Remove NUL bytes and lone surrogates; text must be valid UTF-8."


class TooLarge(InputError):
    code = "too_large"
    hint = "Send less: put large content into an artifact and pass its reference."


class ConnectionUnusable(InputError):
    code = "connection_unusable"
    hint = "Pass a connection to the queue's own database that is in a transaction; nothing was submitted."


class UnknownSetting(InputError):
    code = "unknown_setting"
    hint = "`settings` lists every key with its meaning."


class CircularDependency(InputError):
    """The message is the documents' own: "Would create circular dependency"."""

    code = "circular_dependency"
    hint = "Remove one of the edges of the cycle named in `cycle`; nothing was added."


class UnknownDependency(InputError):
    code = "unknown_dependency"
    hint = "Submit the dependency first, in the same batch, or set missing_dependency to wait."


class UnknownReference(InputError):
    code = "unknown_reference"
    hint = "Put the artifact first, or name a task that is a dependency or has completed; nothing was changed."


class InvalidPayload(InputError):
    """A payload does not fit the schema that is registered for its type; `errors` lists what is wrong."""

    code = "invalid_payload"
    hint = "`shiftwork types show <type>` prints the schema; nothing was added."


class IdempotencyKeyRequired(InputError):
    code = "idempotency_key_required"
    hint = "Set an idempotency_key: this workspace requires one."


class ReportRequired(InputError):
    """The task continues until its report arrives or its time is up; its usage is booked."""

    code = "report_required"
    hint = "Send the result again with a decision_report that says what was decided and why; the usage is booked."


class RangeNotSatisfiable(InputError):
    code = "range_not_satisfiable"
    hint = "Ask for bytes within `size`."


class FenceRequired(InputError):
    code = "fence_required"
    hint = "Send the claim token `<task id>.<fence>` that the claim answered."


class Malformed(InputError):
    code = "malformed"
    hint = "Send a body that matches the API's schema; nothing was changed."


class UnsupportedEncoding(InputError):
    code = "unsupported_encoding"
    hint = "Send the body as it is, without a Content-Encoding; nothing was changed."


class IdempotencyKeyReused(InputError):
    code = "idempotency_key_reused"
    hint = "This Idempotency-Key was sent with another request; make a new key for each request."


class Unauthorized(ShiftworkError):
    code = "unauthorized"
    hint = "Send `Authorization: Bearer <token>`; `shiftwork tokens create` makes one."


class Forbidden(ShiftworkError):
    code = "forbidden"
    hint = "Use an access token with the scope named in `needs`."


class NotYourClaim(Forbidden):
    code = "not_your_claim"
    hint = "Use the access token that claimed the task, or one with the scope operate."


class HookRefused(Forbidden):
    """Forged, too old, or for an unknown hook: the answer does not say which."""

    code = "hook_refused"
    hint = "Sign it with the hook's secret and send it promptly; the event trigger.refused has the reason."


class NotFound(ShiftworkError):
    code = "not_found"
    hint = "Check the id and the workspace."


class AmbiguousId(NotFound):
    """Several task ids end with the text given; `candidates` lists the first of them."""

    code = "ambiguous_id"
    hint = "Give more of the id."


class ConflictError(ShiftworkError):
    code = "conflict"


class IdInUse(ConflictError):
    code = "id_in_use"
    hint = "Choose another id, or leave it out to have one made."


class DuplicateTask(ConflictError):
    code = "duplicate_task"
    hint = "The task named in `task_id` has this idempotency key; use it, or send another key."


class LeaseLost(ConflictError):
    """A write under an old fence. It changed no state."""

    code = "lease_lost"
    hint = "Stop working on this task: it was given to another attempt, cancelled or finished."


class WrongState(ConflictError):
    code = "wrong_state"
    hint = "This is not possible in the task's current status."


class TaskFailed(ConflictError):
    """The awaited task failed for good; the facts include the reason and the output of its last attempt."""

    code = "task_failed"
    hint = "`shiftwork show TASK` has every attempt; `shiftwork dlq retry TASK` runs it again."

    @property
    def task_id(self) -> str:
        return str(self.facts["task_id"])

    @property
    def reason(self) -> str | None:
        """The reason of the last failure: `timeout`, `agent_error`, ..."""
        return self._fact("reason")

    @property
    def error(self) -> str | None:
        """What the last attempt reported."""
        return self._fact("error")

    @property
    def attempts(self) -> int:
        """How many attempts failed."""
        return int(self.facts.get("attempts", 0))

    @property
    def data(self) -> Any:
        """The output that the last attempt submitted with its failure."""
        return self.facts.get("data")

    def _fact(self, name: str) -> str | None:
        value = self.facts.get(name)
        return None if value is None else str(value)


class TaskCancelled(ConflictError):
    """The awaited task was cancelled."""

    code = "task_cancelled"
    hint = "It has no result and will have none; submit it again, or rerun it."

    @property
    def task_id(self) -> str:
        return str(self.facts["task_id"])


class ResultTimeout(ConflictError):
    """The wait for the result timed out. The task continues."""

    code = "result_timeout"
    hint = "Wait longer; `shiftwork explain TASK` says why a task is not running."

    @property
    def task_id(self) -> str | None:
        found = self.facts.get("task_id")
        return None if found is None else str(found)

    @property
    def status(self) -> str | None:
        """The task's state when the wait timed out."""
        found = self.facts.get("status")
        return None if found is None else str(found)


class EffectInFlight(ConflictError):
    code = "effect_in_flight"
    hint = "Another claim is performing this effect; try again when that claim has ended, to get its result."


class EffectUnknown(ConflictError):
    code = "effect_unknown"
    hint = "Check whether it happened, then run `shiftwork effects resolve KEY --happened` or `--not-happened`."


class VersionConflict(ConflictError):
    code = "version_conflict"
    hint = "Read the task again, decide again, and send the version you read."


class RevisionChanged(ConflictError):
    """The task was changed after the revision that the decision is about."""

    code = "revision_changed"
    hint = "Read the task again and decide about its current revision; nothing was changed."


class SpawnLimit(ConflictError):
    code = "spawn_limit"
    hint = "Do the work in this task or let it end; an operator can raise spawn.max_depth or spawn.max_subtasks."


class QueueFull(ConflictError):
    """The queue is full, and no waiting task is less important than this one."""

    code = "queue_full"
    hint = "Submit it again after `retry_after` seconds, when work has been taken; nothing was added."


class QuotaExceeded(ConflictError):
    """The workspace has reached a quota set by the operator of the server."""

    code = "quota_exceeded"
    hint = "Purge tasks you no longer need, or ask the operator of the server for a larger quota; nothing was added."


class AgentUnregistered(ConflictError):
    code = "agent_unregistered"
    hint = "Register the agent before it claims."


class AgentUnavailable(ConflictError):
    code = "agent_unavailable"
    hint = "A draining, offline or failed agent takes no work; set it active first."


class OperationTimeout(ShiftworkError):
    code = "operation_timeout"
    hint = "Nothing was changed; try again when the store is less busy."


class LifespanFailed(ShiftworkError):
    """A resource that the worker opens at its start could not be opened."""

    code = "lifespan_failed"
    hint = "Fix the error and start the worker again; nothing was claimed."


class TooManyRequests(ShiftworkError):
    """The caller has used up its share of the server; other callers are still served."""

    code = "too_many_requests"
    hint = "Wait `retry_after` seconds, then try again; nothing was changed."


class Overloaded(ShiftworkError):
    code = "overloaded"
    hint = "Try again in a while, or at another server."


class StoreError(ShiftworkError):
    code = "store_error"


class StoreReadOnly(StoreError):
    code = "store_read_only"
    hint = "Make the database file and its folder writable, or connect to the primary."


class StoreFull(StoreError):
    code = "store_full"
    hint = "Free disk space; nothing that was acknowledged is lost."


class StoreLocked(StoreError):
    code = "store_locked"
    hint = "Another process has locked the database; find it, or raise lock_timeout_sec."


class LockTimeout(StoreLocked):
    """The lock of a `.loki` folder, which every claim of its tasks takes first, was not free in time."""

    code = "lock_timeout"
    hint = "A script is holding the folder's queue.lock; find it with `fuser`, or raise lock_timeout_sec."


class FolderUnavailable(StoreError):
    """The `.loki` folder of a workspace cannot be read or written, so it is unknown what its scripts have claimed."""

    code = "folder_unavailable"
    hint = "Fix the file or folder named, claim where the folder is, or end the two-way bridge: unset claim_folder."


class StoreNewer(StoreError):
    code = "store_newer"
    hint = "The database was migrated by a newer Shiftwork; upgrade this program."


class StoreNeedsMigration(StoreError):
    code = "store_needs_migration"
    hint = "Run `shiftwork migrate` as a role that can change the schema."


class StoreUnsuitable(StoreError):
    """Not a place where a queue is safe: a network file system, an old engine, a foreign file."""

    code = "store_unsuitable"
    hint = "Use a local disk and a current SQLite, or PostgreSQL 14 or newer."


class StoreDamaged(StoreError):
    """The file is not a database, or is damaged. Trying again does not help."""

    code = "store_damaged"
    hint = "Keep the file as it is and restore a snapshot or a copy into a new one: `shiftwork restore`."


class StoreUnavailable(StoreError):
    code = "store_unavailable"
    hint = "The database cannot be reached; acknowledged work is safe, try again."
    transaction_at: float | None = None
    """The time of the transaction if it is unknown whether it was committed; None if nothing was changed."""


class WorkspaceMoving(StoreError):
    """The workspace is being moved to another database; writes are refused until the move is done."""

    code = "workspace_moving"
    hint = "Try again in a few seconds; nothing was changed."


class WorkspaceMoved(StoreError):
    """The workspace is in another database now. A queue that was opened by its map finds it there."""

    code = "workspace_moved"
    hint = "Open the queue by its map, shiftwork+map:/path/map.toml; nothing was changed."


class RedisUnavailable(StoreError):
    """The Redis server of a bridge cannot be reached, or refuses a command."""

    code = "redis_unavailable"
    hint = "Check the address and that the server runs; a bridge without --once waits for it."


class ArtifactsUnavailable(StoreError):
    """No place for artifacts is configured; PostgreSQL needs one."""

    code = "artifacts_unavailable"
    hint = "Name a folder or s3://bucket/prefix: `serve --artifacts`, SHIFTWORK_ARTIFACTS or `Queue.open(artifacts=…)`."


class ArtifactDamaged(StoreError):
    """The stored bytes do not match their hash. They are never served."""

    code = "artifact_damaged"
    hint = "Restore the stored file from a backup, or put the same content again: it replaces the damaged copy."


class StoreNotEmpty(ConflictError):
    """A copy or a snapshot is only written into an empty queue: existing data is never merged or overwritten."""

    code = "store_not_empty"
    hint = "Name a new file or an empty database; nothing was changed."


class CopyDiffers(StoreError):
    """The copy, read back, differs from its source. It was discarded."""

    code = "copy_differs"
    hint = "The target was left empty; check its disk and memory, then copy again."


class SnapshotFailed(StoreError):
    """A snapshot could not be written. The queue itself continues."""

    code = "snapshot_failed"
    hint = "Make the folder writable and free some space; nothing was left half written."


class SnapshotsUnavailable(StoreError):
    """No folder for snapshots is configured; PostgreSQL needs one."""

    code = "snapshots_unavailable"
    hint = "Name a folder: `serve --snapshots`, SHIFTWORK_SNAPSHOTS or `Queue.open(snapshots=…)`."


class SnapshotDamaged(StoreError):
    """The file is damaged, or is not a snapshot. Nothing was restored."""

    code = "snapshot_damaged"
    hint = "Use another snapshot: `shiftwork snapshot list` lists them."


class StoreClosed(StoreError):
    code = "store_closed"
    hint = "The queue was closed; open it again."


def from_dict(fields: Mapping[str, Any]) -> ShiftworkError:
    """The error behind `as_dict`; a code of a newer version becomes a plain `ShiftworkError` with that code."""
    facts = dict(fields)
    code, what = str(facts.pop("code", "error")), str(facts.pop("what", ""))
    where, hint = facts.pop("where", None), facts.pop("hint", None)
    kind = next((error for error in all_errors() if error.code == code), None)
    error = (kind or ShiftworkError)(what, where=where, hint=hint, **facts)
    if kind is None:
        error.code = code  # type: ignore[misc]  # no class here has it
    return error


def all_errors() -> list[type[ShiftworkError]]:
    """Every error class, for the documentation and its test."""
    found: list[type[ShiftworkError]] = []
    todo: list[type[ShiftworkError]] = [ShiftworkError]
    while todo:
        kind = todo.pop(0)
        found.append(kind)
        todo.extend(kind.__subclasses__())
    return found
