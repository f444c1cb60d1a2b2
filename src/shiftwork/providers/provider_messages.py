"""Finds the messages of model providers and coding agents in an error text: limits, overload, refused credentials.

An error text can also be a log that contains source code, test names and prose. So a message counts only at the start
of a line, after punctuation, or after a word such as `status`, and not in a line that is source code, a frame of a
traceback, a test's name, a commit or part of a diff. In an ambiguous text, nothing is found.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["rate_limit", "overloaded", "quota", "auth"]
Scope = Literal["account", "model", "provider"]
"""The reach of a limit: all work of the account, one model on it, or one model of the provider on every account."""

HEAD = 2_000
TAIL = 6_000
"""How many characters to search at the beginning and at the end of a text: a long log ends with the message."""

MAX_MATCHES = 200
NEAR_CHARACTERS = 3_000
"""Messages this close before the last one belong to it, such as the lines of an indented JSON object."""


class Message(NamedTuple):
    kind: Kind
    scope: Scope
    window: str | None
    start: int
    """Its position in the excerpt."""


def excerpt(text: str) -> str:
    """The beginning and the end of a long text, all of a short one."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


_END = r"(?=[ \t]{0,4}(?:$|[^\w \t=(]|(?<=[ \t])\(|(?:for|on|by|in|of|from|please|try|retry|your|while|until|after)\b))"
"""What must follow a message: the end, punctuation, or certain words; `rate limit exceeded page` is no message."""

_STATUS = (
    r"(?:\bHTTP(?:/\d(?:\.\d)?(?![\"'])|(?:[ _-]?(?:status|error|code)){0,2})"
    r"|\b(?:last |error[ _-]?)?status(?:[ _-]?code)?|\b(?:api[ _-]?)?err(?:or)?(?:[ _-]?code)?|\bcode)"
    r"\\?[\"']?[ \t]{0,2}[:=]?[ \t]{0,2}\\?[\"'(\[]?"
)
_NO_COUNT = (
    r"\b(?![.,]\d|[%\w-])(?![ \t]{1,2}(?!too\b|rate|status|resource|quota|you|this|from|for\b|on\b|request|service"
    r"|payment|overloaded|exceeded|client|provider|unavailable)[a-z])"
)
"""A status is not followed by more digits, or by a word that makes it a count, as in `error: 429 rows`."""

_BODY = r"[\])]?:?[ \t]{1,2}(?:[-\u2013][ \t])?\\?[\"']?(?:"
_YOU_HIT = r"\byou(?:['\u2019]ve| have)? (?:hit|reached|exceeded|exhausted|used up) (?:your|the|a|all your) "
_WORDS = r"(?:[\w\u2019'.-]{1,24} ){0,4}?"


class _Known(NamedTuple):
    kind: Kind
    scope: Scope
    window: str | None
    in_sentences: bool
    """Whether it also counts in the middle of a sentence."""
    pattern: re.Pattern[str]


def _known(kind: Kind, scope: Scope, *patterns: str, window: str | None = None, in_sentences: bool = False) -> _Known:
    return _Known(kind, scope, window, in_sentences, re.compile("|".join(patterns), re.IGNORECASE | re.MULTILINE))


