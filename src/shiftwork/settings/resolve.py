"""Resolves settings from their levels, with the source of each value; loads the packaged profiles.

The weakest level comes first: default, profile, the profile's own values for a type, workspace, the
declaration of a type in code, the workspace's values for a type, task. A level is nested JSON. Groups add up key by
key, lists replace each other, and null switches an optional group off; naming one of its keys at a stronger
level switches it on.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib import resources
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import msgspec

from shiftwork.model.bounds import MAX_NUMBER
from shiftwork.model.errors import InputError, UnknownSetting
from shiftwork.model.states import STORED
from shiftwork.settings import model as declared
from shiftwork.settings.meanings import MEANING
from shiftwork.settings.model import InForce, Part, Settings

_FILES = resources.files("shiftwork.settings").joinpath("profiles")
PROFILES = tuple(
    sorted(
        (file.name.removesuffix(".toml") for file in _FILES.iterdir() if file.name.endswith(".toml")),
        key=lambda name: (name != "standard", name),
    )
)
"""One file each; the default profile comes first."""

Values = Mapping[str, Any]
P = TypeVar("P", bound=Part)


class Layer(NamedTuple):
    """One level of settings and the name it is shown under."""

    source: str
    values: Values


class Profile(NamedTuple):
    """A named set of settings: of a document, or for a kind of fleet."""

    name: str
    values: Values
    types: Mapping[str, Values]


class DeclaredType(NamedTuple):
    """A type's declaration in code: settings, and the JSON Schemas of its payloads and results as text."""

    settings: Values
    payload_schema: bytes | None
    result_schema: bytes | None


def source_of_code(type_name: str) -> str:
    """The source shown for settings declared in a type's code."""
    return f"code of type {type_name}"


class _Field(NamedTuple):
    attribute: str
    kind: Any
    group: type[Part] | None
    optional: bool
    default: Any


@cache
def _fields(part: type[Part]) -> dict[str, _Field]:
    """The fields of a group under the names users write."""
    return {f.encode_name: _field(f) for f in msgspec.structs.fields(part)}


def _field(info: msgspec.structs.FieldInfo) -> _Field:
    is_union = get_origin(info.type) in {Union, UnionType}
    options = get_args(info.type) if is_union else (info.type,)
    groups = [o for o in options if isinstance(o, type) and issubclass(o, Part)]
    return _Field(info.name, info.type, groups[0] if groups else None, type(None) in options, info.default)


def _declared(part: type[Part], prefix: str = "") -> Iterator[str]:
    for name, field in _fields(part).items():
        key = prefix + name
        if field.group is None or field.optional:
            yield key
        if field.group is not None:
            yield from _declared(field.group, key + ".")


KEYS = tuple(_declared(Settings))
"""Every key that can be set, as declared; an optional group is a key itself, since null switches it off."""


def resolve(layers: Sequence[Layer]) -> Settings:
    """Merge the layers' settings, weakest first, on top of the defaults."""
    return _stack(Settings(), layers)


def _stack(base: Settings, layers: Sequence[Layer]) -> Settings:
    for layer in layers:
        base = _apply(base, layer.values, "", layer.source)
    if layers:
        _check_together(base)
    return base


def _apply(part: P, values: Values, prefix: str, source: str) -> P:
    changes = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        field = _field_named(type(part), name, key, source)
        changes[field.attribute] = _changed(field, getattr(part, field.attribute), value, key, source)
    return msgspec.structs.replace(part, **changes)


def _field_named(part: type[Part], name: str, key: str, source: str) -> _Field:
    field = _fields(part).get(name)
    if field is None:
        raise _unknown(key, source)
    return field


def _changed(field: _Field, current: Any, value: Any, key: str, source: str) -> Any:
    if field.group is None or not isinstance(value, Mapping):
        return _leaf(field, value, key, source)
    if current is None:
        return _switch_on(field.group, value, key, source)
    return _apply(current, value, key + ".", source)


def _switch_on(group: type[Part], values: Values, key: str, source: str) -> Part:
    """A group that was off starts from its own defaults; values without one must be given."""
    given = {}
    for name, value in values.items():
        inner = f"{key}.{name}"
        field = _field_named(group, name, inner, source)
        given[field.attribute] = _leaf(field, value, inner, source)
    missing = [n for n, f in _fields(group).items() if f.default is msgspec.NODEFAULT and f.attribute not in given]
    if missing:
        names = " and ".join(missing)
        raise InputError(f"`{key}` is off and cannot be switched on without {names}", where=key, source=source)
    return group(**given)


def _leaf(field: _Field, value: Any, key: str, source: str) -> Any:
    try:
        value = _in_seconds(value) if key.endswith("_sec") else value
        converted = msgspec.convert(value, field.kind)
    except msgspec.ValidationError as error:
        what, _, inside = str(error).partition(" - at `$")
        raise _problem(what + _choices(field.kind), key + inside.rstrip("`"), source) from None
    if problem := _size(value) or _CHECKS.get(key, _nothing)(converted):
        raise _problem(problem, key, source)
    return converted


