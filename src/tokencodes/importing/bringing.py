"""`import`: a plain Llama folder, or another program's checkpoint, as a model of ours in a folder that appears when it is
whole."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokencodes
from tokencodes.errors import InputError
from tokencodes.files import appearing, write_certificate
from tokencodes.importing.foreign import import_foreign
from tokencodes.importing.names import Mapped
from tokencodes.importing.plain import compact
from tokencodes.importing.readers import read_plain

CARRIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


@dataclass(frozen=True)
class Import:
    """What was made: certificate.json. found: how the interface was found; compared: on what, and how far apart. mapping: their
    tensors, for another program's checkpoint."""

    source: str  # its name; no path, because it travels
    interface: dict[str, Any]
    found: str
    compared: str
    mapping: tuple[Mapped, ...]

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"tokencodes": tokencodes.__version__, **asdict(self)}


def bring(place: Path, out: Path, asked: str | None, map_file: Path | None, logits: Path | None, force: bool) -> Import:
    """Imports `place` into `out`. asked: its interface, where it cannot be found or is to be another. map_file, logits: of
    another program's checkpoint. InputError, CheckFailed: nothing is written."""
    if not place.exists():
        raise InputError(f"{place}: no such file or folder")
    if place.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out}: the model lies there; name another --out")
    plain = read_plain(place) if map_file is None and logits is None else None
    found, mapped = (compact(plain, asked), []) if plain else import_foreign(place, map_file, logits, asked)
    model = found.model
    facts = {key: getattr(model.config, key) for key in ("interface", "spec_sha256", "codebook_sha256", "tokenizer_sha256")}
    needed = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()) + (1 << 22)
    with appearing(out, force, needed) as folder:
        model.save_pretrained(folder)
        for name in CARRIED:
            if place.is_dir() and (place / name).is_file():
                shutil.copyfile(place / name, folder / name)
        made = Import(place.resolve().name, facts, found.found, found.compared, tuple(mapped))
        write_certificate(folder, "tokencodes-import", made.as_json())
    return made
