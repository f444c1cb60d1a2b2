"""Parameters and results of typed functions are read from annotations; functions that cannot be typed are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from shiftwork import Context, Done, Worker
from shiftwork.model.errors import InputError, InvalidPayload
from shiftwork.task_types.codecs import DoesNotFit
from shiftwork.task_types.signature import Signature


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


class Job(msgspec.Struct):
    url: str
    at: datetime | None = None


class Page(pydantic.BaseModel):
    url: str
    depth: int = 1


class Loose(pydantic.BaseModel, extra="allow"):
    url: str


class Row(TypedDict):
    n: int


class Listed(msgspec.Struct, array_like=True):
    n: int


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


async def summarise(text: str, words: int = 100) -> Point:
    raise NotImplementedError


def with_context(ctx: Context, text: str) -> str:
    raise NotImplementedError


async def alone(ctx: Context) -> None: ...


async def point(point: Point) -> Job:
    raise NotImplementedError


async def job(job: Job) -> Page:
    raise NotImplementedError


async def page(page: Page) -> list[Page]:
    raise NotImplementedError


async def loose(page: Loose) -> None: ...


async def row(row: Row) -> None: ...


async def two(page: Page, point: int = 1) -> None: ...


async def tree(tree: Tree) -> Tree:
    raise NotImplementedError


async def choice(kind: Literal["a", "b"], size: Annotated[int, msgspec.Meta(ge=1)], *, at: datetime) -> Any: ...


async def defaults(tags: list[str] = ["a"], point: Point = Point(1)) -> None: ...  # noqa: B006, B008  # what is tested


def signature(function: Callable[..., Any]) -> Signature:
    return Signature(function, Context)


def test_parameters_are_the_fields_of_the_payload() -> None:
    read = signature(summarise)
    assert read.payload_schema == {
        "title": "summarise",
        "type": "object",
        "properties": {"text": {"type": "string"}, "words": {"type": "integer", "default": 100}},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert read.encode(("a",), {}) == {"text": "a"}
    assert read.decode({"text": "a"}) == (("a", 100), {})
    assert not read.takes_context


@pytest.mark.parametrize("function", [with_context, alone])
def test_first_parameter_may_be_the_context(function: Callable[..., Any]) -> None:
    read = signature(function)
    assert read.takes_context
    assert "ctx" not in read.payload_schema["properties"]


@pytest.mark.parametrize(
    ("function", "value", "payload"),
    [
        (point, Point(1), {"x": 1, "y": 0, "tags": []}),
        (job, Job("u", datetime(2026, 1, 2, tzinfo=UTC)), {"url": "u", "at": "2026-01-02T00:00:00Z"}),
        (page, Page(url="u"), {"url": "u", "depth": 1}),
        (row, Row(n=1), {"n": 1}),
        (tree, Tree(1, [Tree(2)]), {"value": 1, "children": [{"value": 2, "children": []}]}),
    ],
)
def test_one_object_is_the_whole_payload(function: Callable[..., Any], value: Any, payload: dict[str, Any]) -> None:
    read = signature(function)
    assert read.encode((value,), {}) == payload
    args, kwargs = read.decode(payload)
    assert [*args, *kwargs.values()] == [value]
    assert read.payload_schema["type"] == "object"
    assert read.payload_schema["additionalProperties"] is False


def test_model_that_allows_more_fields_keeps_allowing_them() -> None:
    assert signature(loose).payload_schema["additionalProperties"] is True


def test_pydantic_model_among_parameters_is_one_field() -> None:
    read = signature(two)
    assert read.encode((Page(url="u"),), {}) == {"page": {"url": "u", "depth": 1}}
    args, kwargs = read.decode({"page": {"url": "u"}, "point": 3})
    assert [*args, *kwargs.values()] == [Page(url="u"), 3]
    with pytest.raises(DoesNotFit, match="unknown"):
        read.decode({"page": {"url": "u"}, "unknown": 1})


@pytest.mark.parametrize(
    ("function", "payload", "where"),
    [
        (summarise, {"text": 1}, "text"),
        (summarise, {}, "text"),
        (summarise, {"text": "a", "wrods": 1}, "wrods"),
        (choice, {"kind": "c", "size": 1, "at": "2026-01-02T00:00:00Z"}, "kind"),
        (choice, {"kind": "a", "size": 0, "at": "2026-01-02T00:00:00Z"}, "size"),
        (choice, {"kind": "a", "size": 1, "at": "tomorrow"}, "at"),
        (point, {"x": "1"}, "x"),
        (page, {"url": "u", "depth": "deep"}, "depth"),
        (tree, {"value": 1, "children": [{"value": "x"}]}, r"children\[0\]"),
    ],
)
def test_payload_that_does_not_fit_says_where(
    function: Callable[..., Any], payload: dict[str, Any], where: str
) -> None:
    with pytest.raises(DoesNotFit, match=where):
        signature(function).decode(payload)


def test_defaults_that_have_no_json_form_stay_defaults() -> None:
    args, kwargs = signature(defaults).decode({})
    assert [*args, *kwargs.values()] == [["a"], Point(1)]


@pytest.mark.parametrize(
    ("function", "value", "data"),
    [
        (summarise, Point(1), {"x": 1, "y": 0, "tags": []}),
        (job, Page(url="u"), {"url": "u", "depth": 1}),
        (page, [Page(url="u")], [{"url": "u", "depth": 1}]),
        (tree, Tree(1), {"value": 1, "children": []}),
        (alone, None, None),
    ],
)
def test_result_is_encoded_and_decoded_as_declared(function: Callable[..., Any], value: Any, data: Any) -> None:
    read = signature(function)
    assert read.encode_result(value) == data
    assert read.decode_result(data) == value


def test_result_of_another_type_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="x"):
        signature(summarise).encode_result({"x": "one"})
    with pytest.raises(DoesNotFit):
        signature(summarise).encode_result(object())


def untyped(text) -> None: ...  # type: ignore[no-untyped-def]  # what is tested


def context_last(text: str, ctx: Context) -> None: ...


def many(*texts: str) -> None: ...


def more(**texts: str) -> None: ...


async def generator(text: str) -> AsyncIterator[str]:
    yield text


def listed(value: Listed) -> None: ...


def opaque(value: Callable[[], None]) -> None: ...


def opaque_result(value: int) -> Callable[[], None]:
    raise NotImplementedError


def defaulted(point: Point = Point(1)) -> None: ...  # noqa: B008  # what is tested


def mixed(value: dict[str, Page], job: Job) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "no annotation"),
        (context_last, "must be the first parameter"),
        (many, "no schema describes"),
        (more, "no schema describes"),
        (generator, "generator"),
        (listed, "not a JSON object"),
        (opaque, "cannot be written as JSON"),
        (opaque_result, "cannot be written as JSON"),
        (defaulted, "no default"),
        (mixed, "cannot be written as JSON"),
    ],
)
def test_functions_that_cannot_be_typed_are_refused_when_registered(function: Any, message: str) -> None:
    worker = Worker()
    with pytest.raises(InputError, match=message) as refused:
        worker.task(function)
    assert function.__name__ in (refused.value.where or "")
    assert not worker.handlers


def test_annotation_that_cannot_be_found_is_refused_when_registered() -> None:
    def local(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # what is tested

    with pytest.raises(InputError, match="Nowhere"):
        Worker().task(local)


def test_arguments_are_checked_before_anything_is_sent() -> None:
    task = Worker().task(summarise)
    with pytest.raises(InvalidPayload, match="words") as refused:
        task.encode("a", words="many")  # type: ignore[arg-type]  # what is tested
    assert refused.value.code == "invalid_payload"
    with pytest.raises(TypeError, match="text"):
        task.encode()  # type: ignore[call-arg]  # what is tested


def test_options_are_checked_when_registered() -> None:
    worker = Worker()
    with pytest.raises(InputError, match="max_attempt"):
        worker.task(max_attempt=3)(summarise)  # type: ignore[call-overload]  # what is tested
    with pytest.raises(InputError, match=">= 1"):
        worker.task(max_attempts=0)(summarise)
    assert worker.task(type="texts.summarise", max_attempts=2)(summarise).type == "texts.summarise"
    with pytest.raises(InputError, match="has a handler already"):
        worker.task(type="texts.summarise")(with_context)


def no_context() -> None: ...


def two_arguments(ctx: Context, text: str) -> None: ...


async def yielding(ctx: Context) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("handler", [no_context, two_arguments, yielding, "text"])
def test_handlers_that_could_never_be_called_are_refused_when_registered(handler: Any) -> None:
    with pytest.raises(InputError):
        Worker().handler("code")(handler)


@pytest.mark.parametrize("handler", [alone, lambda ctx: ctx, lambda *_: None, print, Done])
def test_handlers_that_take_a_context_are_registered(handler: Any) -> None:
    worker = Worker()
    worker.handler("code")(handler)
    assert worker.handlers == {"code": handler}


def test_pydantic_is_imported_only_for_its_own_models() -> None:
    code = (
        "import sys\nfrom dataclasses import dataclass\nfrom shiftwork import Worker\n"
        "@dataclass\nclass Point:\n    x: int\n"
        "@Worker().task\ndef move(point: Point) -> Point: return point\n"
        "move.encode(Point(1)), move.declaration\nprint('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
