"""Reads the parameters and the result of a typed function from its annotations, once, at registration."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from shiftwork.model.errors import InputError
from shiftwork.model.reports import TaskResult
from shiftwork.task_types import codecs
from shiftwork.task_types.codecs import Codec

_HINT = "A task takes an optional Context first, then annotated parameters; it can be async or a plain function."
_PLAIN = (type(None), bool, int, float, str)


class Arguments(NamedTuple):
    """The arguments of a function, without the context."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Signature:
    """Converts a payload to the arguments of a function, and its return value to a result."""

    def __init__(self, function: Callable[..., Any], context: type[Any]) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        _refuse_generators(function, self.name)
        read = _read(function, self.name)
        hints = _hints(function, self.name)
        parameters = list(read.parameters.values())
        self.takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name), context)
        own = parameters[1:] if self.takes_context else parameters
        for parameter in own:
            _check(parameter, hints, context, self.name)
        self._bindable = read.replace(parameters=own)
        self._payload = _payload_codec(own, hints, self.name)
        self._result = _result_codec(hints.get("return", Any), self.name)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload of a call; raises TypeError as the call would, or `DoesNotFit`."""
        given = self._bindable.bind(*args, **kwargs).arguments
        payload: dict[str, Any] = self._payload.encode(given)
        return payload

    def decode(self, payload: Mapping[str, Any]) -> Arguments:
        """The arguments in a payload; raises `DoesNotFit`."""
        bound = inspect.BoundArguments(self._bindable, self._payload.decode(payload))
        return Arguments(bound.args, bound.kwargs)

    def encode_result(self, value: Any) -> Any:
        return self._result.encode(value)

    def decode_result(self, data: Any) -> Any:
        return self._result.decode(data)

    @property
    def payload_schema(self) -> dict[str, Any]:
        return self._payload.schema()

    @property
    def result_schema(self) -> dict[str, Any] | None:
        return self._result.schema()


def _refuse_generators(function: Callable[..., Any], name: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InputError(f"{name} is a generator: it returns no result", where=name, hint="Return the result instead.")


def _read(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InputError(f"the signature of {name} cannot be read: {error}", where=name, hint=_HINT) from None


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        hint = "Define its types at module level, and import them at run time."
        raise InputError(f"an annotation of {name} cannot be read: {error}", where=name, hint=hint) from None


def _is_context(hint: Any, context: type[Any]) -> bool:
    return isinstance(hint, type) and issubclass(hint, context)


def _check(parameter: inspect.Parameter, hints: Mapping[str, Any], context: type[Any], name: str) -> None:
    where = f"{name}.{parameter.name}"
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise InputError(f"{name} takes {parameter}, which no schema describes", where=where, hint=_HINT)
    if parameter.name not in hints:
        raise InputError(f"parameter {parameter.name!r} of {name} has no annotation", where=where, hint=_HINT)
    if _is_context(hints[parameter.name], context):
        raise InputError(f"the context must be the first parameter of {name}", where=where, hint=_HINT)


class _Payload(typing.Protocol):
    """Converts the named arguments of a call to a payload, and back."""

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...

    def decode(self, payload: Any) -> dict[str, Any]: ...

    def schema(self) -> dict[str, Any]: ...


class _Whole:
    """The payload is the single argument, which is an object."""

    def __init__(self, name: str, codec: Codec, schema: dict[str, Any]) -> None:
        self._name = name
        self._codec = codec
        self._schema = {"additionalProperties": False} | schema

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self._name not in arguments:
            return {}  # its default
        return dict(self._codec.encode(arguments[self._name]))

    def decode(self, payload: Any) -> dict[str, Any]:
        return {self._name: self._codec.decode(payload)}

    def schema(self) -> dict[str, Any]:
        return self._schema


class _Fields:
    """Each parameter is a field of the payload; missing ones keep their defaults."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self._codec = codecs.MsgspecCodec(struct)
        self._names = struct.__struct_fields__

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = codecs.to_data(dict(arguments))
        self._codec.decode(data)
        return data

    def decode(self, payload: Any) -> dict[str, Any]:
        read = self._codec.decode(payload)
        return {name: getattr(read, name) for name in self._names}

    def schema(self) -> dict[str, Any]:
        return self._codec.schema()


class _PydanticFields:
    """Like `_Fields`, if a parameter's type contains a pydantic model."""

    def __init__(self, model: Any) -> None:
        self._codec = codecs.PydanticCodec(model, "validation")
        self._names = tuple(model.model_fields)

    def encode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        written = self._codec.encode(dict(arguments))
        return {name: written[name] for name in arguments}

    def decode(self, payload: Any) -> dict[str, Any]:
        read = self._codec.decode(payload)
        return {name: getattr(read, name) for name in self._names}

    def schema(self) -> dict[str, Any]:
        return self._codec.schema()


def _payload_codec(parameters: list[inspect.Parameter], hints: Mapping[str, Any], name: str) -> _Payload:
    if len(parameters) == 1 and codecs.is_model(hints[parameters[0].name]):
        return _whole(parameters[0], hints[parameters[0].name], name)
    title = name.rpartition(".")[2]
    if any(codecs.mentions_pydantic(hints[parameter.name]) for parameter in parameters):
        return _pydantic_fields(title, parameters, hints, name)
    fields = [_field(parameter, hints[parameter.name], f"{name}.{parameter.name}") for parameter in parameters]
    struct = msgspec.defstruct(title, fields, kw_only=True, forbid_unknown_fields=True)
    return _Fields(struct)


def _whole(parameter: inspect.Parameter, kind: Any, name: str) -> _Whole:
    where = f"{name}.{parameter.name}"
    if parameter.default is not parameter.empty:
        hint = "Remove the default, or give the fields of the class defaults."
        raise InputError(f"the payload is {parameter.name!r} itself and has no default", where=where, hint=hint)
    codec = codecs.codec_of(kind, "validation", where)
    schema = codec.schema()
    if schema is None or schema.get("type") != "object":
        hint = "Use a type with named fields: a Struct without array_like, a dataclass or a pydantic model."
        raise InputError(f"{parameter.name!r} of {name} is not a JSON object", where=where, hint=hint)
    return _Whole(parameter.name, codec, schema)


def _field(parameter: inspect.Parameter, kind: Any, where: str) -> tuple[str, Any, Any]:
    codecs.codec_of(kind, "validation", where)  # raises here, where the parameter is known
    if parameter.default is parameter.empty:
        return parameter.name, kind, msgspec.NODEFAULT
    default = parameter.default
    if isinstance(default, _PLAIN):
        return parameter.name, kind, default
    return parameter.name, kind, msgspec.field(default_factory=lambda: default)


def _pydantic_fields(
    title: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any], name: str
) -> _PydanticFields:
    import pydantic  # noqa: PLC0415  # only where the user's own class needs it

    fields: dict[str, Any] = {
        parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
        for parameter in parameters
    }
    try:
        model = pydantic.create_model(title, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    except (TypeError, NameError, ValueError, pydantic.errors.PydanticUserError) as error:
        raise codecs.unsupported(name, name, error) from None
    return _PydanticFields(model)


def _result_codec(kind: Any, name: str) -> Codec:
    if kind is type(None) or (isinstance(kind, type) and issubclass(kind, TaskResult)):
        return codecs.Anything()  # None, or an explicit Result
    return codecs.codec_of(kind, "serialization", f"{name}.return")
