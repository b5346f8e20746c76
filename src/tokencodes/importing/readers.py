"""A plain Llama out of the formats that `export` writes: a transformers folder, a GGUF file, an
ONNX graph.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from tokencodes.errors import InputError, first_line
from tokencodes.export.runtimes import OnnxRuntime, Transformers
from tokencodes.files import read_json
from tokencodes.importing.plain import TABLE, Plain, Weights, answers_of, refuse_tied

# Of a configuration: how transformers came by a model, and what forbids to train or save it.
OF_THE_READER = ("_name_or_path", "_model_name_or_path", "quantization_config")
SHAPE = (
    "llama.block_count",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.context_length",
)


def read_plain(place: Path) -> Plain | None:
    """The plain Llama at a place; None where there is none, and another program may have made it.
    InputError where there is one that cannot be read.
    """
    reader, file = _reader(place)
    if reader is None:
        return None
    try:
        return reader(file)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(f"{file}: {error}; pip install 'tokencodes[export]'") from None
    except (
        Exception
    ) as error:  # each library has errors of its own for files that are damaged, incomplete or tied
        raise InputError(
            f"{file}: cannot be read as a Llama with a head of its own ({first_line(error)}); take"
            " a complete copy"
        ) from None


def _reader(place: Path) -> tuple[Callable[[Path], Plain] | None, Path]:
    """What reads a place, and what it reads there."""
    if place.suffix == ".gguf":
        return read_gguf, place
    files = list(place.glob("*.gguf"))
    if place.is_dir() and not (place / "config.json").is_file() and len(files) == 1:
        return read_gguf, files[0]
    if not (place / "config.json").is_file():
        return None, place
    config = read_json(place / "config.json")
    if not isinstance(config, dict):
        raise InputError(f"{place}/config.json: no JSON object; take a new copy")
    if config.get("model_type") != "llama":
        return None, place
    graph = place / "onnx" / "model.onnx"
    return (
        (read_onnx, graph)
        if graph.is_file() and not list(place.glob("*.safetensors"))
        else (read_folder, place)
    )


def read_folder(folder: Path) -> Plain:
    """Of transformers."""
    config = read_json(folder / "config.json")
    refuse_tied(config, folder)  # before anything opens it
    metadata = config.get("tokencodes", {})
    shapes = _shapes(folder)
    if not {TABLE, "lm_head.weight"} <= shapes.keys():
        raise InputError(
            f"{folder}: no table or no head of its own in its files; take a complete copy of an"
            " untied Llama"
        )
    rows = shapes[TABLE][0]
    if rows != config.get("vocab_size"):
        raise InputError(
            f"{folder}: vocab_size {config.get('vocab_size')} in config.json, and a table of"
            f" {rows:,} rows; mend it"
        )
    answers = answers_of(Transformers.open(folder, torch.float32), config)
    return Plain(
        folder,
        config,
        read_weights(folder),
        metadata.get("interface"),
        metadata.get("tokenizer_sha256"),
        answers,
    )


def read_gguf(file: Path) -> Plain:
    """By transformers' own reader. InputError: quantised, of another architecture, or without the
    shape of its model.
    """
    import gguf

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise InputError(
            f"{file}: of the architecture {fields.get('general.architecture')!r}; only llama is"
            " taken"
        )
    absent = [key for key in SHAPE if key not in fields]
    if absent:  # transformers would take the shape of its default Llama, of 7B parameters
        raise InputError(
            f"{file}: {absent[0]} is missing, so the shape of the model is not known; take a"
            " complete file"
        )
    exact = {gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")}
    if not {tensor.tensor_type for tensor in reader.tensors} <= exact:
        raise InputError(
            f"{file}: its weights are quantised, so the trained ones are not in it; take F32"
        )
    runtime = Transformers.open(file.parent, torch.float32, gguf_file=file.name)
    config = runtime.model.config
    config.rms_norm_eps = float(str(np.float32(config.rms_norm_eps)))  # the file has it in float32
    values = {key: value for key, value in config.to_dict().items() if key not in OF_THE_READER}
    # not the reader's own
    values |= {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _ends(fields),
    }
    runtime.exact = False  # that epsilon
    answers, weights = answers_of(runtime, values), dict(runtime.model.state_dict())
    claim, sha256 = fields.get("tokencodes.interface"), fields.get("tokencodes.tokenizer_sha256")
    return Plain(file, values, weights, claim, sha256, answers)


def _ends(fields: dict[str, Any]) -> int | list[int] | None:
    """The tokens at which llama.cpp stops, by a file's metadata: end of text, of a turn, of a
    message; each once.
    """
    ids = [fields.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    ends = list(dict.fromkeys(id for id in ids if id is not None))
    return ends if len(ends) > 1 else next(iter(ends), None)


def read_onnx(file: Path) -> Plain:
    """A graph that `export` wrote: matrices are its initializers, turned; the table is its input
    stage's answer to every id.
    """
    import onnx
    from onnx import numpy_helper

    from tokencodes.export.onnx_graph import INPUT_VECTORS

    config = read_json(file.parent.parent / "config.json")
    answers = answers_of(OnnxRuntime(file), config)
    proto = onnx.load(file)
    if INPUT_VECTORS not in {name for node in proto.graph.node for name in node.output}:
        raise InputError(
            f"{file}: not a graph that `tokencodes export` wrote; import the model that it was made"
            " from"
        )
    weights: Weights = {TABLE: torch.from_numpy(_input_table(proto, int(config["vocab_size"])))}
    for tensor in proto.graph.initializer:
        if tensor.name.endswith(".weight") and tensor.name != TABLE:
            array = numpy_helper.to_array(tensor)
            weights[tensor.name] = torch.from_numpy((array.T if array.ndim == 2 else array).copy())
            tensor.Clear()  # or every matrix is there twice at the end
    props = {prop.key: prop.value for prop in proto.metadata_props}
    sha256 = props.get("tokenizer_sha256")
    claim = None if sha256 in (None, "None") else sha256
    return Plain(file, config, weights, props.get("interface"), claim, answers)


def _input_table(proto: Any, size: int) -> np.ndarray:
    import onnx
    import onnxruntime

    from tokencodes.export.onnx_graph import INPUT_VECTORS

    part = onnx.utils.Extractor(proto).extract_model(["input_ids"], [INPUT_VECTORS])
    session = onnxruntime.InferenceSession(
        part.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    table: np.ndarray = session.run(None, {"input_ids": np.arange(size, dtype=np.int64)[None]})[0][
        0
    ]
    return table


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: no .safetensors file there; name a folder that has one")
    return files


def _shapes(folder: Path) -> dict[str, list[int]]:
    """Of the tensors in a folder's safetensors files; nothing is read but their heads."""
    shapes: dict[str, list[int]] = {}
    for file in _files(folder):
        with safe_open(file, "pt") as opened:
            shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118 (it is no dictionary)
    return shapes


def read_weights(folder: Path) -> Weights:
    """Every tensor of a folder's safetensors files."""
    weights: Weights = {}
    for file in _files(folder):
        try:
            weights |= load_file(file)
        except (SafetensorError, json.JSONDecodeError) as error:
            raise InputError(f"{file}: damaged ({error}); take a new copy") from None
    return weights
