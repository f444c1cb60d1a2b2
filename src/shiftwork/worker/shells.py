"""Finds words of a command line that a program would read as code: no placeholder is allowed there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

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