def _in_seconds(value: Any) -> Any:
    """A duration as a number: it may be given as a `timedelta`, which JSON writes as PT90S."""
    if isinstance(value, list | tuple):
        return [_in_seconds(each) for each in value]
    if isinstance(value, str) and value.startswith("P"):
        value = msgspec.convert(value, timedelta)
    return value.total_seconds() if isinstance(value, timedelta) else value


def _problem(what: str, key: str, source: str) -> InputError:
    return InputError(f"{what}, from {source}", where=key, source=source)


def _choices(kind: Any) -> str:
    named = [repr(word) for word in get_args(kind) if isinstance(word, str)]
    return f", expected one of {', '.join(named)}" if named else ""


def _size(value: Any) -> str | None:
    if isinstance(value, int | float):
        too_large = abs(value) > MAX_NUMBER or not math.isfinite(value)  # in this order: a huge integer is not a float
        return f"Expected a number between -{MAX_NUMBER:g} and {MAX_NUMBER:g}" if too_large else None
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next(filter(None, map(_size, value)), None)
    return None


def _nothing(_: Any) -> None:
    return None


def _states(names: tuple[str, ...]) -> str | None:
    wrong = [name for name in names if name not in STORED]
    return f"There is no state {wrong[0]!r}" if wrong else None


def _range(bounds: tuple[float, float]) -> str | None:
    low, high = bounds
    return None if 0 <= low <= high else "Expected two factors, the smaller first"


def _share(by: str) -> str | None:
    known = by in {"none", "created_by", "issue_id"} or (by.startswith("tag:") and len(by) > len("tag:"))
    return None if known else "Expected none, created_by, issue_id, or tag: with the beginning of a tag"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "fair_share.by": _share,
    "retry.jitter_range": _range,
    "rate_limit.jitter_range": _range,
    "idempotency.scope_states": _states,
    "cancel.from": _states,
}


def _check_together(s: Settings) -> None:
    """Refuse combinations of values that are only valid separately."""
    if s.retry.strategy == "schedule" and not s.retry.schedule_sec:
        raise InputError("The strategy `schedule` needs at least one delay", where="retry.schedule_sec")
    if s.warning_at > s.critical_at:
        raise InputError("The warning must not come after the critical mark", where="warning_at")


MAX_KEY_LENGTH = 100
"""The most characters of a key for which similar keys are searched."""


def _unknown(key: str, source: str) -> UnknownSetting:
    near = nearest(key)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    return UnknownSetting(f"There is no setting `{key}`{hint}, from {source}", where=key, source=source, nearest=near)


def nearest(key: str) -> list[str]:
    """Similar known keys, best first; a match of the last part counts as much as of the whole."""
    if len(key) > MAX_KEY_LENGTH:
        return []  # too long to resemble any key, and comparing takes long
    known = [*KEYS, *(k for k, f in _fields(Settings).items() if f.group and not f.optional)]
    whole = difflib.get_close_matches(key, known, n=3, cutoff=0.7)
    last = key.rpartition(".")[2]
    parts = [k for k in known if difflib.SequenceMatcher(None, last, k.rpartition(".")[2]).ratio() >= 0.85]
    return list(dict.fromkeys([*whole, *parts]))[:3]


def in_force(layers: Sequence[Layer]) -> list[InForce]:
    """Every setting with its value and the layer it comes from, in the order of declaration."""
    sources = _sources(layers)
    return [InForce(key, value, sources.get(key, "default"), MEANING[key]) for key, value in flat(resolve(layers))]


