"""A command that does tasks: its arguments, its environment, and its standard input."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal

import msgspec

from shiftwork import tracing
from shiftwork.model import reasons
from shiftwork.model.errors import BadText, InputError
from shiftwork.model.task import Task
from shiftwork.worker.context import Fail
from shiftwork.worker.output import Format
from shiftwork.worker.worktrees import Repository

_SHELLS = frozenset(
    {"sh", "ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "mksh", "nu", "oksh", "pwsh", "powershell", "rbash"}
    | {"tcsh", "yash", "zsh"}
)
_OF_ONE_LINE = frozenset({"flock", "runuser", "script", "sg", "su"})
"""Not shells, but they pass the argument of -c to one."""

_JOINING = frozenset({"eval", "parallel", "rsh", "ssh", "watch"})
"""These join their arguments and pass them to a shell, local or remote."""

_INTERPRETERS = re.compile(r"(python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|r|rscript|osascript|[gm]?awk)[\d.]*")
_CODE = re.compile(r"-[a-z]*[cepr]|--(eval|print|run|command)(=.*)?", re.IGNORECASE | re.DOTALL)
_LINE = re.compile(r"-[a-z]*c[a-z]*|--command(=.*)?", re.IGNORECASE | re.DOTALL)
_SPLITTING = ("-S", "--split-string")
_WITH_VALUE = frozenset(["-o", "+o", "-O", "+O", "--rcfile", "--init-file", "-I", "-W", "-X", "--require", "--import"])


def reads_as_code(words: Sequence[str], is_filled: Callable[[str], object]) -> bool:
    """Whether a task's text would be read as code, given which words contain a placeholder.

    Every word is checked, because programs such as env, nice, sudo, timeout, xargs and busybox run what follows them.
    """
    for place, word in enumerate(words):
        name, rest = PurePath(word).name, words[place + 1 :]
        if name in _JOINING or (name in _SHELLS and _takes_line(rest)):
            found = rest  # also its parameters: with missing quotes, they become code
        elif name in _OF_ONE_LINE and any(_LINE.fullmatch(each) for each in rest):
            found = rest
        elif name == "env":
            found = [each for n, option in enumerate(rest) if option.startswith(_SPLITTING) for each in rest[n : n + 2]]
        elif _INTERPRETERS.fullmatch(name.lower()):
            found = _code_of(name, rest)
        else:
            continue
        if any(is_filled(each) for each in found):
            return True
    return False


def _takes_line(rest: Sequence[str]) -> bool:
    """Whether a shell with these arguments reads one of them as a script."""
    return any(_LINE.fullmatch(word) for _, word in _own_options(rest))


def _own_options(rest: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The options before the first file, with their positions; later ones belong to the file."""
    words = iter(enumerate(rest))
    for place, word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word.startswith(("-", "+")) and word != "-m":  # a module of Python is a file, too
            yield place, word
        else:
            return


def _code_of(name: str, rest: Sequence[str]) -> Sequence[str]:
    """The program text among the arguments of an interpreter; the others are data for it."""
    if name.lower().endswith("awk"):
        return [word for word in rest if not word.startswith("-")][:1]
    return [each for n, word in _own_options(rest) if _CODE.fullmatch(word) for each in rest[n : n + 2]]


Feed = Literal["task", "prompt", "none"]
Permissions = Literal["allow", "deny", "ask"]

PLACEHOLDERS = ("prompt", "session_id", "work_dir", "task_file", "task_id", "type", "attempt", "model", "account")
RESUME = "{resume}"
MAX_VALUE_LENGTH = 100_000
"""In bytes. Linux refuses a single argument or variable of 131,072."""

_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """All options of `shiftwork work -- COMMAND`; passed to the processes of a fleet as JSON."""

    command: tuple[str, ...]
    types: tuple[str, ...]
    store: str
    work_dir: str
    workspace: str | None = None
    agent_id: str | None = None
    capabilities: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    provider: str | None = None
    accounts: tuple[str, ...] = ()
    stdin: Feed = "task"
    output: Format = "auto"
    resume_args: tuple[str, ...] = ()
    acp: bool = False
    """Whether the command speaks the Agent Client Protocol on its standard input and output."""
    permissions: Permissions = "deny"
    """The answer to such an agent's requests for permission."""
    worktree: Repository | None = None
    """The repository of which each task's folder is a worktree."""
    session_files: str | None = None
    """Where the agent stores a session, so that it can be resumed on another machine."""
    clean: bool = False
    no_test_pass: bool = False
    """Whether to skip tasks' tests: their command comes from the submitter, and would run with our rights."""
    stop_grace_sec: float = 30.0
    kill_after_sec: float = 5.0

    def target(self) -> str:
        """The target by which processes name the worker; no module name begins like this."""
        return msgspec.json.encode(self).decode()


def from_target(target: str) -> Program:
    return msgspec.json.decode(target, type=Program)


