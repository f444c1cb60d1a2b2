"""The roles of an MCP client."""

from typing import Literal

Role = Literal["worker", "submitter", "all"]
ROLES: tuple[Role, ...] = ("worker", "submitter", "all")
