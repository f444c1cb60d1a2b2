"""The queue of a server somewhere else: the verbs of `Queue` over HTTP, to be awaited or to block."""

from shiftwork.client.client import Client, open_queue
from shiftwork.operation.interface import AnyQueue

__all__ = ["AnyQueue", "Client", "open_queue"]
