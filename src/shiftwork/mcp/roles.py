"""Which side of the queue an MCP client is on."""

from typing import Literal

Role = Literal["worker", "submitter", "all"]
ROLES: tuple[Role, ...] = ("worker", "submitter", "all")
