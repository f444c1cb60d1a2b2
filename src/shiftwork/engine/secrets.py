"""Secrets at rest: encrypts those of sinks and hooks if the process has a key.

A key file has one key per line, each 32 random bytes in URL-safe base64. The first key encrypts and all decrypt, so
adding a new first line changes the key. Without a key file, secrets are stored unencrypted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from shiftwork.model.errors import InputError, StoreUnsuitable

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

VARIABLE = "SHIFTWORK_SECRETS_KEY_FILE"
SEALED = "fernet:"
"""The prefix of encrypted secrets; no secret that we create or accept begins with it."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class SecretBox:
    """Encrypts and decrypts secrets; without keys it passes them through."""

    def __init__(self, keys: MultiFernet | None = None) -> None:
        self._keys = keys

    def seal(self, secret: str | None) -> str | None:
        if secret is None or self._keys is None:
            return secret
        return SEALED + self._keys.encrypt(secret.encode()).decode()

    def open(self, kept: str | None) -> str | None:
        if kept is None or not kept.startswith(SEALED):
            return kept
        if self._keys is None:
            raise StoreUnsuitable("a secret is encrypted, and this process has no key for it", hint=_HINT)
        from cryptography.fernet import InvalidToken  # noqa: PLC0415  # only if there are keys

        try:
            return self._keys.decrypt(kept.removeprefix(SEALED).encode()).decode()
        except InvalidToken:
            raise StoreUnsuitable("a secret was encrypted with another key", hint=_HINT) from None


_HINT = f"Name the key file it was encrypted with: `serve --secrets-key FILE` or {VARIABLE}; or give the secret again."


def open_secret_box(path: str | None) -> SecretBox:
    """Load the keys of the file named here or by SHIFTWORK_SECRETS_KEY_FILE; without a file there are no keys."""
    chosen = path or os.environ.get(VARIABLE) or None
    return SecretBox() if chosen is None else SecretBox(_keys_of(Path(chosen)))


def _keys_of(path: Path) -> MultiFernet:
    try:
        from cryptography.fernet import Fernet, MultiFernet  # noqa: PLC0415  # an optional extra
    except ImportError:
        raise InputError(
            "encrypted secrets need cryptography, which is not installed", hint="pip install 'shiftwork[secrets]'"
        ) from None
    try:
        with path.open("rb") as file:
            mode, lines = os.fstat(file.fileno()).st_mode, file.read(65_536).split()
    except OSError as error:
        raise InputError(f"the key file {path} cannot be read: {error.strerror}", where=str(path)) from None
    if mode & _OTHERS:
        raise InputError(
            f"other users can access the key file {path}", where=str(path), hint="Restrict it to its owner: chmod 600."
        )
    try:
        keys = [Fernet(line) for line in lines]
    except ValueError:
        keys = []
    if not keys:
        raise InputError(
            f"{path} contains no key",
            where=str(path),
            hint="A key is 32 random bytes in URL-safe base64, one per line.",
        )
    return MultiFernet(keys)
