"""Answers about bridges."""

from __future__ import annotations

import msgspec

from shiftwork.queue.bridging import BridgeInfo


class BridgeList(msgspec.Struct, frozen=True):
    bridges: list[BridgeInfo]
