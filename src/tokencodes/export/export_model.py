"""`export`: runs our own model, writes the export, frees the model, opens the written files in
their runtimes and compares the outputs. Only then does the folder appear.

Our model and the runtime's model are never in memory together. The outputs of our model are kept as
numbers.
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
# The runtimes of a format: name, and whether float32 logits must equal ours bit by bit.
Opening = tuple[Callable[[], Runtime], str, bool]


@dataclass(frozen=True)
class Export:
    """The facts of an export, in certificate.json. reference_difference: the distance of our own
    float32 logits from the float64 reference.
    """

    name: str
    checkpoint: (
        str  # name of the step's or model's folder; the export is published without the path
    )
    format: str
    weights: str
    input_table: str  # the stored type of the table; "code" if the code itself is stored
    frozen_input: bool
    interface: dict[str, Any]
    reference_difference: float
    reference_bound: float
    tokenizer: bool  # whether one is in it
    runtimes: tuple[Agreement, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the facts as one JSON object."""
        return {"tokencodes": tokencodes.__version__, **asdict(self)}


def export(place: Path, to: str, out: Path, weights: str = "F32", force: bool = False) -> Export:
    """Exports a checkpoint into the folder `out`, which appears only after all checks. Returns the
    facts.

    to: llama, gguf, onnx. weights: the type of the matrices. Raises InputError if the input is
    unusable. Raises CheckFailed if the written model is not the same function in an installed
    runtime; the export is then deleted.
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
        agreements = tuple(
            compare(expected, opened, runtime, weights, bitwise)
            for opened, runtime, bitwise in openings
        )
        for agreement in agreements:
            if agreement.status == "differs":
                raise CheckFailed(
                    f"{out}: not made, because {agreement.runtime} does not agree with our model:"
                    f" {agreement.detail}"
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
            agreements,
        )
        write_card(facts, made, folder)
        write_certificate(folder, KIND, made.as_json())
    return made


def check_export_options(to: str, weights: str, out: Path, force: bool) -> tuple[str, str]:
    """Returns the format and the type in their standard spelling. Raises InputError if the
    combination cannot be written, or may not be written there. The check needs no model.
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
    """Returns the name of the file that holds the weights in the export's folder."""
    return {
        "llama": "model.safetensors",
        "gguf": f"{source.name}-{weights}.gguf",
        "onnx": "onnx/model.onnx",
    }[to]


def _write(source: Source, to: str, weights: str, folder: Path) -> str:
    """Writes the files of a format. Returns the type in which the input table is stored."""
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
    config = {
        **source.plain_config(),
        "transformers.js_config": {"use_external_data_format": True} if outside else {},
    }
    write_json(folder / "config.json", config)
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
