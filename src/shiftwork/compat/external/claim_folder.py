"""Claims in a workspace whose tasks scripts also claim, in the files of a `.loki` folder."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shiftwork.compat.external.adoption import attach, unclaimed
from shiftwork.compat.external.loki_folder import Folder, ScriptClaim, by_agent, claim_alongside_scripts
from shiftwork.engine.claim import ClaimAnswer
from shiftwork.engine.claim_hooks import Look, around_claims
from shiftwork.model.errors import AgentUnavailable, AgentUnregistered, InputError
from shiftwork.operation.local import Call
from shiftwork.settings.model import Settings


@around_claims
async def claim_with_folder(call: Call, settings: Settings, look: Look) -> ClaimAnswer:
    if settings.claim_folder is None:
        return await look()
    folder = Folder(Path(settings.claim_folder), settings.lock_timeout_sec)
    return await claim_alongside_scripts(folder, functools.partial(_adopt, call), look, call.engine.store.now)


async def _adopt(call: Call, claims: Sequence[ScriptClaim]) -> None:
    """Attach the claims of scripts, so that no agent gets these tasks."""
    free = await call.read(lambda tx: unclaimed(tx, call.workspace, claims)) if claims else []
    for agent_id, theirs in by_agent(free).items():
        # An agent with no capacity or an invalid name must not block the others.
        with suppress(AgentUnavailable, AgentUnregistered, InputError):
            await call.run_each_time(attach, call.workspace, agent_id, theirs)
