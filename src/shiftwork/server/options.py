"""How to serve: the options of `serve`, and what of them does not go together."""

from __future__ import annotations

import msgspec

from shiftwork.access.authenticator import is_loopback
from shiftwork.model.errors import InputError
from shiftwork.notifications import public_url
from shiftwork.server.folder_watch import check_folder
from shiftwork.server.replacing import words
from shiftwork.wire.listening import check_guarded

STOP_GRACE_SEC = 20


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    store: str
    host: str = "127.0.0.1"
    port: int = 8080
    profile: str = "standard"
    view: str | None = None
    """In whose names callers are answered who name no view; None for those of the profile's document."""
    tokens: bool = False
    public_url: str | None = None
    """Where people open the dashboard."""
    test_clock: bool = False
    maintenance: bool = True
    on_below_minimum: str | None = None
    """The command that is run while a workspace has fewer agents than it should."""
    artifacts: str | None = None
    """Where their bytes are stored; None for the folder next to a SQLite file."""
    snapshots: str | None = None
    """The folder into which they are taken."""
    watch: str | None = None
    """The folder whose files triggers may wait for."""
    private_sinks: bool = False
    """Whether sinks may be at addresses that are not public."""
    secrets_key: str | None = None
    """The file with the keys that secrets of sinks and hooks are encrypted with."""
    claim_folders: tuple[str, ...] = ()
    """The `.loki` folders that admins of workspaces may name in the setting `claim_folder`."""


def check_options(options: Options) -> None:
    """What would be open to the world must ask for tokens, and no one there may move the clock."""
    if options.on_below_minimum is not None:
        words(options.on_below_minimum)
    if options.watch is not None:
        check_folder(options.watch)
    if options.public_url is not None:
        public_url.checked(options.public_url)
    check_guarded(options.host, "--host", tokens=options.tokens)
    if options.test_clock and not is_loopback(options.host):
        raise InputError("a clock that callers can move is for this machine only", where="--test-clock")