_MESSAGES = (
    # credentials
    _known(
        "auth",
        "account",
        r"\b(?:authentication_error|authentication_failed|permission_error|invalid_api_key|API_KEY_INVALID)\b" + _END,
        r"\b(?:UNAUTHENTICATED|invalid_authentication|(?:UnrecognizedClient|ExpiredToken)Exception)\b" + _END,
        r"\bAuthenticationError\b(?=: )",
        r"\binvalid (?:x-api-key|bearer token|api key)\b" + _END,
        r"\b(?:no auth credentials found|not logged in|please run /login)\b" + _END,
        r"\b(?:your )?(?:oauth|access|refresh) token (?:has )?(?:been )?(?:expired|revoked)\b" + _END,
        r"\byour (?:access|refresh) token could not be refreshed\b",
        r"\b(?:API Error|Error code|unexpected status):?[ ]40[13]\b",
    ),
    _known(
        "auth",
        "account",
        r"\b(?:incorrect|invalid) api key provided\b",
        r"\bAPI key not valid\. Please\b",
        r"\baccess denied due to invalid subscription key\b",
        r"\bthe security token included in the request is (?:invalid|expired)\b",
        in_sentences=True,
    ),
    # money: only a person can end it
    _known(
        "quota",
        "account",
        r"\b(?:insufficient_quota|billing_hard_limit_reached|billing_not_active|billing_error)\b" + _END,
        r"\bcredit balance is too low\b",
        r"\binsufficient (?:credits|balance)\b" + _END,
        r"\b402 payment required\b",
        _STATUS + "402" + _NO_COUNT,
    ),
    _known(
        "quota",
        "account",
        r"\byour credit balance is too low\b",
        r"\byou exceeded your current quota\b",
        r"\bcheck your plan and billing details\b",
        r"\bthis request requires more credits\b",
        in_sentences=True,
    ),
    # windows of a subscription
    _known(
        "rate_limit",
        "account",
        _YOU_HIT + r"(?:session|5[- ]hour) limit\b",
        r"\b(?:session|5[- ]hour) limit reached\b" + _END,
        window="five_hour",
    ),
    _known(
        "rate_limit",
        "account",
        _YOU_HIT + r"weekly limit\b",
        r"(?<!opus )(?<!sonnet )(?<!haiku )\bweekly limit reached\b" + _END,
        window="seven_day",
    ),
    _known(
        "rate_limit",
        "model",
        r"\b(?:opus|sonnet|haiku) (?:weekly )?limit reached\b" + _END,
        window="seven_day",
    ),
    _known(
        "rate_limit",
        "account",
        _YOU_HIT + r"(?:usage )?limit\b" + _END,
        r"\b(?:the )?usage limit (?:has been )?reached\b" + _END,
        r"\busage_limit_reached\b" + _END,
        r"\byou['\u2019]re out of extra usage\b",
    ),
    # rates
    _known(
        "rate_limit",
        "model",
        _YOU_HIT + _WORDS + r"(?:rate limit|limit|quota|capacity|allowance)\b",
        _STATUS + "429" + _NO_COUNT,
        r"\b429" + _BODY + r"too many requests|resource exhausted|rate limit|\{|\[\{)",
        r"\b(?:TooManyRequests|Throttling)(?:Exception|Error)?\b(?=[:)\"'])",
        r"\bretry[-_ ]after\\?[\"']?[ \t]{0,2}[:=][ \t]{0,2}\\?[\"']?\w",
    ),
    _known(
        "rate_limit",
        "model",
        r"\b(?:requests? |tokens? )?rate[-_ ]?limit[-_ ]?(?:error|exceeded|reached|hit)\b" + _END,
        r"\btoo many (?:requests|tokens)\b" + _END,
        r"\bquota exceeded\b" + _END,
        r"\bRESOURCE_EXHAUSTED\b" + _END,
        r"\bresource (?:has been )?exhausted\b" + _END,
    ),
    _known(
        "rate_limit",
        "model",
        r"\bexceed(?:ed)? your " + _WORDS + r"rate limit\b",
        r"\bhave exceeded (?:call|token) rate limit\b",
        r"\btemporarily rate[- ]limited\b",
        r"\byou are being rate limited\b",
        in_sentences=True,
    ),
    # overload
    _known(
        "overloaded",
        "provider",
        r"\b(?:overloaded_error|server_is_overloaded|ServiceUnavailableException)\b" + _END,
        r"\b529" + _BODY + r"overloaded|\{)",
        r"\b503" + _BODY + r"service unavailable)",
        _STATUS + "529" + _NO_COUNT,
        r"\boverloaded(?=[ \t]{0,4}(?:$|[\"'.!]))",
        r"\b(?:selected )?model is at capacity\b",
        r"\bservice tier capacity exceeded\b",
    ),
    _known(
        "overloaded",
        "provider",
        r"\b(?:the|that|our) (?:model|engine|servers?) (?:is|are) (?:currently )?overloaded\b",
        r"\bwe['\u2019]re (?:currently )?experiencing high demand\b",
        in_sentences=True,
    ),
)
_HINT = re.compile(
    "limit|429|quota|too many|retry|exhaust|throttl|overload|529|503|40[123]|auth|api.key|credit|billing|capacity"
    "|log.?in|token|balance|demand|unavailable|extra usage",
    re.IGNORECASE,
)
"""A text without any of these contains no message: this rules out most errors with one search."""

