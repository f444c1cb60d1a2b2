"""One word per thing: replaced words do not return, and the glossary defines each word once."""

import re
from collections import Counter
from pathlib import Path

import pytest

from shiftwork.model import errors
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
    r"\bhow_to_mend\b|\bmend *=|[\"'`.]mend[\"'`]": "hint",
    r"\btell_of\b|\btell_of_claim\b|\bwork\.tell\b": "emit and emit_for",
    r"\b(take_up|let_through|hand_over|take_turn|look_at_room|tend)\(": "load_locked, advisory_lock ...",
    r"\bfor_ever\b": "forever",
    r"\b(Purse|LaneBook|SettingsBook|QuotaBook)\b": "BudgetAllocator, LaneRegistry, SettingsCache, QuotaCache",
    r"\b(Courier|Depot|FolderDepot|BucketDepot|Seat|Teller|Deed|Vault|Parcel)\b": "NotificationSender, BlobStore ...",
    r"\b(Gatekeeper|Complaints|Sight|PulseThread)\b": "Authenticator, ErrorThrottle, StreamState, HeartbeatThread",
    r"\bclass (Work|Ends|Once|Told|Said|Kept|Held|Hold|Holder|Which|Wants|Look|Looks)\b": "what it is: UnitOfWork ...",
    r"\b_?(MOST|LARGEST|LONGEST|SLOWEST|DEEPEST)_(?!URGENT\b)[A-Z]": "MAX_",
    r"\b_?(LEAST|SHORTEST|FEWEST|SMALLEST)_[A-Z]": "MIN_",
    r"(?m)^\s*# -{2,} .*-{5,}$": "a file per topic, without banners",
    r"\bclass (Door|Doors|Ask)\b|\bDOORS\b|\bself\.(house|desk)\b|\bask\.(house|view)\b": "Endpoint, RequestContext",
    r"\bDuty\b|\bduty:|shiftwork_duty|\bshiftwork duties\b": "maintenance, and a job of it",
    r"\bIN_HAND\b": "SLOT_STATES",
    r"\bnoqa: A002\b": "nothing: the rule is off",
    r"\b(tell_completed|complete_lone|know_lone|may_be_lone|lone_ends)\b": "log_completed, complete_plain_many ...",
    r"\b(ShortWay|short_way|for_the_dead|of_the_dead|let_others|told_by_others)\b": "FastPath, yield_to_loop ...",
    r"\b(read_books|printed_aside|Replacing|share_policy|call_facts)\b": "stored totals, reserved_stdout, BelowMinimum",
    r"\bstore\.hearing\b|\bworker\.outliving\b|\b(add|finish|list)_dut(y|ies)\b": "stalls, run_through_exits, jobs",
}

PLAIN = {
    r"\b(some|no|every|any)body\b|\bwhoever\b": "someone, no one, everyone, anyone, or a noun",
    r"\bmend(s|ed)?\b(?!\")": "fix",
    r"\bfor ever\b": "forever",
    r"\b(is|was|are|were|be|been) (not )?told\b|\bbeside\b": "notified, shown, delivered; next to",
    r"\{(lite|pg):": "{sqlite: ...} and {postgres: ...}",
    r"(?<![.\w/])(courier|depot)\b(?!\.)": "notification sender, blob store",
    r"\bof late\b": "recently",
    r"\b(go|goes|went) on (without|behind)\b": "continue without, continue after",
    r"\bslot back\b": "free the slot",
    r"\b(is|are|was|were|be) taken back\b": "reclaimed",
    r"(?<!d)\balone task\b|\blone (task|dag)": "standalone task",
    r"\b(not|no longer) wanted any more\b|\bwas there already\b": "no longer needed, already exists",
    r"\brests? failed\b|\btakes? leave\b": "stays failed, deregisters",
    r"\bso (long|many|much|often) (a|as) (?=\w+ (is|takes|waits|runs)\b)": "this long, at most N, every N s",
    r"\"\"\"what the operations? on\b": "Implements the operations on ...",
    r"\"\"\"so (long|many|much|often)\b": "How long ..., the most ...",
    r"\b(know|knows|known|nothing) of (it|whom)\b|\bof whom\b|\bsaid by\b": "a sentence with a subject and a verb",
    r"\bnotified of (it|this|that|a command)\b": "it receives a command, it learns that ...",
    r"\btried again\b|\brests? until\b|\bheard of\b|\btaken over: ": "retried, paused until, seen, refused",
    r"\bas it lies\b|\bgoes off\b|\bgives way\b|\bmade anew\b": "as it is, rings, yields, created again",
    r"\bas it should be\b|\bAlone: (the|all|those)\b": "violations; without a subcommand: ...",
}
"""Words of another language's English, which stay out of source, statements and docs, in any case of letters."""

EXEMPT = {ROOT / "CHANGELOG.md", Path(__file__).resolve()}

FAMILIES = {errors.ShiftworkError, errors.InputError, errors.ConflictError}
"""Their names say who can fix it; their codes are for errors that have none of their own."""


@pytest.fixture(scope="module")
def text() -> dict[str, str]:
    kinds = {".py", ".sql", ".md", ".js", ".toml", ".yaml"}
    chosen = [path for path in files() if path.suffix in kinds and path not in EXEMPT]
    return {str(path.relative_to(ROOT)): path.read_text() for path in chosen}


@pytest.mark.parametrize("old", INSTEAD, ids=INSTEAD.values())
def test_replaced_word_does_not_return(text: dict[str, str], old: str) -> None:
    assert {name: found[0] for name, all_ in text.items() if (found := re.search(old, all_))} == {}


@pytest.mark.parametrize("old", PLAIN, ids=PLAIN.values())
def test_source_and_docs_are_written_in_plain_words(text: dict[str, str], old: str) -> None:
    written = ("src/", "docs/", "README", "ARCHITECTURE")
    source = {name: all_ for name, all_ in text.items() if name.startswith(written) and "/migrations/" not in name}
    assert {name: found[0] for name, all_ in source.items() if (found := re.search(old, all_, re.IGNORECASE))} == {}


def test_error_class_is_named_like_its_code() -> None:
    def words(kind: type[errors.ShiftworkError]) -> str:
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ShiftworkError)
    ]
    assert {kind.__name__: kind.code for kind in kinds if kind not in FAMILIES and words(kind) != kind.code} == {}


def test_glossary_defines_each_word_once() -> None:
    said = Counter(re.findall(r"\*\*([^*]+)\*\*:", (ROOT / "docs" / "glossary.md").read_text()))
    assert [word for word, times in said.items() if times > 1] == []
    assert len(said) > 80
