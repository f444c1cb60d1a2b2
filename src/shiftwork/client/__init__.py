"""The queue of a server somewhere else: the verbs of `Queue` over HTTP, to be awaited or to block."""

from shiftwork.client.client import Client
from shiftwork.client.opening import AnyQueue, open_queue
from shiftwork.client.sync import SyncClient

__all__ = ["AnyQueue", "Client", "SyncClient", "open_queue"]
