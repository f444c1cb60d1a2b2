"""Every place that parses or matches callers' text, with inputs that would slow a careless implementation down."""

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

import shiftwork
from shiftwork.cli import params
from shiftwork.compat import loki_breaker_file
from shiftwork.engine import fingerprint
from shiftwork.model import check, events, globs, graph, ids, keys, references
from shiftwork.notifications import policy as notifications
from shiftwork.notifications.model import SinkFilter
from shiftwork.notifications.webhooks import _retry_after
from shiftwork.providers import provider_limits, reset_times
from shiftwork.search import policy as search
from shiftwork.server import compression, event_stream
from shiftwork.settings import resolve
from shiftwork.settings.model import Bounds, Guard
from shiftwork.task_types import policy as type_policy
from shiftwork.triggers import policy as triggers
from shiftwork.triggers import schedule_policy, templates
from shiftwork.triggers.model import Cron, DagEnds
from shiftwork.validation import patterns
from shiftwork.validation import policy as verdict
from shiftwork.validation import schema as schemas
from shiftwork.views import view
from shiftwork.waits import policy as guard

SOURCE = Path(shiftwork.__file__).parent
MATCHERS = frozenset({"re", "fnmatch", "difflib", "shlex", "cronsim", "jsonschema_rs"})
READERS = frozenset({"fromisoformat", "strptime", "loads", "Decimal", "parsedate_to_datetime", "literal_eval"})
"""Modules that match or parse text, and functions that do, wherever they come from."""

PUMPS = (
    *("a", " ", "0", "{", "}", "\\", "-", ".", "/", ":", "=", "é", "\n", "_", ",", '"', "'", "(", "%", "*", "~", "@"),
    *("a ", "0.", "a.", ": ", "\\u0000", "\\ud800", "{{", "{{ ", "%2", "a/", "://a", "**/", "00", "a-", "T0", "\t"),
)
"""What a text is filled with; matchers that go back in it do so at one of these."""


class Reader(NamedTuple):
    """One function that reads callers' text, and inputs of any size for it."""

    call: Callable[[Any], object]
    makers: tuple[Callable[[int], Any], ...]
    largest: int = 32_000
    """So much of it is given; less where no more can come there."""


class Pattern(NamedTuple):
    """A regular expression: prefixes after which it keeps matching, and the most text it gets."""

    prefixes: tuple[str, ...] = ()
    largest: int = 32_000


class NoCaller(NamedTuple):
    """A place that no caller's text reaches."""

    because: str


def pumped(*prefixes: str, suffix: str = "!") -> tuple[Callable[[int], str], ...]:
    """Return texts that begin with one of these and repeat the same characters."""
    return tuple(
        lambda n, prefix=prefix, pump=pump: (prefix + pump * n)[: max(n, len(prefix))] + suffix
        for prefix in ("", *prefixes)
        for pump in (*PUMPS, *prefixes)
    )


def _refused(call: Callable[[Any], object]) -> Callable[[Any], object]:
    """A refusal is a valid outcome, too."""

    def answered(value: Any) -> object:
        try:
            return call(value)
        except Exception as error:  # noqa: BLE001  # whatever it says, it said it in time
            return error

    return answered


_NOW = 1_800_000_000.0


def _cron(text: str) -> object:
    cron = Cron(at=text[:200], zone="America/New_York")
    schedule_policy.check(cron)
    return schedule_policy.due(cron, _NOW - 20 * 365 * 86_400, _NOW)


_CRONS = ("* * 31 2 *", "0 0 29 2 1", "*/1 * 29 2 1", "* * 29 2 1#5", "59 23 L 2 *", "0 2 29 2 0", "* * * * *")


