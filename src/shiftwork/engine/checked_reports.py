"""Results and failures under their claims: checked, and encoded as the JSON text to store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shiftwork.model import check
from shiftwork.model.bounds import MAX_NAME
from shiftwork.model.errors import InputError
from shiftwork.model.keys import Key
from shiftwork.model.outcome import Token
from shiftwork.model.references import ARTIFACT
from shiftwork.model.reports import TaskFailure, TaskResult
from shiftwork.model.task import MAX_REPORTED_USD, NO_USAGE, NewVerdict, Usage, Verdict
from shiftwork.providers import prices
from shiftwork.settings.model import Bounds
from shiftwork.validation.policy import is_report

_BOUNDS = Bounds()


class CheckedResult(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A result that can be stored."""

    token: Token
    result: TaskResult
    stored: str = "{}"
    request_id: str | None = None
    """The request of the call that submitted it, if calls are joined into one batch."""

    @property
    def is_bare(self) -> bool:
        """Whether it has no usage, no verdict and no artifacts."""
        result = self.result
        return result.usage is None and result.verdict is None and not (result.artifacts and self.artifacts)

    @property
    def usage(self) -> Usage:
        return self.result.usage or NO_USAGE

    @property
    def reported(self) -> bool:
        """Whether the result has a decision report."""
        return is_report(self.result.decision_report)

    @property
    def artifacts(self) -> Sequence[str]:
        """The references that name artifacts."""
        return [ref for ref in self.result.artifacts if ref.startswith(ARTIFACT)] if self.result.artifacts else ()


class CheckedFailure(NamedTuple):
    """A failure that can be stored, reported by an agent or found by the queue."""

    token: Token
    failure: TaskFailure
    stored: str | None = None
    verdict: Verdict | None = None

    @property
    def usage(self) -> Usage:
        return self.failure.usage or NO_USAGE

    @property
    def named(self) -> Key:
        """The provider, account and model it concerns, as far as the agent reported them."""
        return Key(self.failure.provider, self.failure.account, self.failure.model)


def check_result(token: Token, found: TaskResult) -> CheckedResult:
    """Check a report before it joins a batch: an invalid one must not fail its neighbours."""
    fields: dict[str, Any] = {} if found.data is None else {"data": found.data}
    if found.text is not None:
        fields["text"] = _words(found.text)
    artifacts = [] if found.artifacts == () else _references(found.artifacts)
    if artifacts:
        fields["artifacts"] = artifacts
    if found.decision_report is not None:
        fields["decision_report"] = _object(found.decision_report)
    stored = to_json(fields, "result") if fields else "{}"
    if found.usage is not None or found.verdict is not None or found.artifacts is None:
        verdict = None if found.verdict is None else check_verdict(found.verdict)
        found = msgspec.structs.replace(found, artifacts=artifacts, usage=check_usage(found.usage), verdict=verdict)
    return CheckedResult(token, found, stored)


def check_failure(token: Token, found: TaskFailure) -> CheckedFailure:
    check.text(found.reason, "reason", MAX_NAME)
    check.text(found.error, "error")
    stored = None if found.data is None else to_json({"data": found.data}, "data")
    for place in ("provider", "account", "model"):
        if (name := getattr(found, place)) is not None:
            check.name(name, place)
    if found.usage is not None:
        found = msgspec.structs.replace(found, usage=check_usage(found.usage))
    return CheckedFailure(token, found, stored)


def check_verdict(verdict: NewVerdict | Mapping[str, Any]) -> NewVerdict:
    read = check.read(verdict, NewVerdict, "verdict")
    check.text(read.note, "verdict.note")
    if read.evidence is not None:
        to_json(read.evidence, "verdict.evidence")
    return read


def check_usage(found: Usage | Mapping[str, Any] | None) -> Usage | None:
    """Add the cost if only tokens and model are reported. Call it before any transaction: prices are read from a
    file.
    """
    if found is None:
        return None
    usage = check.read(found, Usage, "usage")
    if usage.cost_usd is not None or usage.model is None or not (usage.tokens_in or usage.tokens_out):
        return usage
    cost = prices.cost_usd(usage.model, usage.tokens_in, usage.tokens_out, cached=usage.tokens_cached)
    return msgspec.structs.replace(usage, cost_usd=min(cost, MAX_REPORTED_USD))


def to_json(value: Any, where: str) -> str:
    return check.to_json(value, _BOUNDS.result_bytes, _BOUNDS, where)


def _words(value: object) -> str:
    """Text without a length limit of its own: the whole result has one."""
    if not isinstance(value, str):
        raise InputError(f"expected text, got {type(value).__name__}", where="text")
    return value


def _references(value: object) -> list[str]:
    """Check that each is a name; a string is not taken for a list of letters."""
    if value is None:
        return []
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InputError(f"expected a list of references, got {type(value).__name__}", where="artifacts")
    return [check.name(ref, f"artifacts[{place}]") for place, ref in enumerate(value)]


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"expected an object, got {type(value).__name__}", where="decision_report")
    return value
