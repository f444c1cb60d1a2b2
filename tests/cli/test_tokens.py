"""Tokens from the shell: the secret is shown once, when it is created."""

from datetime import datetime, timedelta

from shiftwork.access.operations import find_token
from tests.cli.terminal import Terminal


def test_created_secret_is_printed_alone_on_stdout(each_terminal: Terminal) -> None:
    made = each_terminal.run("tokens", "create", "ci", "--scope", "work", "--scope", "submit")
    assert made.code == 0
    secret = made.out.removesuffix("\n")
    assert secret.startswith("sw_")
    assert "\n" not in secret
    assert "will not be shown again" in made.err
    assert secret not in made.err
    (listed,) = each_terminal.json("tokens", "list")
    assert listed["id"] in made.err
    assert each_terminal.on_queue(lambda queue: find_token(queue.engine, secret)) is not None


def test_secret_is_never_shown_again(terminal: Terminal) -> None:
    secret = terminal.json("tokens", "create", "ci", "--scope", "admin")["secret"]
    token_id = terminal.json("tokens")[0]["id"]
    output = [terminal.text(*line.split()) for line in ("tokens", "tokens --json", "events --after 0 --json")]
    output += [terminal.text("tokens", "revoke", token_id), terminal.text("tokens", "revoke", token_id, "--json")]
    assert all(token_id in text for text in output)
    assert not any(secret in text or secret[-43:] in text for text in output)


def test_token_expires_at_the_given_time(terminal: Terminal) -> None:
    made = terminal.json("tokens", "create", "ci", "--scope", "read", "--expires", "2100-01-31T12:00Z")
    assert made["expires_at"] == "2100-01-31T12:00:00.000Z"
    soon = terminal.json("tokens", "create", "ci", "--scope", "read", "--expires", "30d")
    assert datetime.fromisoformat(soon["expires_at"]) - datetime.fromisoformat(soon["created_at"]) > timedelta(29.9)


def test_token_list_shows_scopes_and_expiry(terminal: Terminal) -> None:
    terminal.text("tokens", "create", "ci", "--scope", "work", "--scope", "read")
    terminal.text("tokens", "create", "old", "--scope", "admin", "--expires", "2100-01-31T12:00Z")
    first, second = (line.split() for line in terminal.text("tokens").splitlines()[1:])
    assert first[1:5] == ["ci", "active", "read,", "work"]
    assert first[-2:] == ["human:ada", "never"]
    assert second[1:4] == ["old", "active", "admin"]
    assert second[-2:] == ["2100-01-31", "12:00:00Z"]
    terminal.text("tokens", "revoke", first[0])
    assert [token["status"] for token in terminal.json("tokens")] == ["revoked", "active"]


def test_token_belongs_to_its_workspace(terminal: Terminal) -> None:
    made = terminal.json("--workspace", "w", "tokens", "create", "ci", "--scope", "work")
    assert made["workspace_id"] == "w"
    assert terminal.json("tokens") == []
    assert terminal.run("tokens", "revoke", made["id"]).code == 3
    assert terminal.json("--workspace", "w", "tokens")[0]["status"] == "active"


def test_refused_token_creates_no_queue(terminal: Terminal) -> None:
    assert terminal.run("tokens", "create", "ci", "--scope", "root").code == 2
    assert terminal.run("tokens").code == 5


def test_quotas_are_set_listed_and_shown(terminal: Terminal) -> None:
    output = terminal.text("quotas", "set", "shop", "--max-tasks", "5", "--submits-per-minute", "60")
    assert output.strip() == "shop: tasks 0 of 5, bytes no limit, submits a minute 60"
    assert "shop" in terminal.text("quotas")
    assert "0 of 5" in terminal.text("--workspace", "shop", "quotas", "show")
    for _ in range(5):
        terminal.text("--workspace", "shop", "submit", "noop")
    refused = terminal.run("--workspace", "shop", "submit", "noop")
    assert refused.code == 4
    assert "has 5 of at most 5 tasks" in refused.err
    assert "tasks 5 of 5" in terminal.text("--workspace", "shop", "status")
    assert "workspace shop has 5 of at most 5 tasks" in terminal.text("doctor")
    terminal.text("quotas", "set", "shop")
    assert "no quotas" in terminal.text("quotas", "list")
