"""Whether an output passes the validation its task asked for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from shiftwork.core.errors import InputError

MAX_ERRORS = 5
SCHEMA_BYTES = 65_536


def check_schema(schema: Any) -> None:
    """Refuse a schema that could never be used, when it is submitted rather than when work is done."""
    text = msgspec.json.encode(schema)
    if len(text) > SCHEMA_BYTES:
        raise InputError(
            f"the schema has {len(text)} bytes, at most {SCHEMA_BYTES} are allowed",
            where="output.validation_schema",
        )
    try:
        _validator(text)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InputError(f"not a usable JSON Schema: {_short(error)}", where="output.validation_schema") from None


def against_schema(schema: Any, data: Any) -> list[str]:
    """What is wrong with the data, in the validator's words; empty when it passes."""
    validator = _validator(msgspec.json.encode(schema))
    found = []
    for error in validator.iter_errors(data):
        where = "/".join(str(part) for part in error.instance_path)
        found.append(f"{where or 'output'}: {_short(error)}")
        if len(found) == MAX_ERRORS:
            break
    return found


@lru_cache(maxsize=512)
def _validator(text: bytes) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(msgspec.json.decode(text), retriever=_refuse)


def _refuse(uri: str) -> NoReturn:
    """By default the library would fetch addresses and read files that a submitter names."""
    raise ValueError(f"references outside the schema are not followed: {uri}")


def _short(error: BaseException) -> str:
    return str(getattr(error, "message", error)).splitlines()[0][:300]
