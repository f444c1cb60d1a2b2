"""Failures are grouped by cause, not by ids, numbers, paths or the first line of a log."""

import pytest

from shiftwork.engine.fingerprint import MAX_LENGTH, fingerprint

TRACEBACK = """exit code 1
Traceback (most recent call last):
  File "/srv/app/run.py", line 12, in main
    total = orders[7]
KeyError: 7
"""


def of(error: str | None, reason: str = "agent_error") -> str:
    return fingerprint("code", reason, error).removeprefix(f"code/{reason}/")


@pytest.mark.parametrize(
    ("error", "telling"),
    [
        ("port 8080 is taken", "port # is taken"),
        ("port 8080 is taken\nsee the log", "port # is taken"),
        ("exit code 1", "exit code #"),
        ("exit code 1\nInvalid API key · Please run /login", "Invalid API key · Please run /login"),
        ("exit code 2\nwarning: old\nerror: no such file a.txt\nbye", "error: no such file a.txt"),
        ("exit code 1\nfirst\nlast words", "last words"),
        ("killed by SIGKILL", "killed by SIGKILL"),
        (TRACEBACK, "KeyError: #"),
        (
            TRACEBACK + "\nDuring handling of the above exception:\n\n" + TRACEBACK.replace("KeyError: 7", "OSError"),
            "OSError",
        ),
        (
            'API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "overloaded_error: Overloaded",
        ),
        ("no file /tmp/run-81/task_01M7ABC23XYZ/config.toml", "no file config.toml"),
        ("commit 9a4290b is not in 0f3c1d2e4b5a69788796a5b4c3d2e1f000112233", "commit # is not in #"),
        ("org org-01HX3K9ZP4 has req_011CSHoEeqs5C35K2UUqR7Fy", "org org-# has req_#"),
        ("at 2026-11-17T12:00:00Z it broke", "at # it broke"),
        ("job 123e4567-e89b-12d3-a456-426614174000 died", "job # died"),
        ("FAILED tests/unit/test_pay.py::test_429_is_retried", "FAILED test_pay.py::test_#_is_retried"),
        ("", ""),
        (None, ""),
        ("\n \n", ""),
    ],
)
def test_fingerprint_is_the_stable_part_of_an_error(error: str | None, telling: str) -> None:
    assert of(error) == telling


def test_different_command_errors_have_different_fingerprints() -> None:
    errors = ["Invalid API key · Please run /login", "npm ERR! missing script: test", "KeyError: 'x'", "disk full"]
    assert len({of(f"exit code 1\nworking\n{error}") for error in errors}) == len(errors)


def test_limit_error_has_one_fingerprint_regardless_of_reset_time() -> None:
    ends = ["resets 2:30pm (Europe/Paris)", "resets 9am (UTC)", "resets Nov 21, 10am"]
    assert {of(f"exit code 1\nYou've hit your session limit · {end}", "rate_limit") for end in ends} == {
        "You've hit your session limit"
    }


def test_fingerprint_length_is_bounded() -> None:
    assert len(of("x" * 60_000)) == MAX_LENGTH
    assert of("exit code 1\n" + "log line\n" * 9_000 + "fatal: it broke") == "fatal: it broke"
