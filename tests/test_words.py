"""One word for each thing: what was once called otherwise does not come back, and the glossary says each word once."""

import re
from collections import Counter
from pathlib import Path

import pytest

from shiftwork.core import errors
from tests.test_repository import ROOT, files

SIZES = "body_bytes|result_bytes|text_chars|depth|batch|dependencies|step_bytes|step_inline_bytes|artifact_bytes|steps"

INSTEAD = {
    r"\bmin_workers\b|\bworker_timeout_sec\b|\bworker_preference\b": "agents: a worker is the program that runs one",
    r"\bfair_share\.buckets\b|\blane\.bucket\b|\bkey\.bucket\b": "shares: a bucket is S3's, or a histogram's",
    r"\breserved(_usd)?\b": "granted",
    r"\bcost_limit\b|--max-cost\b": "estimated_cost",
    r"\bNotice\b|\bnotices_sec\b|\bimport notices\b": "notifications",
    r"\bdeliveries redrive\b|\bsink.redriven\b": "redeliver: what is redriven are dead letters",
    r"(?<!a\.)\bwait_event\b|\bwait\.event\b": "signals: events are rows of the log",  # a column of PostgreSQL's own
    r"\bbeat_runtime\b|\bbeat_at\b|\blast_beat\b": "heartbeats",
    r"\be\.(child|parent)\b|\bedge\[.(child|parent).\]": "dependent and dependency: a parent has spawned subtasks",
    r"\bmax_children\b|\b(ctx|context)\.children\b": "subtasks",
    rf"\blimits\.({SIZES})\b": "bounds: limits are those of providers",
    r"\bshiftwork (token|artifact) |\balerts ack\b|\bsinks change\b|\bchange_sink\b": "the words of verbs and paths",
    r"\beffects resolve .*--(not-)?done\b": "--happened: a step or an effect is done",
    r"\bGiveBack\b": "Release",
}

EXEMPT = {ROOT / "CHANGELOG.md", Path(__file__).resolve()}

FAMILIES = {errors.ShiftworkError, errors.InputError, errors.ConflictError}
"""Their names say who can mend it; their codes are for errors that have none of their own."""


@pytest.fixture(scope="module")
def text() -> dict[str, str]:
    kinds = {".py", ".sql", ".md", ".js", ".toml", ".yaml"}
    chosen = [path for path in files() if path.suffix in kinds and path not in EXEMPT]
    return {str(path.relative_to(ROOT)): path.read_text() for path in chosen}


@pytest.mark.parametrize("old", INSTEAD, ids=INSTEAD.values())
def test_an_old_word_does_not_come_back(text: dict[str, str], old: str) -> None:
    assert {name: found[0] for name, all_ in text.items() if (found := re.search(old, all_))} == {}


def test_an_error_is_called_as_its_code_is() -> None:
    def words(kind: type[errors.ShiftworkError]) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ShiftworkError)
    ]
    assert {kind.__name__: kind.code for kind in kinds if kind not in FAMILIES and words(kind) != kind.code} == {}


def test_the_glossary_says_each_word_once() -> None:
    said = Counter(re.findall(r"\*\*([^*]+)\*\*:", (ROOT / "docs" / "glossary.md").read_text()))
    assert [word for word, times in said.items() if times > 1] == []
    assert len(said) > 80
