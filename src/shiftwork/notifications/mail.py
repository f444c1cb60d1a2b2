"""E-mail sinks: one e-mail per notification, through the sink's mail server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import smtplib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import formatdate

from shiftwork.notifications import dial
from shiftwork.notifications.model import OutgoingDelivery, SinkTarget
from shiftwork.notifications.policy import DeliveryOutcome, line, mail_server, paragraphs, recipients

log = logging.getLogger("shiftwork.notifications")
TIMEOUT_SEC = 10.0
"""The limit for each reply of the server; sending one e-mail can take this much again."""

AT_ONCE = 32
MAX_SUBJECT_LENGTH = 150
MAX_REMEMBERED = 10_000
"""The most partly delivered e-mails to remember."""
_PERMANENT = 500
"""Status codes from here on are permanent."""


class MailSender:
    """Sends e-mails from threads, because the library blocks.

    If the server accepts an e-mail for some recipients and defers others, the next attempt is only for these. This is
    not stored: after a restart, or in another process, all get it again with the same id.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "shiftwork-mail")
        self._have: dict[str, frozenset[str]] = {}

    async def send(self, delivery: OutgoingDelivery, now: float) -> DeliveryOutcome:
        """Send to the recipients who have not received the e-mail yet."""
        have = self._have.get(delivery.id, frozenset())
        to = [each for each in recipients(delivery.place.address) if each not in have]
        if not to:  # the sink's addresses changed since the last attempt
            return self._record(delivery, to, {})
        attempt = _Attempt(delivery.place)
        work = functools.partial(attempt.send, email_message(delivery, now), to)
        try:
            async with asyncio.timeout(2 * TIMEOUT_SEC):
                refused = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            return DeliveryOutcome("the mail server did not answer in time")
        except smtplib.SMTPRecipientsRefused as error:
            return DeliveryOutcome(f"the mail server refused {_which(delivery, to)}" if have else _why(error))
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return DeliveryOutcome(_why(error))
        finally:
            attempt.cut()
        return self._record(delivery, to, refused)

    def _record(self, pending: OutgoingDelivery, to: list[str], refused: dict[str, int]) -> DeliveryOutcome:
        """Record the recipients that were refused. A permanent refusal is not retried if others received the e-mail."""
        later = [each for each in to if refused.get(each, _PERMANENT) < _PERMANENT]
        never = [each for each in to if refused.get(each, 0) >= _PERMANENT]
        if never:
            log.warning("notification %s: the mail server refused %s permanently", pending.id, _which(pending, never))
        have = self._have.pop(pending.id, frozenset())
        if not later:
            return DeliveryOutcome()
        self._have[pending.id] = have | set(to) - set(later)
        if len(self._have) > MAX_REMEMBERED:
            del self._have[next(iter(self._have))]
        return DeliveryOutcome(f"the mail server refused {_which(pending, later)} temporarily")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _which(delivery: OutgoingDelivery, some: list[str]) -> str:
    """Name recipients by their position, since errors must not contain addresses."""
    known = recipients(delivery.place.address)
    places = ", ".join(str(place) for place, each in enumerate(known, 1) if each in some)
    return f"{'recipient' if len(some) == 1 else 'recipients'} {places} of {len(known)}"


class _Attempt:
    """One conversation with a mail server, which another thread can cut off."""

    def __init__(self, place: SinkTarget) -> None:
        self._place = place
        self._line: socket.socket | None = None
        self._over = False

    def send(self, message: EmailMessage, to: list[str]) -> dict[str, int]:
        """Send the e-mail; returns the refused recipients with their status codes."""
        assert self._place.server is not None
        scheme, host, port, user = mail_server(self._place.server)
        connection = dial.connect(host, port, TIMEOUT_SEC, allow_private=self._place.allow_private)
        with connection, connection.dup() as self._line:  # a second handle, since TLS detaches the first
            if self._over:
                raise TimeoutError  # the timeout is recorded: sending now would send it twice
            if scheme == "smtps":
                connection = ssl.create_default_context().wrap_socket(connection, server_hostname=host)
            with _Conversation(connection, host) as server:
                server.ehlo()
                if scheme == "smtp" and server.has_extn("starttls"):
                    server.starttls(context=ssl.create_default_context())
                    server.ehlo()
                elif scheme == "smtp" and user is not None:
                    raise ValueError("the mail server offers no encryption, so the password was not sent")
                if user is not None:
                    server.login(user, self._place.secret or "")
                return {each: code for each, (code, _) in server.send_message(message, to_addrs=to).items()}

    def cut(self) -> None:
        """Close the connection, or close it as soon as it opens."""
        self._over = True
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)


class _Conversation(smtplib.SMTP):
    """SMTP over a connection opened by `dial`, which checks addresses."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        super().__init__(timeout=TIMEOUT_SEC)
        self._host = host  # the name that the certificate must have
        self.sock = connection
        code, answer = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, answer)


def email_message(delivery: OutgoingDelivery, now: float) -> EmailMessage:
    """The notification as an e-mail; its id is the same at each attempt."""
    message = EmailMessage()
    message["Subject"] = f"Shiftwork: {line(delivery.notification)}"[:MAX_SUBJECT_LENGTH]
    message["From"] = delivery.place.sender or ""
    message["To"] = ", ".join(recipients(delivery.place.address))
    message["Date"] = formatdate(now)
    message["Message-ID"] = f"<{delivery.id}@shiftwork>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(paragraphs(delivery.notification))
    return message


def _why(error: Exception) -> str:
    """Our own text, since a server's reply can contain the message."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "the mail server refused every recipient"
    if isinstance(error, smtplib.SMTPResponseException):
        login = isinstance(error, smtplib.SMTPAuthenticationError)
        return f"the mail server answered {error.smtp_code}" + (" to the password" if login else "")
    if isinstance(error, ssl.SSLError):
        return "the mail server's certificate is invalid"
    if isinstance(error, dial.NotPublic) or type(error) is ValueError:
        return str(error)
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return f"no connection to the mail server: {os.strerror(error.errno).lower()}"
    return f"unexpected answer from the mail server ({type(error).__name__})"
