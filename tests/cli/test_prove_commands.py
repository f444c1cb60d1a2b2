"""A run of `prove` or `soak` ends early when a signal asks for it, and not otherwise."""

import asyncio
import os
import signal

import pytest

from shiftwork.cli.prove_commands import interruptible


def test_signal_interrupts_a_run() -> None:
    async def run() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        interruptible(run())


def test_unexpected_cancellation_is_an_error_and_not_an_interruption() -> None:
    async def run() -> None:
        part = asyncio.get_running_loop().create_future()
        part.cancel()
        await part

    with pytest.raises(RuntimeError, match="cancelled by itself"):
        interruptible(run())
