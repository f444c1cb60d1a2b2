"""The page of the Python API: every public class and namespace with its methods, generated from the code."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, ForwardRef, NamedTuple, get_type_hints

import msgspec

import shiftwork
from shiftwork import worker
from shiftwork.model.task import Name, Text
from shiftwork.task_types import typed_task
from tools.allowed import allowed, bounds

WIDTH = 100
INTERNAL = frozenset({"engine", "speaking_as"})
"""Members of a queue that only the server and the maintenance jobs use."""

ORDER = ("AnyQueue", "Queue", "Client")
"""Base classes come first, so each method is described once."""

INTRODUCTION = """# Python

Every public class of `shiftwork`, generated from the code. Import names from `shiftwork`, or from
`shiftwork.worker` where it says so.

## Open a queue

`Queue.open` opens a database, `Client.open` a server, and `open_queue` either one, by its address.
They have the same methods, so only the address changes. Use `async with`; to close the queue
yourself, write `queue = await Queue.open(...)` and `await queue.close()`.

Everyday operations are methods of the queue (`queue.submit`). The rest are in one namespace for each
kind of thing (`queue.budgets.set`).

```python
import asyncio
from shiftwork import Queue


async def main() -> None:
    async with Queue.open("sqlite:///work.db") as queue:
        task = await queue.submit(type="greet", payload={{"name": "Ada"}})
        (claimed,) = await queue.claim("ada", start=True)
        await queue.complete(claimed.token, "Hello, Ada")
        print((await queue.result(task.id)).data)  # Hello, Ada


asyncio.run(main())
```

Without an event loop, open the queue with `SyncQueue.open(url)`, on SQLite, PostgreSQL and `http://`
alike. It has the same methods and namespaces, and each call blocks. Threads may share it.

## Errors

Every error is a `ShiftworkError` with a stable `code`, a description, a place and a hint;
[errors](errors.md) lists them. If a method raises one, it has changed nothing.

## Types

- `Name` is {name}.
- `Text` is {text}.
- Further bounds of parameters are listed below their signatures.
- Pass a record as an instance or as a mapping of its fields.
- Times are seconds since 1970, durations are in seconds, money is in dollars.
"""


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class _Member(NamedTuple):
    name: str
    signature: str
    description: str

    def shown(self, heading: str) -> str:
        return f"{heading}\n\n```py\n{self.signature}\n```\n\n{self.description}".rstrip() + "\n"


def python_page() -> str:
    """Return the page: the queue and its namespaces, then workers, records and exceptions."""
    parts = [INTRODUCTION.format(name=allowed(Name), text=allowed(Text))]
    seen: set[tuple[str, str]] = set()
    queues, workers, records, errors = _sections()
    parts.append("## The queue\n")
    parts += [text for name, value in queues for text in _queue(name, value, seen)]
    for title, section in (("Workers", workers), ("Records", records), ("Exceptions", errors)):
        parts.append(f"## {title}\n")
        parts += [text for name, value in section for text in _class(name, value)]
    return "\n".join(parts)


def _sections() -> tuple[list[tuple[str, Any]], ...]:
    """Sort the exported names by what they are: queues, workers, records, exceptions."""
    queues: list[tuple[str, Any]] = []
    workers: list[tuple[str, Any]] = []
    records: list[tuple[str, Any]] = []
    errors: list[tuple[str, Any]] = []
    for name, value in _exported():
        if not inspect.isclass(value):
            if inspect.isfunction(value):
                queues.append((name, value))
        elif value.__module__.startswith((worker.__name__, typed_task.__name__)):
            workers.append((name, value))
        elif issubclass(value, BaseException):
            errors.append((name, value))
        elif hasattr(value, "open") or hasattr(value, "submit"):
            queues.append((name, value))
        else:
            records.append((name, value))
    queues.sort(key=lambda each: ORDER.index(each[0]) if each[0] in ORDER else len(ORDER))
    return queues, workers, records, errors


def _exported() -> Iterator[tuple[str, Any]]:
    for name in shiftwork.__all__:
        yield name, getattr(shiftwork, name)
    for name in worker.__all__:
        if name not in shiftwork.__all__:
            yield name, getattr(worker, name)


def _queue(name: str, value: Any, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Describe a class of queues: methods that an earlier class has in the same form are left out."""
    if not inspect.isclass(value):
        yield _member(name, value).shown(f"### {name}")
        return
    yield f"### {name}\n\n{_description(value)}\n"
    members = list(_members(value))
    left_out = 0
    for member in members:
        key = (member.name, member.signature.partition("(")[2])
        if key in seen and member.name != "open":
            left_out += 1
            continue
        seen.add(key)
        yield member.shown(f"#### {name}.{member.name}" if member.name == "open" else f"#### queue.{member.name}")
    if left_out:
        yield "It also has the methods described above.\n"
    for title, namespace in _namespaces(value):
        if (title, "") not in seen:
            seen.add((title, ""))
            yield f"### queue.{title}\n\n{_description(namespace)}\n"
            yield from (member.shown(f"#### queue.{title}.{member.name}") for member in _members(namespace))


def _namespaces(queue: type) -> Iterator[tuple[str, type]]:
    """Find the namespaces of a queue: its cached properties, which hold the executor that they call."""
    made: Any = object.__new__(queue)
    made.__dict__["_executor"] = None
    for name, value in inspect.getmembers_static(queue):
        if isinstance(value, functools.cached_property) and not name.startswith("_"):
            yield name, type(getattr(made, name))