_OPENS = frozenset(":[{|·∙•■⚠✕✖✗✘\u00d7●▲=>-\u2013\u2014/")
_OPENS_IN_ERROR = frozenset("(,.;!")
_TRANSPARENT = " \t\"'`\\"
"""Quotes, including escaped ones, are ignored."""

_OPENING_WORDS = re.compile(
    r"(?:^|\W)(?:errors?|exception|status|http|api|client|server|upstream|provider|unexpected|repeated|last|sorry,"
    r"|failed with(?: an?)?|claude(?: ai)?|codex|opus|sonnet)$",
    re.IGNORECASE,
)
_ERROR_WORD = re.compile(r"error|exception|fail|status|http|api|429|limit|quota|code", re.IGNORECASE)
_MAX_PREFIX_LENGTH = 160

_NOT_A_MESSAGE = re.compile(
    r"""
    [ \t]{0,40}
    (?:
      File[ ]"                                          # a frame of a traceback
    | (?:E|>)[ \t]{2,}                                  # pytest's excerpt of a failed test
    | [+-](?![ ]?\d)|@@|diff[ ]|commit[ ]               # a diff, a log of commits
    | (?:[0-9a-f]{7,40}[ ])?(?:feat|fix|chore|docs|tests?|refactor|perf|ci|build|style)(?:\([^()\n]{0,40}\))?!?:[ ]
    | [0-9a-f]{7,40}[ ](?!\{)                           # git log --oneline
    | (?:FAILED|PASSED|SKIPPED|ERROR|XFAIL|ok|not[ ]ok|[✓✔√])[ ](?:[\w./-]{1,200}::|\d|[a-z])
    | (?:PASS|FAIL)[ ]
    | at[ ][\w.<$]                                      # a frame of a JavaScript trace
    | \d{1,6}[ \t]{0,4}[|│:]                            # numbered source
    | [\w./-]{1,200}\.\w{1,8}:\d{1,6}[:-]               # grep -n, compilers
    | (?:raise|throw|return|if|elif|else|for|while|assert|expect|def|class|const|let|var|import|from|await|async|yield
        |print|console|logger|log|self|res|except|catch|func|fn|pub|it|test|describe|case|when|with|try|throws?)
        (?=[ .(:{])                                     # source code
    | (?:\#|//|/\*|\*[ ]|<!--)                          # comments and headings
    )
    """,
    re.VERBOSE,
)
_ALONE = frozenset({"429", "529"})


def find(text: str) -> Message | None:
    """The last message of an excerpt; of several that belong together, the most specific one."""
    if _HINT.search(text) is None:
        return None
    if text.strip() in _ALONE:
        return Message(*(("rate_limit", "model") if "429" in text else ("overloaded", "provider")), None, 0)
    found = [message for known in _MESSAGES for message in _matches(text, known)]
    if not found:
        return None
    last = max(message.start for message in found)
    near = [message for message in found if message.start >= last - NEAR_CHARACTERS]
    return min(near, key=lambda message: (_rank(message), -message.start))


def _rank(message: Message) -> int:
    """Rank by specificity: a limit with its window, a quota, then a plain status."""
    if message.kind == "rate_limit":
        return 0 if message.window else 1 if message.scope == "account" else 3
    return {"quota": 2, "overloaded": 4, "auth": 5}[message.kind]


def _matches(text: str, known: _Known) -> list[Message]:
    found = []
    for count, match in enumerate(known.pattern.finditer(text)):
        if count == MAX_MATCHES:
            break
        line = text.rfind("\n", 0, match.start()) + 1
        if _may_contain_message(text, line) and (known.in_sentences or _begins(text, line, match.start())):
            found.append(Message(known.kind, known.scope, known.window, match.start()))
    return found


def _may_contain_message(text: str, line: int) -> bool:
    return _NOT_A_MESSAGE.match(text, line) is None and not _quotes_source(text, line)


def _begins(text: str, line: int, start: int) -> bool:
    before = text[max(line, start - _MAX_PREFIX_LENGTH) : start].rstrip(_TRANSPARENT)
    if not before or before[-1] in _OPENS or _OPENING_WORDS.search(before[-40:]) is not None:
        return True
    return before[-1] in _OPENS_IN_ERROR and _ERROR_WORD.search(before) is not None


def _quotes_source(text: str, line: int) -> bool:
    """The line after a frame of a Python traceback shows its source."""
    above = text.rfind("\n", 0, max(0, line - 1)) + 1
    return line > 0 and text[above:line].lstrip().startswith('File "')
