"""Reading a configuration: preset file, then `--set a.b=c`, each value with its origin; errors name
the key and the way out.
"""

import tomllib
import types
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from tokencodes.errors import InputError, nearest
from tokencodes.files import read_toml, write_text
from tokencodes.records import first_complaint
from tokencodes.train.config import FREE, RunConfig, StudyConfig

Model = TypeVar("Model", bound=BaseModel)


def preset_names() -> list[str]:
    """The presets in the package."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in (files("tokencodes") / "presets").iterdir()
        if entry.name.endswith(".toml")
    )


def read_study(preset: str, sets: list[str]) -> tuple[StudyConfig, dict[str, str]]:
    """The study of a preset (a name, or a TOML file) with overrides, and the origin of each dotted
    key.
    """
    table, origin = _preset_table(preset)
    origins = dict.fromkeys(flatten(table), origin)
    for assignment in sets:
        key, value = _assignment(assignment)
        _put(table, key, value, assignment)
        origins = {
            other: before
            for other, before in origins.items()
            if not f"{other}.".startswith(f"{key}.")
        }
        origins[key] = f"--set {assignment}"
    study = validate(StudyConfig, table, origin, origins)
    return study, {
        key: _origin_of(key, origins) or "default" for key in flatten(study.model_dump())
    }


def _origin_of(key: str, origins: dict[str, str]) -> str | None:
    """The origin of a dotted key, or of the section that it came with."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return None


def _blamed(key: str, origin: str, origins: dict[str, str]) -> str:
    """The origin of what is wrong at a dotted key; of a whole section, the file and every --set
    that reaches into it.
    """
    exact = _origin_of(key, origins)
    if exact is not None:
        return exact
    inside = [
        name
        for other, name in origins.items()
        if name != origin and (not key or other.startswith(f"{key}."))
    ]
    return f"{origin} with {', '.join(inside)}" if inside else origin


def write_run(path: Path, run: RunConfig) -> None:
    """Saves a run's resolved configuration as TOML."""
    write_text(path, tomli_w.dumps(run.model_dump(mode="json", exclude_none=True)))


def read_run(path: Path) -> RunConfig:
    """A run's saved configuration."""
    return validate(RunConfig, read_toml(path), str(path))


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            flat |= flatten(inner, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def validate(
    model: type[Model], values: dict[str, Any], origin: str, origins: dict[str, str] | None = None
) -> Model:
    """pydantic's check, its first complaint as one line with the dotted key, the value and the
    origin. origins: of single keys, where not all come from `origin`.
    """
    unknown = _unknown(model, values)
    if unknown:
        key, known = unknown
        owner = next(
            (name for name, field in model.model_fields.items() if key in _keys(field.annotation)),
            None,
        )
        hint = f"did you mean '{owner}.{key}'?" if owner else nearest(key.rpartition(".")[2], known)
        raise InputError(f"{_blamed(key, origin, origins or {})}: unknown key {key!r}; {hint}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"] if part != "[key]")
        raise InputError(
            f"{_blamed(key, origin, origins or {})}: {first_complaint(error)}"
        ) from None


def difference(saved: RunConfig, requested: RunConfig) -> str | None:
    """The first dotted key in which two runs differ, with both values; None if they are the same
    but for their engine.
    """
    old, new = (flatten(config.model_dump(mode="json")) for config in (saved, requested))
    for key in sorted((old.keys() | new.keys()) - FREE):
        if old.get(key) != new.get(key):
            return f"{key} is {old.get(key)!r} there, {new.get(key)!r} asked for"
    return None


def _preset_table(preset: str) -> tuple[dict[str, Any], str]:
    if preset in preset_names():
        return (
            read_toml(Path(str(files("tokencodes") / "presets" / f"{preset}.toml"))),
            f"preset {preset}",
        )
    if Path(preset).is_file():
        return read_toml(Path(preset)), preset
    raise InputError(
        f"{preset!r} is neither a preset nor a TOML file; {nearest(preset, preset_names())}"
    )


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text!r}: write it as section.key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value  # a bare word is a string


def _put(table: dict[str, Any], dotted: str, value: Any, assignment: str) -> None:
    *path, last = dotted.split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {assignment!r}: {part!r} is a value, not a section")
    table[last] = value


def _keys(section: Any) -> list[str]:
    return (
        list(section.model_fields)
        if isinstance(section, type) and issubclass(section, BaseModel)
        else []
    )


def _unknown(model: Any, table: Any, prefix: str = "") -> tuple[str, list[str]] | None:
    """The first key that no section knows, with the keys that were possible there."""
    if not isinstance(table, dict):
        return None
    if get_origin(model) is dict:
        inner = get_args(model)[1]
        unknown_keys = (_unknown(inner, value, f"{prefix}{key}.") for key, value in table.items())
        return next((unknown_key for unknown_key in unknown_keys if unknown_key), None)
    if isinstance(model, types.UnionType) or not (
        isinstance(model, type) and issubclass(model, BaseModel)
    ):
        return None
    for key, value in table.items():
        if key not in model.model_fields:
            return f"{prefix}{key}", list(model.model_fields)
        deeper = _unknown(model.model_fields[key].annotation, value, f"{prefix}{key}.")
        if deeper:
            return deeper
    return None


def descriptions(section: type[BaseModel], values: BaseModel) -> dict[str, str]:
    """What each key of a configuration means.

    section: the class of `values`. Returns one line for each dotted key that `flatten` gives for
    the dumped values, such as {"budget.tokens": "Training ends at ..."}.
    """
    lines: dict[str, str] = {}
    for name, field in section.model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            inner = descriptions(type(value), value)
            lines |= {f"{name}.{key}": line for key, line in inner.items()}
        elif (
            isinstance(value, dict) and value and isinstance(next(iter(value.values())), BaseModel)
        ):
            for key, item in value.items():
                inner = descriptions(type(item), item)
                lines |= {f"{name}.{key}.{last}": line for last, line in inner.items()}
        else:
            text = " ".join((field.description or "").split())
            lines |= dict.fromkeys(flatten({name: value}), text)
    return lines