def _class(name: str, value: type) -> Iterator[str]:
    yield f"### {name}\n"
    if value.__module__.startswith(worker.__name__) and name not in shiftwork.__all__:
        yield f"Import it from `{worker.__name__}`.\n"
    if (made := _constructor(name, value)) is not None:
        yield f"```py\n{made}\n```\n"
    yield _description(value) + "\n"
    if issubclass(value, msgspec.Struct):
        yield "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *_fields(value)]) + "\n"
    for member in _members(value):
        yield member.shown(f"#### {name}.{member.name}")


def _constructor(name: str, value: type) -> str | None:
    """Return the signature of a class that programs instantiate; None for records, which list their fields."""
    if issubclass(value, msgspec.Struct) or value is worker.Context:
        return None
    try:
        return _signature(name, inspect.signature(value), keyword="class")
    except ValueError:  # an exception without an `__init__` of its own
        return None


def _members(kind: type) -> Iterator[_Member]:
    """Return every public method and property, in source order, those of base classes first."""
    for name in _names(kind):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            returns = _annotation(value.fget.__annotations__.get("return", "Any")) if value.fget else "Any"
            yield _Member(name, f"{name}: {returns}", _wrapped(inspect.getdoc(value) or ""))
        elif isinstance(value, classmethod | staticmethod):
            yield _member(name, value.__func__)
        elif inspect.isfunction(value):
            yield _member(name, value)


def _names(kind: type) -> list[str]:
    bases = [base for base in reversed(kind.__mro__) if base.__module__.startswith(shiftwork.__name__)]
    found = dict.fromkeys(name for base in bases for name in vars(base))
    return [name for name in found if not name.startswith("_") and name not in INTERNAL]


def _member(name: str, function: Callable[..., Any]) -> _Member:
    written = inspect.unwrap(function)
    keyword = "async def" if inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written) else "def"
    notes = filter(None, (_description(function), _bounds(written), _route(function)))
    return _Member(name, _signature(name, inspect.signature(function), keyword=keyword), "\n\n".join(notes))


def _route(function: Any) -> str | None:
    """Return the HTTP route of an operation."""
    operation = getattr(function, "operation", None)
    if operation is None:
        return None
    scope = f", scope `{operation.scope}`" if operation.scope else ""
    return f"HTTP: `{operation.http_method} {operation.path}`{scope}."


def _bounds(function: Callable[..., Any]) -> str | None:
    """Return the bounds of parameters, except those of names and texts."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # a type imported only for type checkers
        return None
    known = {bounds(Name), bounds(Text), None}
    found = [f"`{name}` {bounds(kind)}" for name, kind in hints.items() if bounds(kind) not in known]
    return _wrapped(f"Bounds: {'; '.join(found)}.") if found else None


def _signature(name: str, signature: inspect.Signature, *, keyword: str) -> str:
    parameters = [_parameter(each) for each in _with_marks(signature)]
    returns = signature.return_annotation
    end = "" if returns is inspect.Signature.empty or keyword == "class" else f" -> {_annotation(returns)}"
    line = f"{keyword} {name}({', '.join(parameters)}){end}"
    if len(line) <= WIDTH:
        return line
    return f"{keyword} {name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){end}"


def _with_marks(signature: inspect.Signature) -> Iterator[inspect.Parameter | str]:
    """Yield the parameters, with `*` before the first keyword-only one."""
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield parameter


def _parameter(parameter: inspect.Parameter | str) -> str:
    if isinstance(parameter, str):
        return parameter
    text = _STARS.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {_default(parameter.default)}"


def _default(value: Any) -> str:
    """Return a default as code; a sentinel for "not given" as `...`."""
    text = repr(value)
    return "..." if " object at 0x" in text else text


class _WithoutNotes(ast.NodeTransformer):
    """Replaces `Annotated[X, ...]` by X: the notes are shown as bounds."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return ast.unparse(_WithoutNotes().visit(ast.parse(text, mode="eval")))


def _fields(kind: type[msgspec.Struct]) -> Iterator[str]:
    texts, meanings = _annotations(kind), _field_docs(kind)
    for field in msgspec.structs.fields(kind):
        limits = bounds(field.type)
        kind_text = f"`{texts[field.name]}`".replace("|", "\\|") + (f" {limits}" if limits else "")
        # Only records written by callers refuse unknown fields; in records they read, every field is present.
        required = "required" if kind.__struct_config__.forbid_unknown_fields else "-"
        yield f"| `{field.name}` | {kind_text} | {_default_of(field, required)} | {meanings.get(field.name, '')} |"


def _annotations(kind: type) -> dict[str, str]:
    return {
        name: _annotation(text)
        for base in reversed(kind.__mro__)
        for name, text in vars(base).get("__annotations__", {}).items()
    }


def _default_of(field: msgspec.structs.FieldInfo, required: str) -> str:
    if field.default is not msgspec.NODEFAULT:
        return f"`{field.default!r}`"
    if field.default_factory is msgspec.NODEFAULT:
        return required
    made = field.default_factory()
    return f"`{type(made).__name__}()`" if isinstance(made, msgspec.Struct) else f"`{made!r}`"


def _field_docs(kind: type) -> dict[str, str]:
    """Read the docstrings of a class's fields from its source, since Python does not keep them."""
    found = {}
    for base in kind.__mro__:
        if not base.__module__.startswith(shiftwork.__name__):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def _description(value: Any) -> str:
    """Return its own docstring, not one inherited from a base class or a library."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return _wrapped(inspect.cleandoc(own or ""))


def _wrapped(text: str) -> str:
    """Wrap a docstring to the width of the docs; lists and code stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        each if any(line.startswith((" ", "-", "*")) for line in each.splitlines()) else _filled(each)
        for each in paragraphs
    )


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
