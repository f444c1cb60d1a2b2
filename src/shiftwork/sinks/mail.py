"""Sinks that are read as letters: one e-mail for each notification, by the mail server that the sink names."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import smtplib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import formatdate

from shiftwork.core import notifications
from shiftwork.policy.delivery import Outcome
from shiftwork.queue.notification.deliveries import Parcel
from shiftwork.queue.notification.sinks import Place, mail_server, recipients
from shiftwork.sinks import guard

TIMEOUT_SEC = 10.0
"""For each word of the server; all of a letter may take so much again."""

AT_ONCE = 32
LONGEST_SUBJECT = 150


class Post:
    """Sends letters from threads of its own, since the library for it waits."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "shiftwork-mail")

    async def send(self, parcel: Parcel, now: float) -> Outcome:
        """One attempt."""
        attempt = _Attempt(parcel.place)
        work = functools.partial(attempt.send, letter(parcel, now))
        try:
            async with asyncio.timeout(2 * TIMEOUT_SEC):
                await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            return Outcome("the mail server did not answer in time")
        except (OSError, smtplib.SMTPException, ValueError) as error:
            return Outcome(_why(error))
        finally:
            attempt.cut()
        return Outcome()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Attempt:
    """One conversation with a mail server, which can be cut off from outside of its thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._socket: socket.socket | None = None
        self._conversation: _Conversation | None = None

    def send(self, message: EmailMessage) -> None:
        assert self._place.server is not None
        scheme, host, port, user = mail_server(self._place.server)
        self._socket = guard.connect(host, port, TIMEOUT_SEC, allow_private=self._place.allow_private)
        if scheme == "smtps":
            self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
        with _Conversation(self._socket, host) as server:
            self._conversation = server
            server.ehlo()
            if scheme == "smtp" and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
                server.ehlo()
            elif scheme == "smtp" and user is not None:
                raise ValueError("the mail server offers no encryption, and a password is not sent without")
            if user is not None:
                server.login(user, self._place.secret or "")
            server.send_message(message)

    def cut(self) -> None:
        """Whatever its thread still waits for ends now."""
        current = self._socket if self._conversation is None else self._conversation.sock
        if current is not None:
            with contextlib.suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)


class _Conversation(smtplib.SMTP):
    """SMTP over a connection that was made by our own rules."""

    def __init__(self, connection: socket.socket, host: str) -> None:
        super().__init__(timeout=TIMEOUT_SEC)
        self._host = host  # whose certificate is asked for
        self.sock = connection
        code, answer = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, answer)


def letter(parcel: Parcel, now: float) -> EmailMessage:
    """The notification as a letter; its id is the same at each attempt."""
    message = EmailMessage()
    message["Subject"] = f"Shiftwork: {notifications.line(parcel.notification)}"[:LONGEST_SUBJECT]
    message["From"] = parcel.place.sender or ""
    message["To"] = ", ".join(recipients(parcel.place.address))
    message["Date"] = formatdate(now)
    message["Message-ID"] = f"<{parcel.id}@shiftwork>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notifications.paragraphs(parcel.notification))
    return message


def _why(error: Exception) -> str:
    """Our own words: a server may repeat what it was told."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "the mail server refused every recipient"
    if isinstance(error, smtplib.SMTPResponseException):
        login = isinstance(error, smtplib.SMTPAuthenticationError)
        return f"the mail server answered {error.smtp_code}" + (" to the password" if login else "")
    if isinstance(error, ssl.SSLError):
        return "the mail server's certificate is not good"
    if isinstance(error, guard.NotPublic) or type(error) is ValueError:
        return str(error)
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return f"no connection to the mail server: {os.strerror(error.errno).lower()}"
    return f"the mail server did not answer as it should ({type(error).__name__})"
