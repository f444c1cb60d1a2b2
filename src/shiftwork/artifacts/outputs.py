"""Artifacts named by results: they must exist, and are kept as long as the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shiftwork.artifacts import artifact_rows as artifacts
from shiftwork.artifacts.artifact_rows import ArtifactUse
from shiftwork.engine.unit_of_work import UnitOfWork
from shiftwork.model import ids
from shiftwork.model.errors import UnknownReference
from shiftwork.model.outcome import Outcome, Token

Named = Mapping[Token, Sequence[str]]
"""The artifacts that each claim's result names."""


async def refuse_unknown(work: UnitOfWork, named: Named) -> dict[Token, Outcome]:
    """The error outcomes of results that name a missing artifact; these results change nothing."""
    workspace = work.caller.workspace
    assert workspace is not None
    held = await artifacts.hold(work.tx, workspace, [id_ for each in named.values() for id_ in each])
    refused = {}
    for token, each in named.items():
        try:
            artifacts.refuse_unknown(held, each, "artifacts")
        except UnknownReference as error:
            refused[token] = Outcome(ids.show_task(token.id), error=error)
    return refused


async def use(work: UnitOfWork, named: Named, outcomes: Mapping[Token, Outcome]) -> None:
    """Add references to the artifacts of all accepted results."""
    workspace = work.caller.workspace
    assert workspace is not None
    taken = {token: each for token, each in named.items() if outcomes[token].error is None}
    uses = [ArtifactUse(token.id, "result", id_) for token, each in taken.items() for id_ in dict.fromkeys(each)]
    await artifacts.use(work.tx, work.caller, workspace, uses)