def check(program: Program) -> Program:
    """Refuse options that cannot work for any task, before anything is claimed; makes the command's path absolute."""
    if not program.command:
        raise InputError("there is no command", where="COMMAND", hint="Write it after --, e.g. -- claude -p.")
    if program.acp and importlib.util.find_spec("acp") is None:
        hint = "Install it: pip install 'shiftwork[acp]'."
        raise InputError("--acp needs the package agent-client-protocol", where="--acp", hint=hint)
    if not program.types:
        raise InputError("a command needs the types of its tasks", where="--type", hint="Name them: --type code.")
    program = msgspec.structs.replace(program, command=(_found(program.command[0]), *program.command[1:]))
    _refuse_unreadable(program)
    for part in (*program.command, *program.resume_args):
        if "\0" in part:
            raise InputError("a command cannot hold a NUL character", where="COMMAND")
    if any(reads_as_code(words, _PLACEHOLDER.search) for words in _ways(program)):
        raise InputError(
            "a placeholder inside a script would execute the task's text as a command",
            where="COMMAND",
            hint='Use the variables instead: "$SHIFTWORK_PROMPT", "$SHIFTWORK_SESSION_ID", ...',
        )
    return program


def _found(name: str) -> str:
    """The absolute path: the program is searched here, but started in each task's folder."""
    found = shutil.which(name)
    if found is None:
        what = "is not executable" if "/" in name and Path(name).exists() else "is not found"
        hint = "Name a program on the PATH, or its path."
        raise InputError(f"the command {name!r} {what}", where="COMMAND", hint=hint)
    return str(Path(found).absolute())


def _refuse_unreadable(program: Program) -> None:
    """Refuse text that JSON or the queue cannot hold."""
    for name, value in msgspec.structs.asdict(program).items():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, str) and part != part.encode(errors="ignore").decode():
                raise BadText(f"{part!r} is not UTF-8 text", where=name)


def _ways(program: Program) -> list[list[str]]:
    """The command for a fresh start and for a resumed session."""
    return [_with_resume(program, ()), _with_resume(program, program.resume_args)]


def _with_resume(program: Program, resume: Sequence[str]) -> list[str]:
    """The resume arguments replace `{resume}`, or are appended."""
    parts: list[str] = []
    for part in program.command if RESUME in program.command else (*program.command, RESUME):
        parts += resume if part == RESUME else [part]
    return parts


class Call(msgspec.Struct, frozen=True):
    """One run of the program: for which attempt, where, and in which session."""

    task: Task
    token: str
    work_dir: Path
    task_file: Path
    session_id: str | None
    """The session to resume; None for a fresh start."""
    inbox: Path
    """The file of the task's instructions, one line of JSON each."""

    def values(self) -> dict[str, str]:
        return {
            "prompt": prompt_of(self.task),
            "session_id": self.session_id or "",
            "work_dir": str(self.work_dir),
            "task_file": str(self.task_file),
            "task_id": self.task.id,
            "type": self.task.type,
            "attempt": str(self.task.attempts + 1),
            "model": self.task.claim.model or "",
            "account": self.task.claim.account or "",
        }


def prompt_of(task: Task) -> str:
    """The prompt of the spec or of the payload, otherwise the title."""
    own = task.payload.get("prompt")
    return (task.spec or {}).get("prompt") or (own if isinstance(own, str) else None) or task.title or ""


def arguments(program: Program, call: Call) -> list[str]:
    """The command for one task."""
    parts = _with_resume(program, program.resume_args if call.session_id is not None else ())
    values = call.values()
    return [parts[0], *(_fill(part, values, literal="--" in parts[1:n]) for n, part in enumerate(parts[1:], 1))]


def _fill(part: str, values: Mapping[str, str], *, literal: bool) -> str:
    """Insert the task's values. A value that would be read as an option is refused: submitters must not set options."""
    filled = _PLACEHOLDER.sub(lambda found: values[found[1]], part)
    if filled == part:
        return part
    if len(filled.encode()) > MAX_VALUE_LENGTH:
        raise Fail(reasons.INVALID_INPUT, f"{part} is too long for a command line; feed it with --stdin")
    if _PLACEHOLDER.match(part) and filled.startswith("-") and not literal:
        raise Fail(reasons.INVALID_INPUT, f"{part} begins with '-', which the command would read as an option")
    return filled


def environment(program: Program, call: Call, agent_id: str) -> dict[str, str]:
    """The runner's own environment, and the task. A prompt too long for a variable is left out."""
    values = call.values()
    own = {
        "SHIFTWORK_STORE": program.store,
        "SHIFTWORK_WORKSPACE": call.task.workspace_id,
        "SHIFTWORK_AGENT": agent_id,
        "SHIFTWORK_CLAIM": call.token,
        "SHIFTWORK_INBOX": str(call.inbox),
        **{f"SHIFTWORK_{name.upper()}": values[name] for name in PLACEHOLDERS},
    }
    if (traceparent := tracing.current()) is not None:
        own[tracing.VARIABLE] = traceparent
    if len(own["SHIFTWORK_PROMPT"].encode()) > MAX_VALUE_LENGTH:
        del own["SHIFTWORK_PROMPT"]
    return {**os.environ, **own}


def feed(program: Program, call: Call) -> bytes:
    """What the command reads on its standard input."""
    if program.stdin == "task":
        return task_json(call.task)
    return prompt_of(call.task).encode() if program.stdin == "prompt" else b""


def task_json(task: Task) -> bytes:
    return msgspec.json.encode(task) + b"\n"
