"""Translates errors of PostgreSQL, its driver and the network."""

from __future__ import annotations

import asyncpg

from shiftwork.model.errors import (
    BadText,
    InputError,
    OperationTimeout,
    ShiftworkError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreNeedsMigration,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsuitable,
    WorkspaceMoved,
    WorkspaceMoving,
)

AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,  # a migration has added a column to what a kept statement selects
)
LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that broke between two of our statements
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a demoted primary: look for the new one
)
PAUSED = (*LOST, asyncpg.ObjectInUseError)
"""Errors that pass by themselves: an unreachable database, a workspace being moved."""

_ERRORS: tuple[tuple[type[BaseException], type[ShiftworkError]], ...] = (
    (asyncpg.ReadOnlySQLTransactionError, StoreReadOnly),
    (asyncpg.InsufficientPrivilegeError, StoreReadOnly),
    (asyncpg.ObjectInUseError, WorkspaceMoving),
    (asyncpg.ObjectNotInPrerequisiteStateError, WorkspaceMoved),
    (asyncpg.DiskFullError, StoreFull),
    (asyncpg.LockNotAvailableError, StoreLocked),
    (asyncpg.QueryCanceledError, OperationTimeout),
    (asyncpg.UndefinedTableError, StoreNeedsMigration),
    (asyncpg.DuplicateTableError, StoreUnsuitable),  # a database with tables of another program
    (asyncpg.UntranslatableCharacterError, BadText),
    (asyncpg.CharacterNotInRepertoireError, BadText),
    (asyncpg.DataError, InputError),  # the driver's own: a value it cannot write is the caller's mistake
    (asyncpg.PostgresConnectionError, StoreUnavailable),
    (asyncpg.InterfaceError, StoreUnavailable),
    (asyncpg.InternalClientError, StoreUnavailable),
    (asyncpg.OperatorInterventionError, StoreUnavailable),
    (asyncpg.InsufficientResourcesError, StoreUnavailable),
    (OSError, StoreUnavailable),
)

_ADDRESSES: tuple[tuple[type[BaseException], str], ...] = (
    (asyncpg.InvalidCatalogNameError, "Check the name of the database in the address, or create it with `createdb`."),
    (asyncpg.InvalidAuthorizationSpecificationError, "Check the user and the password in the address."),
)
"""The server's errors for a wrong address: a retry does not help."""

_DAMAGED = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)
RESTORE = (
    "Stop the server, keep its files as they are and restore a backup or a snapshot into a new database: "
    "`shiftwork restore`. If only an index is named, `reindex` rebuilds it."
)


_SILENT: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "there was no answer in time"),
    (ConnectionError, "the connection was lost"),
    (asyncpg.PostgresConnectionError, "the connection was lost"),
    (asyncpg.InterfaceError, "the connection was lost"),
)
"""Errors that come without a message."""


def message_of(error: BaseException) -> str:
    """The message of the server, the driver or the network, or a description if it is empty."""
    if text := str(error).strip():
        return text
    return next((words for kind, words in _SILENT if isinstance(error, kind)), f"it raised {type(error).__name__}")


def translate(error: BaseException) -> ShiftworkError:
    """The queue's own error for an error of the server or the network."""
    if isinstance(error, _DAMAGED):
        return StoreDamaged(f"PostgreSQL: {message_of(error)}", hint=RESTORE)
    if isinstance(error.__cause__, UnicodeEncodeError):
        return BadText("text holds a lone surrogate")
    for wrong, hint in _ADDRESSES:
        if isinstance(error, wrong):
            return StoreUnavailable(f"PostgreSQL: {message_of(error)}", where="url", hint=hint)
    for theirs, ours in _ERRORS:
        if isinstance(error, theirs):
            return ours(f"PostgreSQL: {message_of(error)}")
    return StoreError(f"PostgreSQL: {message_of(error)}")
