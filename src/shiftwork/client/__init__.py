"""The HTTP client: the operations of `Queue` on a remote server, async or blocking."""

from shiftwork.client.client import Client, open_queue
from shiftwork.operation.interface import AnyQueue

__all__ = ["AnyQueue", "Client", "open_queue"]
