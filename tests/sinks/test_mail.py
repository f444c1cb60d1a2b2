"""Email through a real mail server on this machine: plain, with TLS and login, refusing, and hanging."""

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from shiftwork import Queue
from shiftwork.model.errors import InputError
from shiftwork.notifications import deliveries, dial, mail
from shiftwork.notifications.mail import MailSender
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter
from tests.sinks.steps import NOT_PUBLIC, statuses, tell

PASSWORD = "pass word"


class Mailbox:
    """The received mails, and the answers of the server."""

    def __init__(self) -> None:
        self.got: list[EmailMessage] = []
        self.to: list[list[str]] = []
        self.answer = "250 taken"
        self.refused: dict[str, str] = {}
        """Whom it refuses, and with what words."""

    async def handle_RCPT(  # noqa: N802  # the library's name
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 taken"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802  # the library's name
        self.to.append(envelope.rcpt_tos)
        content = cast(bytes, envelope.content)
        if self.answer.startswith("250"):
            self.got.append(message_from_bytes(content, policy=policy.default))
        return self.answer


def _let_in(_server: SMTP, _session: Session, _envelope: Envelope, _way: str, login: Any) -> AuthResult:
    good = isinstance(login, LoginPassword) and login == LoginPassword(b"queue", PASSWORD.encode())
    return AuthResult(success=good)


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
async def server(mailbox: Mailbox) -> AsyncIterator[str]:
    async with serving(mailbox) as address:
        yield address


@asynccontextmanager
async def serving(mailbox: Mailbox, **options: Any) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    running = await loop.create_server(lambda: SMTP(mailbox, loop=loop, **options), "127.0.0.1", 0)
    async with running:
        yield f"localhost:{running.sockets[0].getsockname()[1]}"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


@pytest.fixture
async def guarded(mailbox: Mailbox, certificate: tuple[Path, Path]) -> AsyncIterator[str]:
    """A server that requires TLS and a password."""
    key, cert = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    strict = {"tls_context": context, "require_starttls": True, "auth_required": True}
    async with serving(mailbox, authenticator=_let_in, **strict) as address:
        yield address


async def add(queue: Queue, at: str, **fields: Any) -> None:
    known: dict[str, Any] = {"name": "mail", "kind": "email", "address": "ada@example.com, bob@example.com"}
    known |= {"server": f"smtp://{at}", "sender": "queue@example.com", "allow_private": True}
    await queue.sinks.add(**{**known, **fields})


async def test_dead_letter_is_sent_as_mail(queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox) -> None:
    await add(queue, server)
    task_id = await dead_letter(queue)
    await tell(queue, clock)
    (letter,) = mailbox.got
    (sent,) = await queue.deliveries.list()
    assert letter["subject"] == f"Shiftwork: [warning] Task {task_id} moved to dead letter queue"
    assert (letter["from"], letter["to"]) == ("queue@example.com", "ada@example.com, bob@example.com")
    assert letter["message-id"] == f"<{sent.id}@shiftwork>"
    assert mailbox.to == [["ada@example.com", "bob@example.com"]]
    assert f"task_id: {task_id}" in letter.get_content()
    assert sent.status == "sent"


async def test_mail_subject_cannot_contain_another_header(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server, wants={"alerts": [], "events": ["queue.paused"]})
    await queue.as_caller("human:eve\r\nBcc: all@example.com").control.pause()
    await tell(queue, clock)
    (letter,) = mailbox.got
    assert letter["bcc"] is None
    assert letter["subject"] == "Shiftwork: queue.paused (by human:eve Bcc: all@example.com)"


async def test_refusing_mail_server_is_tried_again(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server)
    await dead_letter(queue)
    mailbox.answer = "451 later, and your password was xyz"
    await tell(queue, clock)
    (kept,) = await queue.deliveries.list()
    assert (kept.status, kept.error) == ("pending", "the mail server answered 451")
    mailbox.answer = "250 taken"
    await tell(queue, clock, 60)
    assert len(mailbox.got) == 1
    assert await statuses(queue) == ["sent"]


LATER = "450 4.2.0 greylisted, try again later"
NEVER = "550 5.1.1 nobody of this name"


async def test_temporarily_refused_recipient_is_retried_alone(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server)
    await dead_letter(queue)
    await pass_time(queue, clock, 0)
    post = MailSender()
    mailbox.refused = {"bob@example.com": LATER}
    for _ in range(2):
        assert await attempt(queue, clock, post) == "pending"
    assert mailbox.to == [["ada@example.com"]]
    (kept,) = await queue.deliveries.list()
    assert kept.error == "the mail server refused recipient 2 of 2"
    mailbox.refused = {}
    assert await attempt(queue, clock, post) == "sent"
    assert mailbox.to == [["ada@example.com"], ["bob@example.com"]]
    assert {letter["message-id"] for letter in mailbox.got} == {f"<{kept.id}@shiftwork>"}
    await queue.deliveries.redeliver(kept.id)
    assert await attempt(queue, clock, post) == "sent"
    assert mailbox.to[2:] == [["ada@example.com", "bob@example.com"]], "what was sent is forgotten"
    post.close()


async def attempt(queue: Queue, clock: MovedClock, post: MailSender) -> str | None:
    """Make one attempt with the same sender, as in a running process."""
    clock.advance(600)
    (pending,) = await queue.engine.store.run(lambda tx: deliveries.lease(tx, queue.engine, {}, 1))
    outcome = await post.send(pending, clock())
    return await queue.engine.store.run(lambda tx: deliveries.record(tx, queue.engine, pending, outcome))


async def test_another_process_sends_to_all_recipients_again(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server)
    await dead_letter(queue)
    mailbox.refused = {"bob@example.com": LATER}
    await tell(queue, clock)
    (kept,) = await queue.deliveries.list()
    assert (kept.status, kept.error) == ("pending", "the mail server refused recipient 2 of 2 temporarily")
    mailbox.refused = {}
    await tell(queue, clock, 60)
    assert mailbox.to == [["ada@example.com"], ["ada@example.com", "bob@example.com"]]
    assert await statuses(queue) == ["sent"]


async def test_permanently_refused_recipient_does_not_block_others(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox, caplog: pytest.LogCaptureFixture
) -> None:
    await add(queue, server)
    await dead_letter(queue)
    mailbox.refused = {"bob@example.com": NEVER}
    await tell(queue, clock)
    assert mailbox.to == [["ada@example.com"]]
    assert await statuses(queue) == ["sent"]
    assert "the mail server refused recipient 2 of 2 permanently" in caplog.text
    assert "bob@" not in caplog.text


async def test_mail_refused_for_every_recipient_is_retried_for_all(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server)
    await dead_letter(queue)
    mailbox.refused = {"ada@example.com": LATER, "bob@example.com": NEVER}
    await tell(queue, clock)
    assert (await queue.deliveries.list())[0].error == "the mail server refused every recipient"


async def test_password_is_sent_only_over_tls(
    queue: Queue,
    clock: MovedClock,
    guarded: str,
    mailbox: Mailbox,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    await add(queue, guarded, server=f"smtp://queue@{guarded}", secret=PASSWORD)
    await dead_letter(queue)
    await tell(queue, clock)
    assert len(mailbox.got) == 1


async def test_untrusted_certificate_is_refused(
    queue: Queue, clock: MovedClock, guarded: str, mailbox: Mailbox
) -> None:
    await add(queue, guarded, server=f"smtp://queue@{guarded}", secret=PASSWORD)
    await dead_letter(queue)
    await tell(queue, clock)
    assert (await queue.deliveries.list())[0].error == "the mail server's certificate is invalid"
    assert mailbox.got == []


async def test_password_is_not_sent_without_encryption(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server, server=f"smtp://queue@{server}", secret=PASSWORD)
    await dead_letter(queue)
    await tell(queue, clock)
    text = "the mail server offers no encryption, so the password was not sent"
    assert (await queue.deliveries.list())[0].error == text
    assert mailbox.got == []


async def test_private_mail_server_is_not_contacted(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox
) -> None:
    await add(queue, server, allow_private=False)
    await dead_letter(queue)
    await tell(queue, clock)
    assert (await queue.deliveries.list())[0].error == NOT_PUBLIC


async def test_timed_out_attempt_sends_nothing_when_connected_later(
    queue: Queue, clock: MovedClock, server: str, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.notifications.mail.TIMEOUT_SEC", 0.1)
    released, ended = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    connect, send = dial.connect, mail._Attempt.send

    def connect_late(host: str, port: int, _timeout: float, *, allow_private: bool) -> socket.socket:
        """Connect late, as after a slow name lookup."""
        released.wait()
        return connect(host, port, 10, allow_private=allow_private)

    def send_and_signal(*args: Any) -> Any:
        try:
            return send(*args)
        finally:
            loop.call_soon_threadsafe(ended.set)

    monkeypatch.setattr(dial, "connect", connect_late)
    monkeypatch.setattr(mail._Attempt, "send", send_and_signal)
    await add(queue, server)
    await dead_letter(queue)
    await tell(queue, clock)
    (kept,) = await queue.deliveries.list()
    assert (kept.status, kept.error) == ("pending", "the mail server did not answer in time")
    released.set()
    async with asyncio.timeout(30):
        await ended.wait()
    assert mailbox.got == []


async def test_silent_mail_server_is_disconnected(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.notifications.mail.TIMEOUT_SEC", 0.2)
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent:
        await add(queue, f"localhost:{silent.sockets[0].getsockname()[1]}")
        await dead_letter(queue)
        await tell(queue, clock)
        async with asyncio.timeout(10):
            await gone.wait()
    assert await statuses(queue) == ["pending"]
    assert "mail server" in ((await queue.deliveries.list())[0].error or "")


async def test_mail_password_is_not_reused_for_another_server(queue: Queue) -> None:
    await add(queue, "ada@127.0.0.1:9", secret="hush")
    with pytest.raises(InputError) as refused:
        await queue.sinks.update("mail", server="smtp://ada@127.0.0.1:10")
    assert refused.value.where == "secret"
    await queue.sinks.update("mail", sender="other@example.com")
    changed = await queue.sinks.update("mail", server="smtp://ada@127.0.0.1:10", secret="hush")
    assert changed.server == "smtp://ada@127.0.0.1:10"
