"""Git worktrees: a branch and a working tree per task, kept across its retries, and the resulting diff."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from shiftwork.model import reasons
from shiftwork.model.errors import InputError
from shiftwork.model.task import Task
from shiftwork.worker.context import Fail

GIT_SEC = 600.0
"""How long one git command may take."""

PREFIX = "shiftwork/"
"""The prefix of branch names."""


class GitError(Exception):
    """An error message of git."""


class Repository(msgspec.Struct, frozen=True):
    """A local repository, and the commit at which branches start."""

    path: str
    base: str = "HEAD"


def parse(text: str) -> Repository:
    """`REPO` or `REPO@BASE`; refused where it is not a repository or has no such commit."""
    path, at, base = (text, "", "") if Path(text).is_dir() else text.rpartition("@")
    repository = Repository(str(Path(path).expanduser().absolute()), base or "HEAD")
    if not Path(repository.path).is_dir():
        raise InputError(f"there is no folder {repository.path}", where="--worktree", hint="Write REPO or REPO@BASE.")
    if base.startswith("-") or (at and not base):
        raise InputError(f"{base!r} is not the name of a commit", where="--worktree", hint="Write REPO@BASE.")
    try:
        _git(repository.path, "rev-parse", "--verify", "--quiet", f"{repository.base}^{{commit}}")
    except GitError as error:
        what = f"{repository.path} is not a git repository that has {repository.base}"
        raise InputError(what, where="--worktree", hint="Name a clone on this machine, and a branch it has.") from error
    return repository


def branch_of(task: Task) -> str:
    """The branch of a task and all its retries."""
    return f"{PREFIX}{task.root_task_id}"


def enter(repository: Repository, task: Task, folder: Path) -> None:
    """Make the folder a worktree of the task's branch, unless an earlier attempt has."""
    if (folder / ".git").exists():
        return
    branch = branch_of(task)
    try:
        _git(repository.path, "worktree", "prune")
        if _has_branch(repository.path, branch):
            _git(repository.path, "worktree", "add", str(folder), branch)
            return
        begins = _git(repository.path, "rev-parse", f"{repository.base}^{{commit}}").strip()
        _git(repository.path, "worktree", "add", "-b", branch, str(folder), begins)
        _git(repository.path, "config", f"branch.{branch}.shiftworkBase", begins)
    except GitError as error:
        raise Fail(reasons.RESOURCE_UNAVAILABLE, f"cannot make a worktree of {repository.path}: {error}") from error


def _has_branch(repository: str, branch: str) -> bool:
    try:
        _git(repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
    except GitError:
        return False
    return True


def diff(repository: Repository, task: Task, folder: Path) -> bytes:
    """All changes since the branch began, committed or not, with new files, in the format of `git apply`."""
    try:
        begins = _git(repository.path, "config", "--get", f"branch.{branch_of(task)}.shiftworkBase").strip()
        with tempfile.TemporaryDirectory() as own:  # an index of our own: do not change the agent's
            index = {"GIT_INDEX_FILE": str(Path(own) / "index")}
            _git(str(folder), "read-tree", "HEAD", extra=index)
            _git(str(folder), "add", "--all", extra=index)
            return _git_bytes(str(folder), "diff", "--cached", "--binary", "--no-ext-diff", begins, extra=index)
    except GitError as error:
        raise Fail(reasons.RESOURCE_UNAVAILABLE, f"cannot make the diff of {folder}: {error}") from error


def forget(repository: Repository) -> None:
    """Tell git that worktree folders were removed. Their branches stay."""
    _git(repository.path, "worktree", "prune")


def _git(folder: str, *words: str, extra: Mapping[str, str] | None = None) -> str:
    return _git_bytes(folder, *words, extra=extra).decode("utf-8", "replace")


def _git_bytes(folder: str, *words: str, extra: Mapping[str, str] | None = None) -> bytes:
    """Run git without the repository's hooks: our commands are not a user's commit or checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    line = ["git", "-C", folder, "-c", "core.hooksPath=/dev/null", *words]
    try:
        done = subprocess.run(
            line,
            env={**environment, "GIT_TERMINAL_PROMPT": "0", **(extra or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=GIT_SEC,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(str(error)) from error
    if done.returncode:
        raise GitError(done.stderr.decode("utf-8", "replace").strip() or f"git ended with {done.returncode}")
    return done.stdout
