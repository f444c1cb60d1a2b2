"""Turns values of a declared type into JSON and back, and says what that JSON looks like."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, Literal, Protocol, get_args, get_origin

import msgspec

from shiftwork.model.errors import InputError

MAX_ERRORS = 5


class DoesNotFit(ValueError):
    """Data is not what the type declares; the message says where."""


class Codec(Protocol):
    """How values of one type are written as JSON and read again."""

    def encode(self, value: Any) -> Any:
        """Return the value as JSON data; raises `DoesNotFit` for what is not of the type."""
        ...

    def decode(self, data: Any) -> Any:
        """Return the value that the JSON data stands for; raises `DoesNotFit`."""
        ...

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the data; None where anything is allowed."""
        ...


class Anything:
    """No type was declared: JSON data as it is."""

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, data: Any) -> Any:
        return data

    def schema(self) -> None:
        return None


class MsgspecCodec:
    """Dataclasses, Structs, TypedDicts and everything else that msgspec reads."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def encode(self, value: Any) -> Any:
        data = to_data(value)
        self.decode(data)
        return data

    def decode(self, data: Any) -> Any:
        try:
            return msgspec.convert(data, self._kind, str_keys=True)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at ")
            raise DoesNotFit(_located(path.strip("`").removeprefix("$").lstrip("."), what)) from None

    def schema(self) -> dict[str, Any]:
        return inlined(msgspec.json.schema(self._kind))


class PydanticCodec:
    """Models of pydantic, and types that mention them. Pydantic is imported here alone."""

    def __init__(self, kind: Any, mode: Literal["validation", "serialization"]) -> None:
        import pydantic  # noqa: PLC0415  # only where the user's own class needs it

        self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
        self._mode = mode

    def encode(self, value: Any) -> Any:
        import pydantic  # noqa: PLC0415  # as above

        try:
            checked = self._adapter.validate_python(value)
            return self._adapter.dump_python(checked, mode="json", by_alias=True)
        except pydantic.ValidationError as error:
            raise DoesNotFit(_listed(error)) from None
        except ValueError as error:  # what has no JSON form
            raise DoesNotFit(str(error)) from None

    def decode(self, data: Any) -> Any:
        import pydantic  # noqa: PLC0415  # as above

        try:
            return self._adapter.validate_python(data)
        except pydantic.ValidationError as error:
            raise DoesNotFit(_listed(error)) from None

    def schema(self) -> dict[str, Any]:
        return inlined(self._adapter.json_schema(mode=self._mode))


def to_data(value: Any) -> Any:
    """The value as dicts, lists, texts and numbers."""
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except RecursionError:
        raise DoesNotFit("nested too deep to be written") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise DoesNotFit(str(error)) from None


def _listed(error: Any) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)[:MAX_ERRORS]
    return "; ".join(_located(".".join(map(str, each["loc"])), each["msg"]) for each in found)


def _located(path: str, what: str) -> str:
    return f"{path}: {what}" if path else what


def is_pydantic(kind: Any) -> bool:
    """Whether pydantic made this class; it need not be imported to know."""
    return isinstance(kind, type) and "__pydantic_validator__" in vars(kind)


def mentions_pydantic(kind: Any) -> bool:
    return any(map(is_pydantic, _mentioned(kind)))


def _mentioned(kind: Any) -> Iterator[Any]:
    """The type and every type that it is made of, as far as it is written down: `list[A | B]`."""
    yield kind
    for inner in get_args(kind):
        yield from _mentioned(inner)


def is_model(kind: Any) -> bool:
    """Whether values of this type are JSON objects with fields of their own."""
    found = get_origin(kind) or kind
    if not isinstance(found, type):
        return False
    return (
        dataclasses.is_dataclass(found)
        or issubclass(found, msgspec.Struct)
        or typing.is_typeddict(found)
        or is_pydantic(found)
    )


def codec_of(kind: Any, mode: Literal["validation", "serialization"], where: str) -> Codec:
    """The codec of an annotation; refused where it has no JSON form."""
    if kind is Any or kind is object:
        return Anything()
    codec: Codec
    try:
        codec = PydanticCodec(kind, mode) if mentions_pydantic(kind) else MsgspecCodec(kind)
        codec.schema()
    except (TypeError, NameError, ValueError, RecursionError) as error:
        raise unsupported(kind, where, error) from None
    except Exception as error:  # pydantic's own, which are not imported here
        if type(error).__module__.partition(".")[0] not in {"pydantic", "pydantic_core"}:
            raise
        raise unsupported(kind, where, error) from None
    return codec


def unsupported(kind: Any, where: str, error: Exception) -> InputError:
    lines = str(error).splitlines() or [type(error).__name__]
    hint = "Use builtin types, dataclasses, msgspec Structs or pydantic models, without mixing the last two."
    return InputError(f"{_name(kind)} cannot be written as JSON: {lines[0]}", where=where, hint=hint)


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its outermost definition in place, so that readers and forms see the fields at once."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definitions = schema.get("$defs", {})
    if name not in definitions:
        return schema
    top = dict(definitions[name])
    others = {key: value for key, value in definitions.items() if key != name}
    if f'"#/$defs/{name}"'.encode() in msgspec.json.encode([top, others]):
        others = definitions  # it contains itself
    return {**top, "$defs": others} if others else top
