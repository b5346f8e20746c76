"""`export`: ask our own model, write, let it go, open what was written in the runtimes that it is
for, compare, and only then show it.

Our model and the runtime's are never in memory together: what ours says is kept as numbers.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tokencodes
from tokencodes.errors import CheckFailed, InputError
from tokencodes.export.agreement import Agreement, compare
from tokencodes.export.card import read_facts, write_card
from tokencodes.export.expected import expect
from tokencodes.export.llama import DTYPES, copy_tokenizer, generation, write_llama
from tokencodes.export.runtimes import LlamaCpp, OnnxRuntime, Runtime, Transformers, TransformersJs
from tokencodes.export.source import Source, open_source
from tokencodes.files import appearing, refuse_taken, write_certificate, write_json

TYPES = {"llama": ("F32", "BF16", "F16"), "gguf": ("F32", "F16", "BF16", "Q8_0"), "onnx": ("F32",)}
BITS = {"F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5}
NEEDS = {"llama": (), "gguf": ("gguf", "accelerate"), "onnx": ("onnx", "onnxruntime")}
KIND = "tokencodes-export"
# What opens a format: name of the runtime, and whether its float32 logits must be ours bit by bit.
Opening = tuple[Callable[[], Runtime], str, bool]


@dataclass(frozen=True)
class Export:
    """What was made: certificate.json. reference_difference: of our own float32 logits from the
    float64 reference.
    """

    name: str
    checkpoint: str  # the step's folder, or the model's; no path, because it travels
    format: str
    weights: str
    input_table: str  # the type that it is stored in; "code" where the code itself is
    frozen_input: bool
    interface: dict[str, Any]
    reference_difference: float
    reference_bound: float
    tokenizer: bool  # whether one is in it
    runtimes: tuple[Agreement, ...]

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"tokencodes": tokencodes.__version__, **asdict(self)}


def export(place: Path, to: str, out: Path, weights: str = "F32", force: bool = False) -> Export:
    """Exports a checkpoint into the folder `out`, which appears when all is well.

    to: llama, gguf, onnx. weights: the type of the matrices. InputError: unusable input.
    CheckFailed: what was written is not the same function in a runtime that is here; it is deleted.
    """
    to, weights = check_export_options(to, weights, out, force)
    if place.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out}: the model lies there; name another --out")
    source = open_source(place)
    if source.place.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{out}: the model lies there; name another --out")
    needed = int(source.weight_bytes * BITS[weights] / 32 * 1.02) + (1 << 22)
    if to == "gguf":  # its table may stay in float32
        needed += 4 * source.model.config.vocab_size * source.model.config.hidden_size
    with appearing(out, force, needed) as folder:
        facts, expected = read_facts(source), expect(source.model, source.place)
        if not expected.from_reference <= expected.bound:
            raise CheckFailed(
                f"{source.place}: our own logits are {expected.from_reference:.1e} from the float64"
                f" reference (bound {expected.bound:.1e}); `tokencodes verify` says where"
            )
        table = _write(source, to, weights, folder)
        exact, frozen, interface, name = source.exact, source.frozen, source.facts(), source.name
        file, taken, tokenizer = (
            file_of(source, to, weights),
            source.place.name,
            source.tokenizer is not None,
        )
        del source  # two models at once would take twice the memory
        openings = _openings(to, weights, folder, file, expected.longest, exact)
        found = tuple(
            compare(expected, opened, runtime, weights, bitwise)
            for opened, runtime, bitwise in openings
        )
        for one in found:
            if one.status == "differs":
                raise CheckFailed(
                    f"{out}: not made, because {one.runtime} does not agree with our model:"
                    f" {one.detail}"
                )
        made = Export(
            name,
            taken,
            to,
            weights,
            table,
            frozen,
            interface,
            expected.from_reference,
            expected.bound,
            tokenizer,
            found,
        )
        write_card(facts, made, folder)
        write_certificate(folder, KIND, made.as_json())
    return made


def check_export_options(to: str, weights: str, out: Path, force: bool) -> tuple[str, str]:
    """Format and type as they are written here. InputError for what cannot be made, or may not be
    made there; said before a model is fetched or read.
    """
    to, weights = to.lower(), weights.upper()
    if to not in TYPES:
        raise InputError(f"--to {to!r}: known: {', '.join(TYPES)}")
    if weights not in TYPES[to]:
        raise InputError(f"--dtype {weights!r}: {to} is written in {', '.join(TYPES[to])}")
    absent = [name for name in NEEDS[to] if find_spec(name) is None]
    if absent:
        raise InputError(f"--to {to} needs {', '.join(absent)}: pip install 'tokencodes[export]'")
    refuse_taken(out.resolve(), force)
    return to, weights


def file_of(source: Source, to: str, weights: str) -> str:
    """Where the weights lie in the export's folder."""
    return {
        "llama": "model.safetensors",
        "gguf": f"{source.name}-{weights}.gguf",
        "onnx": "onnx/model.onnx",
    }[to]


def _write(source: Source, to: str, weights: str, folder: Path) -> str:
    """Writes the files of a format; returns what the input table is stored as."""
    file = folder / file_of(source, to, weights)
    if to == "llama":
        write_llama(source, weights, folder)
        return weights
    if to == "gguf":
        from tokencodes.export.gguf_file import write_gguf

        return write_gguf(source, weights, file)
    from tokencodes.export.onnx_graph import write_onnx

    file.parent.mkdir()
    outside = write_onnx(source, file)
    # transformers.js reads from its own section whether weights lie in a file beside the graph
    told = {
        **source.plain_config(),
        "transformers.js_config": {"use_external_data_format": True} if outside else {},
    }
    write_json(folder / "config.json", told)
    write_json(folder / "generation_config.json", generation(source))
    copy_tokenizer(source, folder)
    return "F32" if source.model.input_interface.spec.learned else "code"


def _openings(
    to: str, weights: str, folder: Path, file: str, longest: int, exact: bool
) -> list[Opening]:
    import torch

    if to == "llama":
        return [(partial(Transformers.open, folder, DTYPES[weights]), "transformers", exact)]
    if to == "onnx":
        return [
            (partial(OnnxRuntime, folder / file), "onnxruntime", False),
            (partial(TransformersJs, folder), "transformers.js", False),
        ]
    reader = partial(Transformers.open, folder, torch.float32, gguf_file=file)
    return [
        (partial(LlamaCpp, folder / file, longest), "llama.cpp", False),
        (reader, "transformers' GGUF reader", False),
    ]
