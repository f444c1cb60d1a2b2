"""`mcp`: the queue for agents that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from shiftwork import logs
from shiftwork.cli import params
from shiftwork.cli.shell import Command, Shell, current, filled, refuse
from shiftwork.mcp.roles import ROLES
from shiftwork.model.errors import InputError

if TYPE_CHECKING:
    from shiftwork.client import AnyQueue


def listen_place(_context: click.Context, _option: click.Parameter, given: str | None) -> tuple[str, int] | None:
    """HOST:PORT, or a port of this machine."""
    if given is None:
        return None
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"{given!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command(cls=Command)
@click.option(
    "--http",
    "place",
    callback=listen_place,
    metavar="HOST:PORT",
    help="Serve many clients over streamable HTTP at /mcp, instead of one over standard input and output.",
)
@click.option("--tokens", is_flag=True, help="With --http: require a token (`shiftwork tokens create`).")
@click.option(
    "--public-url",
    metavar="URL",
    callback=filled,
    help="With --tokens: the address at which clients reach this server through a proxy, without /mcp.",
)
@click.option(
    "--authorization-server",
    "authorization_servers",
    multiple=True,
    metavar="URL",
    help="With --tokens: an OAuth server that issues this server's tokens, for its metadata. Repeatable.",
)
@click.option("--role", type=click.Choice(ROLES), default="all", show_default=True, help="Which tools to offer.")
@click.option(
    "--agent",
    envvar="SHIFTWORK_AGENT",
    show_envvar=True,
    metavar="NAME",
    callback=filled,
    help="The agent's name [default: mcp and the process id; over HTTP the token's name, or ?agent= in the URL].",
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Claim only tasks of this type. Repeatable.")
@click.option("--capability", "capabilities", multiple=True, help="A capability of the agent. Repeatable.")
@click.option("--model", "models", multiple=True, help="A model the agent has. Repeatable.")
@click.option(
    "--keep",
    "keep_sec",
    type=params.duration,
    default="15m",
    show_default=True,
    help="How long a claim is kept alive without a call that names it.",
)
def mcp(
    *,
    place: tuple[str, int] | None,
    tokens: bool,
    public_url: str | None,
    authorization_servers: tuple[str, ...],
    agent: str | None,
    **offers: Any,
) -> None:
    """Serve agents that speak MCP, on standard input and output or over HTTP, until stopped."""
    shell = current()
    if tokens and place is None:
        refuse("--tokens is for --http; over standard input and output there is only one caller")
    if (public_url or authorization_servers) and not tokens:
        refuse("--public-url and --authorization-server describe a server that needs --tokens")
    try:
        from shiftwork.mcp import http_transport, sdk_server  # noqa: PLC0415  # no SDK for `--help`
        from shiftwork.mcp.mcp_server import Options  # noqa: PLC0415  # nor here
    except ImportError as error:
        raise InputError(
            f"the MCP server needs {error.name}, which is not installed", hint="pip install 'shiftwork[mcp]'"
        ) from None
    _log_to_standard_error()
    options = Options(agent_id=agent or f"mcp-{os.getpid()}", actor=shell.actor or None, **offers)
    if place is None:
        # A read of standard input cannot be interrupted, so Ctrl-C ends the process at once: answers sent are valid.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        asyncio.run(_run(shell, functools.partial(sdk_server.serve_stdio, options=options)))
        return
    listening = http_transport.ListenAddress(
        *place, tokens=tokens, public_url=public_url, authorization_servers=authorization_servers
    )
    http_transport.check_address(listening)
    serve = functools.partial(
        http_transport.serve, options=options, address=listening, announce=functools.partial(_announce, shell)
    )
    asyncio.run(_run(shell, serve))


async def _run(shell: Shell, serve: Callable[[AnyQueue], Coroutine[Any, Any, None]]) -> None:
    async with await shell.open(create=True) as queue:
        await serve(queue)


def _log_to_standard_error() -> None:
    """Log to standard error, since standard output is the protocol's, and keep session ids out of the log."""
    logs.set_up(json=False)
    for noisy in ("mcp", "uvicorn", "sse_starlette"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _announce(shell: Shell, url: str) -> None:
    """Print one line with the address, which a starting program may wait for."""
    line = json.dumps({"url": url}) if shell.json else f"MCP clients are served on {url}. Ctrl-C stops it."
    click.echo(line)
    sys.stdout.flush()
