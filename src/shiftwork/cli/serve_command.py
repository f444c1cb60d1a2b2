"""`serve`: the queue over HTTP."""

from __future__ import annotations

import functools
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shiftwork import logs, tracing
from shiftwork.cli.shell import Command, Shell, current, refuse
from shiftwork.config import without_password
from shiftwork.model.errors import InputError
from shiftwork.settings.resolve import PROFILES

if TYPE_CHECKING:
    from shiftwork.server.options import Options

VIEWS = ("native", "aegis", "loki", "factory", "redis", "coscientist")


@click.command(cls=Command)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. Beyond loopback, use --tokens."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--profile", type=click.Choice(PROFILES), default="standard", show_default=True, help="Profile of new workspaces."
)
@click.option(
    "--view",
    type=click.Choice(VIEWS),
    help="The default view of callers [default: the profile's].",
)
@click.option(
    "--public-url",
    envvar="SHIFTWORK_PUBLIC_URL",
    show_envvar=True,
    metavar="URL",
    help="The dashboard's public address, for links in notifications.",
)
@click.option("--tokens", is_flag=True, help="Require a token (`shiftwork tokens create`).")
@click.option(
    "--artifacts",
    envvar="SHIFTWORK_ARTIFACTS",
    show_envvar=True,
    metavar="URL",
    help="Where to store artifacts: a folder or s3://bucket/prefix [default: next to the SQLite file].",
)
@click.option(
    "--snapshots",
    envvar="SHIFTWORK_SNAPSHOTS",
    show_envvar=True,
    metavar="FOLDER",
    help="Take a snapshot of the queue into this folder every `maintenance.snapshot_sec`.",
)
@click.option("--watch", metavar="FOLDER", help="Watch this folder for file triggers.")
@click.option(
    "--private-sinks",
    is_flag=True,
    envvar="SHIFTWORK_PRIVATE_SINKS",
    show_envvar=True,
    help="Let admins add sinks with `allow_private`, at addresses that are not public.",
)
@click.option(
    "--secrets-key",
    envvar="SHIFTWORK_SECRETS_KEY_FILE",
    show_envvar=True,
    metavar="FILE",
    help="Encrypt the secrets of sinks and hooks with the keys in this file.",
)
@click.option(
    "--claim-folder",
    "claim_folders",
    multiple=True,
    metavar="FOLDER",
    help="Allow this folder in the setting claim_folder. Repeatable.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Serve with this many processes on one port: one per core.",
)
@click.option("--no-duties", is_flag=True, help="Leave maintenance to other servers and workers.")
@click.option("--test-clock", is_flag=True, help="Let callers move the clock (POST /api/testing/clock); loopback only.")
@click.option(
    "--on-below-minimum",
    metavar="COMMAND",
    help="Run this, at most once a minute, while a workspace has fewer live agents than `min_agents`.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Log to this file instead of standard error."
)
def serve(  # noqa: PLR0913  # an option each
    *,
    host: str,
    port: int,
    profile: str,
    view: str | None,
    public_url: str | None,
    tokens: bool,
    artifacts: str | None,
    snapshots: str | None,
    watch: str | None,
    private_sinks: bool,
    secrets_key: str | None,
    claim_folders: tuple[str, ...],
    processes: int,
    no_duties: bool,
    test_clock: bool,
    on_below_minimum: str | None,
    log_format: str,
    log_file: Path | None,
) -> None:
    """Serve the queue over HTTP until stopped. The API is described at /openapi.json."""
    shell = current()
    if "workspace" in shell.given and shell.workspace != "default":
        refuse("a server serves all workspaces: callers or their tokens name one")
    try:
        from shiftwork.server.options import Options  # noqa: PLC0415  # no server for `--help`
    except ImportError as error:
        raise InputError(
            f"the server needs {error.name}, which is not installed", hint="pip install 'shiftwork[server]'"
        ) from None
    _log_to(log_file, json=log_format == "json")
    options = Options(
        store=shell.store,
        host=host,
        port=port,
        profile=profile,
        view=view,
        tokens=tokens,
        public_url=public_url,
        test_clock=test_clock,
        maintenance=not no_duties,
        on_below_minimum=on_below_minimum,
        artifacts=artifacts,
        snapshots=snapshots,
        watch=watch,
        private_sinks=private_sinks,
        secrets_key=secrets_key,
        claim_folders=claim_folders,
    )
    _serve(options, processes, functools.partial(_announce, shell))


def _serve(options: Options, processes: int, announce: Callable[[str], None]) -> None:
    from shiftwork.server import serve as serving  # noqa: PLC0415  # nor here
    from shiftwork.server import server_processes as several  # noqa: PLC0415  # no server for `--help`
    from shiftwork.worker.load_worker import run_fast  # noqa: PLC0415  # nor here

    def run(options: Options, listening: socket.socket | None, announce: Callable[[str], None]) -> None:
        tracing.set_up("shiftwork-server")
        run_fast(serving.serve(options, announce, listening))

    if processes == 1:
        run(options, None, announce)
    else:
        several.ServerProcesses(options, processes, run).serve(announce)


def _log_to(file: Path | None, *, json: bool) -> None:
    try:
        logs.set_up(json=json, file=file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be written: {error.strerror}",
            where="--log-file",
            hint="Name a file in an existing, writable folder.",
        ) from None


def _announce(shell: Shell, url: str) -> None:
    """Print one line with the address, which a starting program may wait for."""
    line = (
        json.dumps({"url": url})
        if shell.json
        else f"Shiftwork serves {without_password(shell.store)} on {url}. Ctrl-C stops it."
    )
    click.echo(line)
    sys.stdout.flush()
