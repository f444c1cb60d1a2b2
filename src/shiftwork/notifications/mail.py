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
"""For each word of the server; all of a letter may take this much again."""

AT_ONCE = 32
MAX_SUBJECT_LENGTH = 150
MAX_REMEMBERED = 10_000
"""E-mails that some recipients have received and others get at a later attempt."""
_FOR_GOOD = 500
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
        """One attempt, for those who do not have the letter yet."""
        have = self._have.get(delivery.id, frozenset())
        to = [each for each in recipients(delivery.place.address) if each not in have]
        if not to:  # the sink's addresses are others than at the last attempt
            return self._record(delivery, to, {})
        attempt = _Attempt(delivery.place)
        work = functools.partial(attempt.send, letter(delivery, now), to)
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
        """The letter was taken for all but these. Who was refused for good is not tried again: the others have it."""
        later = [each for each in to if refused.get(each, _FOR_GOOD) < _FOR_GOOD]
        never = [each for each in to if refused.get(each, 0) >= _FOR_GOOD]
        if never:
            log.warning("notification %s: the mail server refused %s for good", pending.id, _which(pending, never))
        have = self._have.pop(pending.id, frozenset())
        if not later:
            return DeliveryOutcome()
        self._have[pending.id] = have | set(to) - set(later)
        if len(self._have) > MAX_REMEMBERED:
            del self._have[next(iter(self._have))]
        return DeliveryOutcome(f"the mail server refused {_which(pending, later)} for now")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _which(delivery: OutgoingDelivery, some: list[str]) -> str:
    """By their places in the sink's address, since no address is in an error."""
    known = recipients(delivery.place.address)
    places = ", ".join(str(place) for place, each in enumerate(known, 1) if each in some)
    return f"{'recipient' if len(some) == 1 else 'recipients'} {places} of {len(known)}"


class _Attempt:
    """One conversation with a mail server, which can be cut off from outside of its thread."""

    def __init__(self, place: SinkTarget) -> None:
        self._place = place
        self._line: socket.socket | None = None
        self._over = False

    def send(self, message: EmailMessage, to: list[str]) -> dict[str, int]:
        """With what the server has refused whom, where it took the letter for others."""
        assert self._place.server is not None
        scheme, host, port, user = mail_server(self._place.server)
        connection = dial.connect(host, port, TIMEOUT_SEC, allow_private=self._place.allow_private)
        with connection, connection.dup() as self._line:  # another handle, since TLS takes the first one for itself
            if self._over:
                raise TimeoutError  # recorded already: to send it now would be to send it twice
            if scheme == "smtps":
                connection = ssl.create_default_context().wrap_socket(connection, server_hostname=host)
            with _Conversation(connection, host) as server:
                server.ehlo()
                if scheme == "smtp" and server.has_extn("starttls"):
                    server.starttls(context=ssl.create_default_context())
                    server.ehlo()
                elif scheme == "smtp" and user is not None:
                    raise ValueError("the mail server offers no encryption, and a password is not sent without")
                if user is not None:
                    server.login(user, self._place.secret or "")
                return {each: code for each, (code, _) in server.send_message(message, to_addrs=to).items()}

    def cut(self) -> None:
        """Whatever its thread still waits for ends now; where nothing is connected yet, once it is."""
        self._over = True
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)


class _Conversation(smtplib.SMTP):
    """SMTP over a connection that was made by our own rules."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        super().__init__(timeout=TIMEOUT_SEC)
        self._host = host  # whose certificate is asked for
        self.sock = connection
        code, answer = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, answer)


def letter(delivery: OutgoingDelivery, now: float) -> EmailMessage:
    """The notification as a letter; its id is the same at each attempt."""
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
    """Our own words: a server may repeat our message."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "the mail server refused every recipient"
    if isinstance(error, smtplib.SMTPResponseException):
        login = isinstance(error, smtplib.SMTPAuthenticationError)
        return f"the mail server answered {error.smtp_code}" + (" to the password" if login else "")
    if isinstance(error, ssl.SSLError):
        return "the mail server's certificate is not good"
    if isinstance(error, dial.NotPublic) or type(error) is ValueError:
        return str(error)
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return f"no connection to the mail server: {os.strerror(error.errno).lower()}"
    return f"the mail server did not answer as it should ({type(error).__name__})"