def _bomb(n: int, keyword: str = "anyOf") -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n // 80)}
    return {"$defs": {**defs, f"d{n // 80}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _tower(times: int, context: Callable[[Any], Any]) -> Any:
    inner: Any = {"type": "integer"}
    for _ in range(times):
        inner = context(inner)
    return inner


def _checked(asked: Any) -> object:
    schemas._known.cache_clear()  # what was looked through before is not measured
    patterns.measure.cache_clear()
    verdict.check_schema(asked)
    return None


SCHEMAS: tuple[Callable[[int], Any], ...] = (
    _bomb,
    lambda n: _bomb(n, "allOf"),
    lambda n: {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n // 40)}, "$ref": "#/$defs/d0"},
    lambda n: {"anyOf": [{"const": i} for i in range(n // 20)]},
    lambda n: {"properties": {f"p{i}": {"type": "integer"} for i in range(n // 30)}},
    lambda n: {"enum": list(range(n // 7))},
    lambda n: {"patternProperties": {f"^{i}(a{{1,90}}){{1,9}}": True for i in range(n // 30)}},
    lambda n: {"allOf": [{"pattern": r"\s\w\d" * 5 + str(i)} for i in range(n // 60)]},
    lambda n: {"pattern": r"\w" * (n // 2)},
    lambda n: {"pattern": "(" * (n // 2)},
    lambda n: {"pattern": "a{1,999}" * (n // 8)},
    lambda n: _tower(min(n // 60, 20), lambda inner: {"anyOf": [inner], "unevaluatedProperties": inner}),
    lambda n: _tower(min(n // 60, 60), lambda inner: {"items": inner, "uniqueItems": True}),
    lambda n: {
        "$defs": {
            f"d{i}": {"properties": {c: {"$ref": f"#/$defs/d{i * 7 % 50}"} for c in "abcd"}} for i in range(n // 99)
        },
        "$ref": "#/$defs/d0",
    },
    lambda n: {"$id": "urn:a", "items": {"$ref": "urn:a#" + "/a" * (n // 2)}},
    lambda n: {"$ref": "http://[" + "a" * n},
)

VALIDATED: tuple[tuple[Any, Callable[[int], Any]], ...] = (
    ({"items": {"enum": [f"v{i}" for i in range(3_000)]}}, lambda n: ["w"] * (n // 4)),
    ({"items": {"enum": list(range(3_000))}}, lambda n: [2_999.0] * (n // 7)),
    ({"items": {"enum": [{"a": i} for i in range(3_000)]}}, lambda n: [{"a": 2_999}] * (n // 11)),
    ({"uniqueItems": True}, lambda n: [10**25 + i for i in range(n // 27)]),
    ({"items": {"uniqueItems": True}}, lambda n: [[{"a": [i] * 9 + [j]} for j in range(14)] for i in range(n // 600)]),
    (
        _tower(40, lambda inner: {"items": inner, "uniqueItems": True}),
        lambda n: _tower(40, lambda inner: [inner] * (2 if n > 9_000 and inner == {"type": "integer"} else 1)),
    ),
    ({"items": {"multipleOf": 5e-324}}, lambda n: [1.7e308] * (n // 8)),
    ({"items": {"contains": {"const": 9}}}, lambda n: [[1] * 100] * (n // 200)),
    ({"items": {"type": "string"}}, lambda n: list(range(n // 6))),
    ({"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]}, lambda n: list(range(n // 6))),
    ({"items": {"anyOf": [{"const": i} for i in range(100)]}, "uniqueItems": True}, lambda n: list(range(n // 6))),
    ({"pattern": "[ab]*a[ab]{100}c"}, lambda n: ("aababbbab" * n)[:n]),
    ({"items": {"pattern": "a" + ".?" * 100 + "!"}}, lambda n: ["abé" * 10] * (n // 34)),
    (
        {"patternProperties": {f"[ab]*a[ab]{{{i}}}c": True for i in range(10, 40)}},
        lambda n: {"ab" * i: 1 for i in range(n // 99)},
    ),
    ({"propertyNames": {"enum": [f"k{i}" for i in range(3_000)]}}, lambda n: {f"p{i}": 1 for i in range(n // 9)}),
    ({"items": {"required": [f"k{i}" for i in range(3_000)]}}, lambda n: [{"k1": 1}] * (n // 9)),
    ({"items": {"dependentSchemas": {f"k{i}": True for i in range(2_000)}}}, lambda n: [{"k1": 1}] * (n // 9)),
    (
        _tower(4, lambda inner: {"anyOf": [inner], "unevaluatedProperties": inner}),
        lambda n: {f"p{i}": i for i in range(n // 10)},
    ),
    (
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": [c]} for c in "xy"]},
        lambda n: _tower(min(n // 400, 60), lambda inner: {"a": inner}),
    ),
    ({"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}, "unevaluatedItems": False}, lambda n: [[]] * (n // 3)),
    (_bomb(800), lambda n: [1] * (n // 2)),
    (_bomb(3_200), lambda n: [1] * (n // 2)),
)
"""Schemas, some of which are refused today and stored in old databases, with data that makes them work hard."""


def _graph(n: int) -> dict[str, list[str]]:
    """A chain that closes at its end, and each node with many others above it."""
    size = max(2, n // 40)
    return {str(i): [str((i + 1) % size), *(str((i * j) % size) for j in range(5))] for i in range(size)}


_HEADERS = pumped("v1,", "sha256=", "v0=", "t=")
_FAILURES = pumped(
    "retry-after", "rate limit ", "429 ", "try again in ", "resets at ", '{"type":"error","message":"', "File /a/"
)


def _filled(text: str) -> object:
    templates.check_template(text, {})
    return templates.fill(text, {})


def _measured(text: str) -> object:
    patterns.measure.cache_clear()
    return patterns.measure(text)


def _signed(text: str) -> object:
    headers = {f"webhook-{name}": text for name in ("signature", "id", "timestamp")}
    return triggers.verify_signature("standard", "whsec_" + "A" * 32, headers, b"{}", _NOW)


READERS_OF_CALLERS: dict[str, Reader] = {
    "templates": Reader(_filled, pumped("{{ a", "}}")),
    "template values": Reader(
        lambda n: templates.fill(["{{ a }}"] * n, {"a": "x" * n}), (lambda n: n, lambda n: n // 2), largest=8_000
    ),
    "places in what happened": Reader(lambda text: templates.look_up({"a": [1]}, text), pumped("a.", "a.0.")),
    "file patterns": Reader(
        lambda pair: globs.Glob(pair[0]).matches(pair[1]),
        tuple(
            lambda n, part=part: ((part * n)[: n // 8] + "Z", "a/" * (n // 2))  # type: ignore[misc]  # bound above
            for part in ("*?", "*", "**/", "***/", "a*", "?", "*a**/")
        ),
        largest=8_000,
    ),
    "titles of DAGs": Reader(
        lambda pair: triggers.is_end(DagEnds(title=pair[0][:1000]), pair[1], "completed"),
        tuple(
            lambda n, part=part: (part * 1000 + "b", "a" * n)  # type: ignore[misc]  # bound above
            for part in ("*a", "*", "a", "[ab]", "*?", "*[!b]", "[")
        ),
    ),
    "conditions of triggers": Reader(
        lambda n: triggers.unmet(
            {f"payload.{'a.' * i}x": {"contains": "a" * i} for i in range(9)}, {"payload": {"x": "a" * n}}
        ),
        (lambda n: n,),
    ),
    "events chosen": Reader(lambda text: events.chosen(text, events.every_name()), pumped("task.", "*.")),
    "filters of sinks": Reader(
        lambda n: notifications.check_wants(SinkFilter(events=["task.*"] * 100, alerts=["*"] * n)),
        (lambda n: min(n, 100),),
    ),
    "guards": Reader(
        lambda n: guard.rule_for(
            [Guard(tag=str(i)) for i in range(n // 100)],
            guard.GuardFacts("x", None, ["a"] * 50, None, None, None),
        ),
        (lambda n: n,),
    ),
    "notifications": Reader(
        notifications.redact,
        pumped("eyJ", "eyJ-", "bearer ", "sk-", "-----BEGIN PRIVATE KEY-----", "password=", "://", "whsec_"),
    ),
    "breaker files": Reader(loki_breaker_file.parse, pumped("a", "a:", "a: 1", "'a", '"a', "{", " a:\n", "#")),
    "cron expressions": Reader(_cron, (*pumped("* ", "*/", "0-59/", "1,"), *(lambda _n, at=at: at for at in _CRONS))),
    "keys of cooldowns": Reader(keys.parse, pumped("model:", "provider:a,model:")),
    "references to artifacts": Reader(references.artifact_hash, pumped("artifact:sha256-")),
    "references to outputs": Reader(references.output_of, pumped("task:", "task:a:output")),
    "ids": Reader(lambda text: (ids.parse(text), ids.split_token(text)), pumped("task_", "dag_", "01", "a.")),
    "short ids": Reader(ids.parse_short, pumped("…", "...", "01", "ABCDEF")),
    "words of a search": Reader(
        _refused(lambda text: search.terms(text).fts5),
        pumped("a ", "' ", '" ', "\ufdfa", "a\u0301", "NEAR("),
        largest=500,
    ),
    "words of a task": Reader(
        lambda text: search.index_words([text], [text]),
        pumped("a ", "\\", "\\u00", "\ufdfa", "a\u0301"),
        largest=20_000,
    ),
    "unknown settings": Reader(resolve.nearest, pumped("retry.", "retry.max_delay_sec", "max_attempts")),
    "settings": Reader(
        lambda values_: resolve.resolve([resolve.Layer("test", values_)]),
        (
            lambda n: {"retry": {"a" * n: 1}},
            lambda n: {"max_attempts": 10 ** min(n, 4_000)},
            lambda n: {"allowed_types": ["a"] * n},
            lambda n: {"retry": {"schedule_sec": [1] * n}},
        ),
    ),
    "schemas that are taken": Reader(_checked, SCHEMAS),
    "data of schemas": Reader(
        lambda pair: verdict.against_schema(*pair),
        tuple(lambda n, asked=asked, make=make: (asked, make(n)) for asked, make in VALIDATED),  # type: ignore[misc]  # bound above
    ),
    "payloads of types": Reader(
        _refused(lambda pair: type_policy.check_payload("code", pair[1], msgspec.json.encode(pair[0]), "payload")),
        tuple(lambda n, asked=asked, make=make: (asked, {"a": make(n)}) for asked, make in VALIDATED),  # type: ignore[misc]  # bound above
    ),
    "patterns that are taken": Reader(
        _measured,
        pumped(r"\w", r"\s", "(a{1,90}){1,90}", "[ab]", "(?i)", "a|", r"\p{L}", "a{2}{3}", "(?=a)", ".?"),
    ),
    "texts of patterns": Reader(
        lambda pair: verdict.against_pattern(*pair),
        tuple(
            lambda n, pattern=pattern, text=text: (pattern, (text * n)[:n])  # type: ignore[misc]  # bound above
            for pattern in (
                "[ab]*a[ab]{100}c",
                "a" + ".?" * 100 + "!",
                "(a+)+$",
                "(.*a){12}b",
                r"\b\w+\b.*\b\w+!",
                "^.{1,500}$",
            )
            for text in ("ab", "aababbab", "a", "abé")
        ),
    ),
    "failures": Reader(lambda text: provider_limits.read(text, {"error": text}, _NOW, UTC), _FAILURES),
    "groups of failures": Reader(lambda text: fingerprint.fingerprint("x", "rate_limit", text), _FAILURES),
    "times in failures": Reader(lambda text: list(reset_times.find(text[:8_000], _NOW, UTC)), _FAILURES),
    "signatures": Reader(_signed, _HEADERS),
    "signatures of GitHub": Reader(
        lambda text: triggers.verify_signature("github", "a" * 32, {"x-hub-signature-256": text}, text.encode(), _NOW),
        _HEADERS,
    ),
    "secrets": Reader(lambda text: triggers.check_secret("standard", text), pumped("whsec_")),
    "JSON": Reader(
        lambda value: check.to_json(value, 10**8, Bounds(), "x"),
        (
            lambda n: "\\" * n,
            lambda n: "\\" * n + "u0000",
            lambda n: [[]] * n,
            lambda n: [None, [[]]] * (n // 4),
            lambda n: _tower(min(n, 500), lambda inner: [inner]),
            lambda n: {str(i): i for i in range(n // 8)},
            lambda n: [10 ** min(n, 4_000)],
        ),
    ),
    "dependencies": Reader(graph.find_cycle, (_graph, lambda n: {str(i): [str(i + 1)] for i in range(n // 8)})),
    "Accept-Encoding": Reader(compression.takes_gzip, pumped("gzip;", "gzip;q=0", "gzip;q")),
    "Last-Event-ID": Reader(event_stream.cursor_in, pumped("1-", "1")),
    "Retry-After of webhooks": Reader(lambda text: _retry_after(text, _NOW), pumped("Mon, ", "1 Jan ", "(")),
    "times of views": Reader(view.time_in, (*pumped("2026-01-01T00:00:00", "2026-"), lambda n: 10 ** min(n, 4_000))),
    "durations": Reader(params.duration, pumped("1", "1.")),
    "how long to wait": Reader(params.patience, pumped("1", "1.", "forever")),
    "times on the command line": Reader(params.when, pumped("1", "2026-01-01")),
    "words of the command line": Reader(params.word_or_json, pumped("[", '{"a":', '"', "1")),
}
for _name, _reader in READERS_OF_CALLERS.items():
    READERS_OF_CALLERS[_name] = _reader._replace(call=_refused(_reader.call))


_SQL = NoCaller("reads our own SQL, when a store is opened")
_ERROR_TEXTS = ("/a", "exit code ", '"type":"', '"message":"', "retry ", "0")
_TIMES = ("1", "1h", "2026-01-01T", "Jan 1", "mon")
_FAILURE_TEXT = 8_100
"""Of an error this much is looked at, from its beginning and its end."""

PLACES: dict[str, Pattern | NoCaller | str] = {
    "artifacts/blob_store.py:_PLACE": Pattern(("0" * 16 + "/",)),
    "batches/adapters.py:recent": NoCaller("reads the time of a batch in a provider's answer"),
    "cli/accounts.py:_WINDOW": NoCaller("reads an option of the one who runs the program"),
    **dict.fromkeys(
        ("databases/map_file.py:_NAME", "databases/map_file.py:read_map"),
        NoCaller("reads a file of the one who runs the program"),
    ),
    "prove/fleet_handlers.py:look": NoCaller("reads the file of an effect that the run itself wrote"),
    "prove/proxy.py:_LENGTH": NoCaller("reads requests of our own client"),
    "providers/quota_headers.py:_ANTHROPIC": Pattern(("anthropic-ratelimit-", "anthropic-ratelimit-input-tokens-")),
    "providers/quota_headers.py:_CODEX": Pattern(("x-codex-", "x-codex-primary-")),
    "providers/quota_headers.py:_OPENAI": Pattern(("x-ratelimit-", "x-ratelimit-limit-")),
    "providers/quota_headers.py:_UNIFIED": Pattern(("anthropic-ratelimit-unified-5h-", "a")),
    **dict.fromkeys((f"store/migrate.py:{name}" for name in ("_NEEDS", "_STATEMENT", "_TABLE")), _SQL),
    **dict.fromkeys((f"store/missing_migrations.py:{name}" for name in ("_BUILDS", "_CHANGES", "_CREATES")), _SQL),
    "compat/bridges/redis/foreign_orchestrator.py:TRACEPARENT": Pattern(("00-", "00-" + "1" * 32 + "-")),
    "a2a/card.py:load": NoCaller("reads a file of the one who runs the program"),
    "cli/params.py:_DURATION": Pattern(("1.",)),
    "cli/groups.py:_nearest": NoCaller("compares words that the one who runs the program typed"),
    "cli/params.py:when": "times on the command line",
    "cli/params.py:_parse": "words of the command line",
    "cli/params.py:_word": "words of the command line",
    "integrations/claude_agent_sdk/claude_run.py:tied_to_this_process": NoCaller("quotes the path of a program"),
    "integrations/claude_agent_sdk/transcript.py:open": NoCaller("reads what the worker kept in its own steps"),
    "cli/work_commands.py:_words": NoCaller("splits an option that the one who runs the program typed"),
    **dict.fromkeys(
        (f"config.py:{name}" for name in ("_PLACE", "_check", "_line_of", "parsed")),
        NoCaller("reads a file of the one who runs the program"),
    ),
    "client/executor.py:_HEADER": Pattern(("!",)),
    "worker/session_files.py:_SESSION": Pattern(("a",), largest=255),
    "worker/session_files.py:_WILD": NoCaller("reads a pattern of the one who runs the worker"),
    "worker/session_files.py:_place": NoCaller("reads a pattern and a folder of the one who runs the worker"),
    "wire/resource_metadata.py:_HOST": Pattern(("a.", "[1:")),
    "snapshots/snapshot_folder.py:_NAME": Pattern(("20260101T000000.",), largest=255),
    "snapshots/snapshot_folder.py:time_of": NoCaller("reads names that _NAME has matched"),
    "compat/loki_breaker_file.py:_LINE": Pattern(("a", '"a', "'a", "a:", "a: ")),
    "model/globs.py:_PARTS": Pattern(("**/", "*"), largest=1_000),
    "model/ids.py:_SHOWN": Pattern(("task_",)),
    "model/ids.py:_SHORT": Pattern(("…", "...", "ABCDEF")),
    "model/ids.py:_UUID": Pattern(("00000000-",)),
    "search/policy.py:_WORD": Pattern(("a", "é")),
    "search/policy.py:_ESCAPE": Pattern(("\\", "\\u", "\\u00")),
    "model/keys.py:_ESCAPE": Pattern(("%2",)),
    "model/references.py:_ARTIFACT": Pattern(("artifact:sha256-",)),
    "model/references.py:_OUTPUT": Pattern(("task:", "task:a:output")),
    "settings/resolve.py:load_profile": NoCaller("reads the profiles that come with the package"),
    "settings/resolve.py:nearest": "unknown settings",
    "triggers/templates.py:_NAMED": Pattern(("{{", "{{a")),
    "triggers/templates.py:_NAME": Pattern(("a",)),
    **{
        f"engine/fingerprint.py:{name}": Pattern(
            ("/a", "exit code ", '"type":"', '"message":"', "retry ", "0"), largest=2_000
        )
        for name in (
            "_ENDED",
            "_RAISED",
            "_TROUBLE",
            "_TYPED",
            "_MESSAGE",
            "_RESET",
            "_PATH",
            "_UUID",
            "_TIME",
            "_TOKEN",
        )
    },
    "engine/fingerprint.py:_NUMBERS": Pattern(("0.",), largest=2_000),
    "engine/fingerprint.py:fold": "groups of failures",
    "triggers/policy.py:is_end": "titles of DAGs",
    "validation/patterns.py:_CLASSES": Pattern(("\\",)),
    "validation/patterns.py:_COUNTS": Pattern(("{", "{1", "{1,")),
    "validation/patterns.py:_compiled": "patterns that are taken",
    "providers/provider_limits.py:_CAMEL": Pattern(("aA",), largest=80),
    "providers/provider_limits.py:_time": "failures",
    "providers/provider_messages.py:_known": "failures",
    **{
        f"providers/provider_messages.py:{name}": Pattern(("error ", "429 ", "limit"), largest=_FAILURE_TEXT)
        for name in ("_HINT", "_OPENING_WORDS", "_ERROR_WORD", "_NOT_A_MESSAGE")
    },
    "notifications/policy.py:_NAMES": Pattern(("passw", "token")),
    "notifications/policy.py:_SECRETS": Pattern(
        ("eyJ", "eyJ-", "sk-", "://", "-----BEGIN "), largest=notifications.MAX_SEARCHED
    ),
    "notifications/policy.py:_NAMED": Pattern(("bearer ", "token=", "secret"), largest=notifications.MAX_SEARCHED),
    "providers/reset_times.py:_ANCHOR": Pattern(("retry-after", "resets "), largest=_FAILURE_TEXT),
    **{
        f"providers/reset_times.py:{name}": Pattern(
            ("1", "1h", "2026-01-01T", "Jan 1", "mon"), largest=reset_times.MAX_TAIL_LENGTH
        )
        for name in (
            "_LEAD",
            "_EPOCH",
            "_ISO",
            "_PART",
            "_BETWEEN",
            "_NUMBER",
            "_CLOCK",
            "_DATE",
            "_WEEKDAY",
            "_TOMORROW",
        )
    },
    "providers/reset_times.py:_HTTP_DATE": Pattern(("Mon, ",), largest=reset_times.MAX_TAIL_LENGTH),
    "providers/reset_times.py:_iso": "times in failures",
    "providers/reset_times.py:_http_date": "times in failures",
    "triggers/schedule_policy.py:_problem": "cron expressions",
    "triggers/schedule_policy.py:_fixed": "cron expressions",
    "triggers/schedule_policy.py:_fitting": "cron expressions",
    "validation/schema.py:__init__": "schemas that are taken",
    "model/check.py:_NUL": Pattern(("\\", "\\\\")),
    "artifacts/api.py:_MEDIA_TYPE": Pattern(("text/", "text/a;a=", "text/a; a=1")),
    "triggers/operations.py:_NAME": Pattern(("a",)),
    "budgets/policy.py:span_of": NoCaller("reads days that the store wrote"),
    "notifications/policy.py:_LETTER": Pattern(("a@",), largest=2_000),
    "notifications/policy.py:_SERVICE": Pattern(("a://", "a"), largest=2_000),
    "notifications/policy.py:_NUMBER": Pattern(("0x",), largest=2_000),
    "access/authenticator.py:_SECRET": Pattern(("sw_",)),
    "operation/declare.py:__init__": NoCaller("reads the paths of our own operations"),
    "operation/declare.py:reply": NoCaller("reads the names of our own operations"),
    "server/openapi.py:_path_parameters": NoCaller("reads the paths of our own operations"),
    **{f"operation/declare.py:{name}": NoCaller("reads a declaration") for name in ("__init__", "reply")},
    "server/openapi.py:_references": NoCaller("reads the schema that is made of declarations"),
    "server/compression.py:_NEVER": Pattern(("q", "q=0.", "q ")),
    "server/request_parsing.py:_IF_MATCH": Pattern(("W/", '"1', "1")),
    "server/request_parsing.py:_HEADER_TEXT": Pattern(("!",)),
    "server/request_parsing.py:_NAMED_FIELD": Pattern(("Object contains unknown field `",)),
    "server/request_parsing.py:_ESCAPED_NUL": Pattern(("\\", "\\\\")),
    "server/request_parsing.py:_ESCAPES": Pattern(("\\", "\\ud800")),
    "server/request_parsing.py:_NOT_A_NUMBER": Pattern(("+",)),
    **{f"server/rendering.py:{name}": Pattern(("task_", "`", "`a", "1")) for name in ("_FIELD", "_ID", "_NUMBER")},
    "server/below_minimum.py:words": NoCaller("splits an option that the one who runs the server typed"),
    "server/routes/artifact_content.py:_RANGE": Pattern(("bytes=", "bytes=1-")),
    "server/event_stream.py:_CURSOR": Pattern(("1", "1-")),
    "notifications/webhooks.py:_retry_after": "Retry-After of webhooks",
    **{f"store/catalogue.py:{name}": _SQL for name in ("_STRICT", "_AT", "_TYPE")},
    **{f"store/migrate.py:{name}": _SQL for name in ("_FILE", "_INDEX", "statements_of")},
    "store/callers_connection.py:_without_codecs": _SQL,
    "store/postgres_schema.py:_NAME": Pattern(("a", "_")),
    **{
        f"store/postgres_schema.py:{name}": _SQL
        for name in ("_CREATED", "_USED", "PARTS", "_AS_CLASS", "_OWN_SCHEMA", "_IN_OWN_SCHEMA")
    },
    **{f"store/postgres_driver_internals.py:{name}": _SQL for name in ("_PLACEHOLDER", "_WRITING", "_WORD")},
    "store/postgres_tx.py:_TELLING": _SQL,
    **{
        f"store/statements.py:{name}": _SQL
        for name in (
            "_NAME",
            "_PART",
            "_ROWS",
            "_OWN",
            "_INSERT",
            "_SAVE",
            "_ONLY",
            "_SAVE",
            "_TABLE",
            "_LEADING",
            "_PARAMETER",
            "write_schema",
        )
    },
    "tracing.py:_FORM": Pattern(("00-", "00-" + "1" * 32)),
    "views/view.py:_BETWEEN": Pattern(("a.", "a[")),
    "views/view.py:time_in": "times of views",
    "worker/outbox.py:_file": NoCaller("writes claim tokens of the queue as names of files, one class of characters"),
    "worker/command_line.py:_PLACEHOLDER": Pattern(("{", "{prompt")),
    **{
        f"worker/command_line.py:{name}": NoCaller("looks at the command that the one who runs the worker typed")
        for name in ("_INTERPRETERS", "_CODE", "_LINE")
    },
}
"""Each use of a matcher, by file and name: an expression, measured as it is, the name of a reader, or why none."""


def found_places() -> set[str]:
    """The same, as the source says: the constant that a matcher is assigned to, or the function it is used in."""
    return {
        f"{file.relative_to(SOURCE).as_posix()}:{name}"
        for file in SOURCE.rglob("*.py")
        for name in _uses(ast.parse(file.read_text(encoding="utf-8")))
    }


def _uses(tree: ast.Module) -> Iterator[str]:
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MATCHERS
        for alias in node.names
    }
    for statement in tree.body:
        for name, inner in _named(statement):
            if any(_is_use(node, imported) for node in ast.walk(inner)):
                yield name


def _named(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(statement, ast.ClassDef):
        for inner in statement.body:
            yield from _named(inner)
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Assign):
        yield ast.unparse(statement.targets[0]), statement
    elif isinstance(statement, ast.AnnAssign):
        yield ast.unparse(statement.target), statement
    else:
        yield "the module itself", statement


def _is_use(node: ast.AST, imported: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    module, _, function = called.rpartition(".")
    if called in imported or (module in MATCHERS and function != "escape"):
        return True
    return function in READERS and module != "msgspec.json"


def expression(place: str) -> re.Pattern[Any]:
    """The regular expression that is at a place."""
    module, name = _module(place)
    found = getattr(module, name)
    assert isinstance(found, re.Pattern)
    return found


def methods(place: str) -> set[str]:
    """Return how its module uses it, from the source: an expression that only matches whole texts need not search."""
    module, name = _module(place)
    found = re.findall(rf"\b{name}\.([a-z]+)\(", Path(module.__file__ or "").read_text(encoding="utf-8"))
    return set(found) or {"search", "fullmatch"}


def _module(place: str) -> tuple[ModuleType, str]:
    file, _, name = place.partition(":")
    return importlib.import_module("shiftwork." + file.removesuffix(".py").replace("/", ".")), name
