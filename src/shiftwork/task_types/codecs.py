"""Converts values of a declared type to JSON and back, and describes that JSON as a schema."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, Literal, Protocol, get_args, get_origin

import msgspec

from shiftwork.model.errors import InputError

MAX_ERRORS = 5


class DoesNotFit(ValueError):
    """Data does not match the declared type; the message says where."""


class Codec(Protocol):
    """Converts values of one type to JSON and back."""

    def encode(self, value: Any) -> Any:
        """Return the value as JSON data; raises `DoesNotFit` if it is not of the type."""
        ...

    def decode(self, data: Any) -> Any:
        """Return the value of the JSON data; raises `DoesNotFit`."""
        ...

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the data; None if anything is allowed."""
        ...


class Anything:
    """For an undeclared type: passes JSON data through."""

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, data: Any) -> Any:
        return data

    def schema(self) -> None:
        return None


class MsgspecCodec:
    """Dataclasses, Structs, TypedDicts and everything else that msgspec supports."""

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
    """Pydantic models, and types that contain them. Only this module imports pydantic."""

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
        except ValueError as error:  # a value without a JSON form
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
    """The value as dicts, lists, strings and numbers."""
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except RecursionError:
        raise DoesNotFit("nested too deeply to be encoded") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise DoesNotFit(str(error)) from None


def _listed(error: Any) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)[:MAX_ERRORS]
    return "; ".join(_located(".".join(map(str, each["loc"])), each["msg"]) for each in found)


def _located(path: str, what: str) -> str:
    return f"{path}: {what}" if path else what


def is_pydantic(kind: Any) -> bool:
    """Whether this is a pydantic class, without importing pydantic."""
    return isinstance(kind, type) and "__pydantic_validator__" in vars(kind)


def mentions_pydantic(kind: Any) -> bool:
    return any(map(is_pydantic, _mentioned(kind)))


def _mentioned(kind: Any) -> Iterator[Any]:
    """The type and all types in its annotation, such as A and B in `list[A | B]`."""
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
    """The codec of an annotation; raises InputError if it has no JSON form."""
    if kind is Any or kind is object:
        return Anything()
    codec: Codec
    try:
        codec = PydanticCodec(kind, mode) if mentions_pydantic(kind) else MsgspecCodec(kind)
        codec.schema()
    except (TypeError, NameError, ValueError, RecursionError) as error:
        raise unsupported(kind, where, error) from None
    except Exception as error:  # pydantic's errors, which are not imported here
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
    """The schema with its outermost definition inlined, so that readers and forms see the fields directly."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    definitions = schema.get("$defs", {})
    if name not in definitions:
        return schema
    top = dict(definitions[name])
    others = {key: value for key, value in definitions.items() if key != name}
    if f'"#/$defs/{name}"'.encode() in msgspec.json.encode([top, others]):
        others = definitions  # it contains itself
    return {**top, "$defs": others} if others else top
