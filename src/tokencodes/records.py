"""JSON that is written and read again, checked against a frozen pydantic model when it is read.

A file may have valid syntax and wrong contents: `{}`, `null`, a missing field, a word where a
number belongs. Such a file is an error that names the file and the field. It never ends in a
traceback, and it is never believed.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tokencodes.errors import InputError
from tokencodes.files import read_json


class Record(BaseModel):
    """The base of every record: it is frozen, unknown fields are refused, and so are NaN and
    infinity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Known(Record):
    """The base of records of which a reader needs some fields: the file may have others."""

    model_config = ConfigDict(extra="ignore")


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(
    path: Path, kind: type[AnyRecord], remedy: str = "take a new copy, or make it anew"
) -> AnyRecord:
    """The record in a JSON file. InputError names the file and its first wrong field, and ends with
    `remedy`.
    """
    return checked(read_json(path), kind, str(path), remedy)


def checked_lines(
    lines: Iterable[Any], kind: type[AnyRecord], path: Path, remedy: str
) -> Iterable[AnyRecord]:
    """The records of the lines of a file. InputError names the file and the line."""
    return (
        checked(line, kind, f"{path}, line {number}", remedy)
        for number, line in enumerate(lines, 1)
    )


def checked(value: Any, kind: type[AnyRecord], place: str, remedy: str) -> AnyRecord:
    """A value out of JSON as a record. InputError names the place and the first wrong field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise InputError(f"{place}: {first_complaint(error)}; {remedy}") from None


def first_complaint(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, in one line: dotted key, value, message."""
    first = error.errors()[0]
    if isinstance(first.get("ctx", {}).get("error"), InputError):
        return str(first["ctx"]["error"])
    place = ".".join(str(part) for part in first["loc"] if part != "[key]")
    message = first["msg"].removeprefix("Value error, ")
    message = {
        "tuple_type": "must be a list, such as '[\"a\", \"b\"]' or '[1, 2]'",
        "missing": "is missing; it has no default",
        "dict_type": "must be a table of keys",
        "model_type": "must be a table of keys",
    }.get(first["type"], message)
    given = "" if isinstance(first["input"], dict | BaseModel) else f" = {first['input']!r}"
    return f"{place}{given}: {message}" if place else message
