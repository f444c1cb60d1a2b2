"""A stand-in for a coding agent's command line: lines of JSON events, its own sessions, and commands in the prompt.

`python fake_agent.py [--resume SESSION]` reads its prompt on standard input. Its first word says what to do:

    work               end well
    limit [SECONDS]    report a rate limit of its provider
    fail               report an error of its own
    max_turns          exit with 0, but report a failure
    hang               never end; ignore SIGTERM
    family             start two processes that ignore SIGTERM, one of them outside of its group, and never end
    leave              the same, but end well
    flood              print a megabyte, in one line and in many
    die                be killed after it has reported its usage
    break              break a session, so that it cannot be resumed
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

SESSIONS = Path(".sessions")
IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Session:
    """A conversation, stored in the working folder with a line for each turn."""

    def __init__(self, resumed: str | None) -> None:
        self.id = resumed or str(uuid.uuid4())
        self._file = SESSIONS / self.id
        SESSIONS.mkdir(exist_ok=True)
        if resumed and not self._file.exists():
            sys.stderr.write(f"No conversation found with session ID: {resumed}\n")
            sys.exit(66)
        with self._file.open("a") as file:
            file.write(f"{os.getpid()}\n")

    @property
    def turns(self) -> int:
        return len(self._file.read_text().splitlines())

    def break_off(self) -> None:
        self._file.unlink()


def say(session: Session, text: str, tokens: int = 5) -> None:
    message = {"id": f"msg_{session.turns}", "content": [{"type": "text", "text": text}]}
    tell(type="assistant", session_id=session.id, message={**message, "usage": usage(tokens)})


def use_tool(session: Session) -> None:
    tool = {"type": "tool_use", "name": "Bash", "input": {"command": "make test"}}
    tell(type="assistant", session_id=session.id, message={"id": "msg_tool", "content": [tool], "usage": usage(7)})


def usage(tokens: int) -> dict[str, int]:
    return {"input_tokens": tokens, "cache_read_input_tokens": 10, "output_tokens": tokens}


def end(session: Session, text: str, *, is_error: bool = False, subtype: str = "success") -> None:
    known: dict[str, Any] = {"session_id": session.id, "total_cost_usd": 0.25, "usage": usage(100)}
    tell(type="result", subtype=subtype, is_error=is_error, result=text, **known)


def found_a_family() -> None:
    for apart in (False, True):
        child = subprocess.Popen([sys.executable, "-c", IGNORES_SIGTERM], start_new_session=apart)
        with Path("family").open("a") as file:
            file.write(f"{child.pid}\n")


def main(arguments: list[str]) -> int:
    resumed = arguments[arguments.index("--resume") + 1] if "--resume" in arguments else None
    word, *rest = (sys.stdin.read().split() or ["work"])[:2]
    session = Session(resumed)
    tell(type="system", subtype="init", session_id=session.id, cwd=str(Path.cwd()), tools=["Bash"])
    say(session, f"turn {session.turns}")
    return act(session, word, rest)


def act(session: Session, word: str, rest: list[str]) -> int:
    if word == "limit":
        sys.stderr.write(f"429 too many requests\nRetry-After: {rest[0] if rest else 30}\n")
        return 75
    if word == "fail":
        sys.stderr.write("the API said no\n")
        return 1
    if word == "max_turns":
        end(session, "", is_error=True, subtype="error_max_turns")
        return 0
    if word == "break":
        session.break_off()
        return 1
    if word in {"hang", "family"}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if word in {"family", "leave"}:
        found_a_family()
    if word in {"hang", "family"}:
        say(session, "this will take a while", 9)
        time.sleep(600)
    if word == "flood":
        say(session, "x" * 1_000_000)
        for _ in range(20_000):
            say(session, "y" * 10)
    use_tool(session)
    end(session, f"done in turn {session.turns}")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
