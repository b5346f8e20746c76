"""`import`: a plain Llama folder, or another program's checkpoint, as a model of ours in a folder
that appears when it is whole.

Whoever imports may have trained the model since it was exported, so files that are not those of its
certificate are no error; they are said.
"""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokencodes
from tokencodes.codes import InterfaceSpec
from tokencodes.errors import InputError
from tokencodes.escape import markdown, markdown_code
from tokencodes.files import (
    CARD,
    appearing,
    certified,
    changed_since,
    file_sha256,
    read_json,
    refuse_taken,
    write_certificate,
    write_text,
)
from tokencodes.importing.foreign import import_foreign
from tokencodes.importing.names import Mapped
from tokencodes.importing.plain import compact
from tokencodes.importing.readers import read_plain
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM

CARD_TEXT = """\
---
tags:
- tokencodes
---

# {name}

A Llama decoder whose token input is the interface {interface} ({found}). Its class is tokencodes'
own, so stock transformers does not load it. `tokencodes.load(FOLDER)` does: FOLDER is these files
or their name on the hub. `tokencodes export` writes it for other programs. `certificate.json` says
from what it was imported, and what was compared.
"""
CARRIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)


@dataclass(frozen=True)
class Import:
    """What was made, as certificate.json holds it.

    recognised_by: how the interface was recognised. compared: on what, and how far apart. notes:
    what a user of the model must know. mapping: the source's tensors, for another program's
    checkpoint.
    """

    source: str  # its name; no path, because it travels
    interface: dict[str, Any]
    recognised_by: str
    compared: str
    notes: tuple[str, ...]
    mapping: tuple[Mapped, ...]

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"tokencodes": tokencodes.__version__, **asdict(self)}


def import_model(
    place: Path,
    out: Path,
    requested: str | None,
    map_file: Path | None,
    logits: Path | None,
    force: bool,
) -> Import:
    """Imports `place` into `out`. requested: its interface, where it cannot be found or is to be
    another. map_file, logits: of another program's checkpoint. InputError, CheckFailed: nothing is
    written.
    """
    check_import_options(out, requested, map_file, logits, force)
    if not place.exists():
        raise InputError(f"{place}: no such file or folder")
    if place.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out}: the model lies there; name another --out")
    _refuse_ours(place, is_foreign=map_file is not None or logits is not None)
    plain = read_plain(place) if map_file is None and logits is None else None
    imported, mapped = (
        (compact(plain, requested), [])
        if plain
        else import_foreign(place, map_file, logits, requested)
    )
    model = imported.model
    facts = {
        key: getattr(model.config, key)
        for key in ("interface", "spec_sha256", "codebook_sha256", "tokenizer_sha256")
    }
    notes = tuple(_notes(place, model))
    needed = sum(
        tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()
    ) + (1 << 22)
    with appearing(out, force, needed) as folder:
        model.save_pretrained(folder)
        for name in CARRIED:
            if place.is_dir() and (place / name).is_file():
                shutil.copyfile(place / name, folder / name)
        made = Import(
            place.resolve().name,
            facts,
            imported.recognised_by,
            imported.compared,
            notes,
            tuple(mapped),
        )
        shown = {
            "name": markdown(made.source),
            "interface": markdown_code(facts["interface"]),
            "found": markdown(made.recognised_by),
        }
        write_text(folder / CARD, CARD_TEXT.format(**shown))
        write_certificate(folder, "tokencodes-import", made.as_json())
    return made


def check_import_options(
    out: Path, requested: str | None, map_file: Path | None, logits: Path | None, force: bool
) -> None:
    """InputError for an interface that is none, files that are not there, or a folder that may not
    be replaced; said before a model is fetched or read.
    """
    if requested is not None:
        InterfaceSpec.parse(requested)
    for option, file in (("--map", map_file), ("--logits", logits)):
        if file is not None and not file.is_file():
            raise InputError(f"{option} {file}: no such file")
    refuse_taken(out.resolve(), force)


def _refuse_ours(place: Path, is_foreign: bool) -> None:
    """Raises InputError for a model of tokencodes, and for one file of a plain Llama folder.

    is_foreign: whether the options mark the place as another program's checkpoint.
    """
    config = place / "config.json"
    if list(place.glob("checkpoints/step-*/manifest.json")) or (
        config.is_file() and read_json(config).get("model_type") == TokenCodeConfig.model_type
    ):
        raise InputError(
            f"{place}: a model of tokencodes already, so there is nothing to import; name it as"
            " it is"
        )
    folder = place.parent.parent if place.suffix == ".onnx" else place.parent
    part = (
        not is_foreign
        and place.suffix in (".onnx", ".safetensors")
        and (folder / "config.json").is_file()
    )
    if part and read_json(folder / "config.json").get("model_type") == "llama":
        raise InputError(f"{place}: one file of a plain Llama; name its folder, {folder}")


def _notes(place: Path, model: TokenCodeForCausalLM) -> Iterator[str]:
    """InputError where the tokenizer beside it is not the one that it was trained with."""
    folder = place if place.is_dir() else place.parent
    certificate = certified(folder)
    for name in changed_since(folder, certificate) if certificate else ():
        if name != CARD:
            yield f"{name} is not the file that was certified when it was exported"
    if certificate and certificate.get("weights", "F32") != "F32":
        yield (
            f"its weights were rounded to {certificate['weights']} when it was exported: what was"
            " trained is not in that file"
        )
    wanted, tokenizer = model.config.tokenizer_sha256, place / "tokenizer.json"
    if not tokenizer.is_file():
        yield (
            "no tokenizer came with it: put its tokenizer.json into the folder that you import, and"
            " import that again"
        )
    elif wanted not in (None, digest := file_sha256(tokenizer)):
        raise InputError(
            f"{tokenizer}: SHA-256 {digest[:12]}, but the model was trained with"
            f" {str(wanted)[:12]}; put that file there"
            " (transformers' save_pretrained writes another one: take the"
            " export's)"
        )
