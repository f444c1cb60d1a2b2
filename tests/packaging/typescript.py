"""The TypeScript package: built once a run, its dependencies fetched once, and programs run with Node."""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.programs import FETCHED, fetching
from tools import typescript

OLDEST_NODE = 20


def check_node() -> None:
    """A missing or old Node is an error, never a skipped test."""
    node, npm = shutil.which("node"), shutil.which("npm")
    assert None not in {node, npm}, "node or npm is not on PATH. " + typescript.NEEDED
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    assert int(version.lstrip("v").split(".")[0]) >= OLDEST_NODE, f"node is {version}. " + typescript.NEEDED


def _modules() -> Path:
    """Fetch the build's dependencies, once for each content of package.json."""
    wanted = typescript.PACKAGE / "package.json"
    key = hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    folder = FETCHED / "npm" / key
    with fetching(folder) as fresh:
        if fresh is not None:
            shutil.copy2(wanted, fresh)
            typescript.install(fresh)
    return folder / "node_modules"


def built_package(folder: Path) -> Path:
    """A copy of the package with its dist/, made by the first process of the run that asks for it."""
    check_node()
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / "clients" / "typescript"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (package / "built").exists():
            left_out = shutil.ignore_patterns("node_modules", "dist", "generated", "*.tgz")
            shutil.rmtree(package, ignore_errors=True)
            shutil.copytree(typescript.PACKAGE, package, ignore=left_out)
            shutil.copy2(typescript.PACKAGE.parents[1] / "LICENSE", folder)  # as in the repository
            (package / "node_modules").symlink_to(_modules())
            typescript.build(package)
            (package / "built").touch()
    return package


@dataclass(frozen=True)
class Node:
    """Programs that import the package by its name, in a folder of their own."""

    folder: Path
    url: str

    @classmethod
    def using(cls, package: Path, folder: Path, url: str) -> "Node":
        (folder / "node_modules").mkdir()
        (folder / "node_modules" / "shiftwork").symlink_to(package)
        return cls(folder, url)

    def run(self, program: str) -> list[Any]:
        """Run a program and return the JSON documents that it printed, one per line."""
        done = subprocess.run(self._line(program), cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def started(self, program: str) -> Iterator[subprocess.Popen[str]]:
        """Start a program and end it with the block."""
        pipe = subprocess.PIPE
        with subprocess.Popen(self._line(program), cwd=self.folder, stdout=pipe, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def _line(self, program: str) -> list[str]:
        file = self.folder / f"program-{len(list(self.folder.glob('*.mjs')))}.mjs"
        file.write_text(HEAD.replace("URL", self.url) + program, encoding="utf-8")
        return ["node", str(file)]


HEAD = """
import * as shiftwork from "shiftwork";
const { Client, Fail, Release, Worker } = shiftwork;
const client = new Client({ url: "URL", actor: "agent:ts", patienceMs: 2000 });
const print = (value) => console.log(JSON.stringify(value));
"""


def alternatives(types: str) -> list[str]:
    """Return the generated type of each JSON body, one line each."""
    return re.findall(r'"application/json": (.+);', types)
