"""`a2a`: the queue as an agent of the Agent2Agent protocol."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import click

from shiftwork import logs
from shiftwork.cli import params
from shiftwork.cli.mcp import listen_place
from shiftwork.cli.shell import Command, Shell, current, filled
from shiftwork.model.errors import InputError


@click.command(cls=Command)
@click.option(
    "--card",
    "card_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The agent card, a JSON file. The id of a skill is the type of the tasks that its messages become.",
)
@click.option(
    "--http",
    "place",
    callback=listen_place,
    default="127.0.0.1:8091",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve.",
)
@click.option("--tokens", is_flag=True, help="Require a token (`shiftwork tokens create`).")
@click.option(
    "--public-url",
    metavar="URL",
    callback=filled,
    help="The address at which clients reach this server through a proxy; for the card.",
)
@click.option(
    "--max-wait",
    "max_wait_sec",
    type=params.duration,
    default="10m",
    show_default=True,
    help="The longest time that a call waits for the work to end.",
)
@click.option("--private-push", is_flag=True, help="Allow push notifications to addresses that are not public.")
def a2a(*, card_file: Path, place: tuple[str, int], **given: Any) -> None:
    """Serve clients that speak A2A, over JSON-RPC and REST, until stopped. Agents claim the tasks as usual."""
    shell = current()
    try:
        from shiftwork.a2a import a2a_server, card  # noqa: PLC0415  # no SDK for `--help`
    except ImportError as error:
        raise InputError(
            f"the A2A server needs {error.name}, which is not installed", hint="pip install 'shiftwork[a2a]'"
        ) from None
    logs.set_up(json=False)
    for noisy in ("a2a", "uvicorn", "sse_starlette", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    options = a2a_server.Options(host=place[0], port=place[1], actor=shell.actor or None, **given)
    a2a_server.check_options(options)
    written = card.load(card_file)

    async def run() -> None:
        async with await shell.open(create=True) as queue:
            await a2a_server.serve(queue, written, options, lambda url: _announce(shell, url))

    asyncio.run(run())


def _announce(shell: Shell, url: str) -> None:
    """Print one line with the address, which a starting program may wait for."""
    line = json.dumps({"card": url}) if shell.json else f"The agent card is at {url}. Ctrl-C stops it."
    click.echo(line)
    sys.stdout.flush()
