"""`make prove` and `make soak`: run these commands of the package on a store that this process starts and restarts.

    python -m bench.endurance prove --store postgres --minutes 10
    python -m bench.endurance soak --store sqlite --minutes 60
    python -m bench.endurance tables SQLite=one.json PostgreSQL=other.json

For `prove`, PostgreSQL has a synchronous standby, which takes over once. Other options are passed to the command.
`--json FILE` writes the ledger, from which `tables` makes the tables of docs/explanation/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import socketserver
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from bench.stores import SERVER
from shiftwork.cli import main as command_line
from shiftwork.cli.prove_commands import WORDS
from shiftwork.prove.faults import FAULTS
from shiftwork.prove.ledger import WRONG
from tests.services import Postgres
from tests.services.standby import Standby

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    server.sendall(sys.argv[2].encode() + b"\\n")
    sys.exit(server.recv(4) != b"done")
"""
"""The program of a restart or failover command: it asks this process, which started the servers, to do it."""


@contextmanager
def sqlite() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="shiftwork-endurance-") as folder:
        yield ["--store", f"sqlite:///{folder}/queue.db"]


@contextmanager
def postgres() -> Iterator[list[str]]:
    with Postgres.start(durable=True, settings=SERVER) as server:
        yield ["--store", server.dsn()]


@contextmanager
def replicated() -> Iterator[list[str]]:
    """Start a primary and its standby. The options name both hosts, and the commands that restart and fail over."""
    with Postgres.start(durable=True, settings=SERVER) as primary, Standby.of(primary) as standby:
        serving: list[Postgres] = [primary]

        def restart() -> None:
            serving[0].kill9()
            serving[0].start_again()

        def fail_over() -> None:
            primary.kill9()
            standby.promote()
            serving[0] = standby

        hosts = f"{primary.host}:{primary.port},{standby.host}:{standby.port}"
        with commands({"restart": restart, "failover": fail_over}) as asked:
            options = [f"--{name}-command={command}" for name, command in asked.items()]
            yield ["--store", f"postgresql://postgres@{hosts}/postgres", *options]


@contextmanager
def commands(actions: Mapping[str, Callable[[], None]]) -> Iterator[dict[str, str]]:
    """Yield a shell command for each action of this process. A command ends when its action has finished."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            actions[self.rfile.readline().decode().strip()]()
            self.wfile.write(b"done")

    with tempfile.TemporaryDirectory(prefix="shiftwork-commands-") as folder:
        place = f"{folder}/socket"
        with socketserver.ThreadingUnixStreamServer(place, Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield {name: shlex.join([sys.executable, "-c", ASK, place, name]) for name in actions}
            finally:
                server.shutdown()


def tables(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the ledgers of runs of `prove`, by store, as Markdown tables."""
    found = list(runs.values())
    what = [
        [f"**{words}**" if name in WRONG else words, *(_cell(run[name]) for run in found)]
        for name, words in WORDS.items()
    ]
    faults = [[f"`{name}`", *(cell for run in found for cell in _fault_cells(run, name))] for name in FAULTS]
    columns = [
        f"{store}: {column}" for store in runs for column in ("times", "affected", "recovery, median and longest")
    ]
    return f"{_table(['', *runs], what)}\n\n{_table(['fault', *columns], faults)}"


def _fault_cells(run: Mapping[str, Any], name: str) -> list[str]:
    row = next((row for row in run["faults"] if row["fault"] == name), None)
    if row is None:
        return ["-", "-", "-"]
    times = [f"{row[key]:g} s" for key in ("recovery_median_sec", "recovery_max_sec") if row[key] is not None]
    times += [f"{row['not_recovered']} over 60 s"] if row["not_recovered"] else []
    return [_cell(row["times"]), _cell(row["affected"]), ", ".join(times)]


def _cell(value: float) -> str:
    return f"{value:,}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(what: str, *arguments: str) -> None:
    if what == "tables":
        named = (argument.partition("=") for argument in arguments)
        print(tables({store: json.loads(Path(file).read_text(encoding="utf-8")) for store, _, file in named}))
        return
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--json", type=Path)
    chosen, rest = parser.parse_known_args(arguments)
    place = sqlite if chosen.store == "sqlite" else replicated if what == "prove" else postgres
    with place() as options, redirected(chosen.json) as json_option:
        command_line([*options[:2], *json_option, what, *options[2:], *rest])


@contextmanager
def redirected(file: Path | None) -> Iterator[list[str]]:
    """Yield the options that make a command print JSON, and redirect its output into this file."""
    if file is None:
        yield []
        return
    with file.open("w", encoding="utf-8") as opened, redirect_stdout(opened):
        yield ["--json"]


if __name__ == "__main__":
    main(*sys.argv[1:])