def flat(settings: Part, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and JSON values of these settings; a group that is off is one key with null."""
    for name, field in _fields(type(settings)).items():
        value = getattr(settings, field.attribute)
        if field.group is not None and value is not None:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _plain(msgspec.to_builtins(value))


def _plain(value: Any) -> Any:
    """60.0 reads as 60, so that a number looks the same whether a user wrote it or the code did."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _sources(layers: Sequence[Layer]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for layer in layers:
        for key, value in _mentioned(Settings, layer.values):
            sources[key] = layer.source
            if value is None:
                sources = {k: s for k, s in sources.items() if not k.startswith(key + ".")}
    return sources


def mentioned(values: Values) -> dict[str, Any]:
    """The values of a level of settings, by dotted key."""
    return dict(_mentioned(Settings, values))


def _mentioned(part: type[Part], values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        group = _fields(part)[name].group if name in _fields(part) else None
        if group is not None and isinstance(value, Mapping):
            yield from _mentioned(group, value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check_value(key: str, value: Any) -> dict[str, Any]:
    """The nested form of one dotted key, once the key is known and the value fits it.

    Conflicts with other levels are only found by `merge` and `resolve`.
    """
    part: type[Part] = Settings
    source = "the request"
    *groups, last = key.split(".")
    for name in groups:
        group = _field_named(part, name, key, source).group
        if group is None:
            raise _unknown(key, source)
        part = group
    _check_field(_field_named(part, last, key, source), value, key, source)
    for name in reversed([*groups, last]):
        value = {name: value}
    return dict(value)


def _check_field(field: _Field, value: Any, key: str, source: str) -> None:
    if field.group is None or not isinstance(value, Mapping):
        _leaf(field, value, key, source)
        return
    for name, inner in value.items():
        _check_field(_field_named(field.group, name, f"{key}.{name}", source), inner, f"{key}.{name}", source)


def merge(values: Values, change: Values) -> dict[str, Any]:
    """A level of settings with a change applied, still as a level: null stays null."""
    merged = dict(values)
    for name, value in change.items():
        old = merged.get(name)
        is_group = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(cast(Values, old), value) if is_group else value
    return merged


def drop(values: Values, key: str) -> dict[str, Any]:
    """A level of settings without this dotted key, so that weaker levels apply again."""
    name, _, rest = key.partition(".")
    kept = {k: v for k, v in values.items() if k != name}
    inner = values.get(name)
    if rest and isinstance(inner, Mapping):
        left = drop(inner, rest)
        return {**kept, name: left} if left else kept
    return kept if not rest else dict(values)


@cache
def load_profile(name: str) -> Profile:
    """One of the packaged profiles."""
    if name not in PROFILES:
        raise InputError(
            f"There is no profile {name!r}",
            where="profile",
            hint="Choose one of " + ", ".join(PROFILES) + ".",
        )
    text = _FILES.joinpath(name + ".toml").read_text(encoding="utf-8")
    values = _with_nulls(tomllib.loads(text))
    types = values.pop("types", {})
    return Profile(name, values, types)


def _with_nulls(value: Any) -> Any:
    """TOML has no null; the profiles write the text "null" instead, and no setting means that text."""
    if isinstance(value, dict):
        return {k: _with_nulls(v) for k, v in value.items()}
    return None if value == "null" else value


class Resolver:
    """The settings in force in one workspace, resolved for every type; invalid settings raise on creation.

    A task without settings of its own costs one lookup.
    """

    def __init__(
        self,
        profile: Profile,
        workspace: Values | None = None,
        types: Mapping[str, Values] | None = None,
        declared: Mapping[str, DeclaredType] | None = None,
    ) -> None:
        self._profile = profile
        self._workspace = workspace or {}
        self._types = types or {}
        self._declared = declared or {}
        self._base = resolve(self.layers())
        own = {*profile.types, *self._types, *(name for name, each in self._declared.items() if each.settings)}
        self._by_type = {name: resolve(self.layers(name)) for name in own}
        self.plans: dict[Any, Any] = {}
        """Values that submissions derived from these settings, cached as long as they are in force."""

    def settings(self, type_name: str | None = None, task: Values | None = None) -> Settings:
        """The settings in force for a task of this type with these settings of its own."""
        found = self._base if type_name is None else self._by_type.get(type_name, self._base)
        return _stack(found, [self._task_layer(task)]) if task else found

    def declared(self, type_name: str) -> DeclaredType | None:
        """The type's declaration in code, if registered."""
        return self._declared.get(type_name)

    def anywhere(self, holds: Callable[[Settings], bool]) -> bool:
        """Whether this holds for the workspace, or for any type with settings of its own."""
        return holds(self._base) or any(map(holds, self._by_type.values()))

    def layers(self, type_name: str | None = None, task: Values | None = None) -> list[Layer]:
        """The non-empty layers, weakest first."""
        name = self._profile.name
        stack = [Layer(f"profile {name}", self._profile.values)]
        if type_name is not None and type_name in self._profile.types:
            stack.append(Layer(f"profile {name}, type {type_name}", self._profile.types[type_name]))
        stack.append(Layer("workspace", self._workspace))
        if type_name is not None and type_name in self._declared:
            layer = Layer(source_of_code(type_name), self._declared[type_name].settings)
            _check_reach(layer, "type")
            stack.append(layer)
        if type_name is not None and type_name in self._types:
            layer = Layer(f"type {type_name}", self._types[type_name])
            _check_reach(layer, "type")
            stack.append(layer)
        if task:
            stack.append(self._task_layer(task))
        return [layer for layer in stack if layer.values]

    def in_force(self, type_name: str | None = None, task: Values | None = None) -> list[InForce]:
        return in_force(self.layers(type_name, task))

    @staticmethod
    def _task_layer(task: Values) -> Layer:
        layer = Layer("task", task)
        _check_reach(layer, "task")
        return layer


def _check_reach(layer: Layer, level: Literal["type", "task"]) -> None:
    """Refuse keys of a higher level: otherwise a submitter could lift the guard that stops its task."""
    for name in layer.values:
        reach = declared.REACH.get(name, "task")
        if reach == "workspace" or (reach == "type" and level == "task"):
            above = "workspace" if reach == "workspace" else "type or the workspace"
            raise InputError(
                f"`{name}` cannot be set for one {level}",
                where=name,
                source=layer.source,
                hint=f"Set it for the {above}.",
            )
