"""A daemon as the Aegis document describes one, over plain HTTP: `daemon.py <host:port> <runtime>`.

Its tool is a stand-in that obeys the lines of standard input: `progress 3`, `call grep`, `done <output>`,
`error <text>`. The daemon prints its own actions on standard output.
"""

import http.client
import json
import sys
import threading
import uuid
from http import HTTPStatus
from typing import Any

SERVER, RUNTIME = sys.argv[1:3]
WAIT_SEC = 20
BEAT_SEC = 15


class Stopped(Exception):  # not an error: the task was taken away
    """The server reports that this task is no longer ours."""


def post(path: str, **body: Any) -> Any:
    connection = http.client.HTTPConnection(SERVER, timeout=2 * WAIT_SEC)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status == HTTPStatus.CONFLICT:
        raise Stopped
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise RuntimeError(text)
    return json.loads(text)


def report(task: dict[str, Any], verb: str, **body: Any) -> None:
    post(f"/api/tasks/{task['id']}/{verb}", runtime_id=RUNTIME, **body)


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def beat() -> None:
    """Send heartbeats of this runtime, independently of the tool."""
    while True:
        post(f"/api/runtimes/{RUNTIME}/heartbeat")
        threading.Event().wait(BEAT_SEC)


def work(task: dict[str, Any]) -> None:
    report(task, "start")
    resumed = None if task["force_fresh_session"] else task["session_id"]
    session = resumed or str(uuid.uuid4())
    report(task, "messages", kind="text", text="resumed" if resumed else "began")
    report(task, "session", session_id=session, work_dir=f"/work/{session}")
    say("pinned", task["id"], session)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "progress":
            report(task, "progress", done=int(rest))
        elif word == "call":
            report(task, "messages", kind="tool_call", text=rest)
        elif word == "done":
            report(task, "complete", output=rest)
            break
        else:
            report(task, "messages", kind="error", text=rest)
            report(task, "fail", failure_reason="agent_error", error=rest)
            break
        say("did", word)
    say("ended", task["id"])


def main() -> None:
    orphans = post(f"/api/runtime/{RUNTIME}/orphans")["tasks"]
    say("recovered", *(task["id"] for task in orphans))
    threading.Thread(target=beat, daemon=True).start()
    while True:
        task = post("/api/tasks/claim", runtime_id=RUNTIME, wait_sec=WAIT_SEC)["task"]
        if task is not None:
            try:
                work(task)
            except Stopped:
                say("stopped", task["id"])


if __name__ == "__main__":
    main()
