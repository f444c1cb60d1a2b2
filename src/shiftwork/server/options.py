"""The options of `serve`, and checks of their combinations."""

from __future__ import annotations

import msgspec

from shiftwork.access.authenticator import is_loopback
from shiftwork.model.errors import InputError
from shiftwork.notifications import public_url
from shiftwork.server.below_minimum import words
from shiftwork.server.folder_watch import check_folder
from shiftwork.wire.listen_socket import check_guarded

STOP_GRACE_SEC = 20


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a server."""

    store: str
    host: str = "127.0.0.1"
    port: int = 8080
    profile: str = "standard"
    view: str | None = None
    """The view of answers to callers that name none; None for that of the profile's document."""
    tokens: bool = False
    public_url: str | None = None
    """The dashboard's public address."""
    test_clock: bool = False
    maintenance: bool = True
    on_below_minimum: str | None = None
    """The command to run while a workspace has fewer agents than `min_agents`."""
    artifacts: str | None = None
    """Where artifacts are stored; None for the folder next to a SQLite file."""
    snapshots: str | None = None
    """The folder for snapshots."""
    watch: str | None = None
    """The folder watched for file triggers."""
    private_sinks: bool = False
    """Whether sinks may have addresses that are not public."""
    secrets_key: str | None = None
    """The file with the keys that encrypt the secrets of sinks and hooks."""
    claim_folders: tuple[str, ...] = ()
    """The `.loki` folders that workspace admins may name in the setting `claim_folder`."""


def check_options(options: Options) -> None:
    """Refuse invalid options: other machines need tokens, and cannot move the clock."""
    if options.on_below_minimum is not None:
        words(options.on_below_minimum)
    if options.watch is not None:
        check_folder(options.watch)
    if options.public_url is not None:
        public_url.checked(options.public_url)
    check_guarded(options.host, "--host", tokens=options.tokens)
    if options.test_clock and not is_loopback(options.host):
        raise InputError("a test clock is only allowed on loopback", where="--test-clock")
