"""A checkpoint of another program: its tensors by rules or a map, its layout by trying, believed by
its own logits alone.

What names cannot tell (rotary positions of neighbouring channels or of halves, the order in a fused
tensor, the lift of a stored code) is tried, each way that fits, in the independent float64
reference; the one whose logits are those that came with the checkpoint is taken, and if none is,
nothing is. The paper's released files are what this was written for; nobody has tried it on them
yet.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file

from tokencodes.errors import CheckFailed, InputError, first_line
from tokencodes.export.source import require_body
from tokencodes.files import read_json
from tokencodes.importing.names import GATE_UP, QKV, Mapped, mapping, read_map
from tokencodes.importing.plain import TABLE, Imported, Weights, assembled
from tokencodes.importing.readers import read_weights
from tokencodes.importing.stored import interfaces_of
from tokencodes.interfaces import InputInterface
from tokencodes.verify.check import ROUNDOFF
from tokencodes.verify.reference import Shape, forward, layers

ALIASES = {
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads"),
    "rms_norm_eps": ("rms_norm_eps", "norm_eps", "rms_eps", "eps", "layer_norm_epsilon"),
    "rope_theta": ("rope_theta", "rope_base", "rotary_base", "theta"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "block_size",
        "seq_len",
        "context_length",
        "n_ctx",
    ),
}
ASSUMED = {"rms_norm_eps": 1e-5, "rope_theta": 10000.0}


@dataclass(frozen=True, eq=False)
class ReferenceLogits:
    """Logits that came with a checkpoint: ids int64[N, T], logits float[N, T, V]."""

    ids: NDArray[np.int64]
    logits: NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Arrangement:
    """One way to read what names cannot tell."""

    rotary: str  # halves, neighbours
    fused_qkv: str  # stacked, by head
    gate_first: bool

    def __str__(self) -> str:
        return (
            f"rotary by {self.rotary}, fused qkv {self.fused_qkv},"
            f" {'gate' if self.gate_first else 'up'} first"
        )


def read_reference_logits(file: Path) -> ReferenceLogits:
    """`input_ids` and `logits` of a .safetensors or .npz file. InputError where they are not there,
    or do not fit each other.
    """
    try:
        arrays = dict(np.load(file)) if file.suffix == ".npz" else load_arrays(file)
    except Exception as error:  # each library has errors of its own
        raise InputError(
            f"--logits {file}: cannot be read ({str(error).splitlines()[0]})"
        ) from None
    if "input_ids" not in arrays or "logits" not in arrays:
        raise InputError(
            f"--logits {file}: holds {', '.join(sorted(arrays)) or 'nothing'}; input_ids and logits"
            " are needed"
        )
    if arrays["input_ids"].dtype.kind not in "iu":
        raise InputError(
            f"--logits {file}: input_ids of type {arrays['input_ids'].dtype}; whole numbers are"
            " needed"
        )
    ids, logits = np.atleast_2d(arrays["input_ids"]).astype(np.int64), arrays["logits"]
    logits = logits[None] if logits.ndim == 2 else logits
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise InputError(
            f"--logits {file}: input_ids {list(ids.shape)} and logits {list(logits.shape)} do not"
            " fit each other"
        )
    if not ids.size or ids.shape[1] < 2 or not np.isfinite(logits).all() or not logits.any():
        raise InputError(
            f"--logits {file}: texts of two tokens or more, and finite logits that are not all 0,"
            " are needed"
        )
    return ReferenceLogits(ids, logits.astype(np.float32))


def weight_files(place: Path) -> list[Path]:
    """Those of a folder, safetensors before pickles, or the one that was named. InputError where
    there is none.
    """
    if place.is_file():
        return [place]
    files = sorted(place.glob("*.safetensors")) or sorted(
        path for end in ("pt", "pth", "bin") for path in place.glob(f"*.{end}")
    )
    if not files:
        raise InputError(
            f"{place}: no .safetensors, .pt, .pth or .bin file; name one, or its folder"
        )
    return files


def read_tensors(place: Path) -> Weights:
    """The tensors of a folder, or of one .safetensors, .pt, .pth or .bin file; pickles are read as
    weights alone.
    """
    if place.is_dir() and list(place.glob("*.safetensors")):
        return read_weights(place)
    tensors: Weights = {}
    for file in weight_files(place):
        if file.suffix == ".safetensors":
            try:
                tensors |= load_file(file)
            except SafetensorError as error:
                raise InputError(f"{file}: damaged ({error}); take a new copy") from None
            continue
        try:
            state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(
                f"{file}: cannot be read as weights ({first_line(error, 120)})"
            ) from None
        for key in ("model", "state_dict", "model_state_dict"):
            state = (
                state[key]
                if isinstance(state, dict) and isinstance(state.get(key), dict)
                else state
            )
        if not isinstance(state, dict):
            raise InputError(
                f"{file}: holds a {type(state).__name__}, and a dictionary of tensors is needed"
            )
        tensors |= {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return tensors


def import_foreign(
    place: Path, map_file: Path | None, logits: Path | None, requested: str | None
) -> tuple[Imported, list[Mapped]]:
    """The model of another program's checkpoint, and what each of its tensors was taken for.
    InputError: unusable input. CheckFailed: no reading of it gives the logits beside it.
    """
    if logits is None:
        files = weight_files(place)  # there may be none
        raise InputError(
            f"{files[0]}: of no plain Llama, or to be read by --map, so it is believed only by its"
            " own logits; give --logits FILE with input_ids and logits"
        )
    reference, tensors = read_reference_logits(logits), read_tensors(place)
    mapped = mapping(list(tensors), read_map(map_file) if map_file else {})
    config, assumed = read_config(place)
    best, fits = float("inf"), dict[str, tuple[Arrangement, InputInterface, float]]()
    for arrangement in arrangements(mapped):
        weights, code = _laid_out(
            tensors, mapped, arrangement, config["num_attention_heads"], place
        )
        require_complete(weights, config, reference, place)
        for interface in interfaces_of(weights, code, requested, place):
            apart, bound = difference(weights, interface, config, reference)
            best = min(best, apart if np.isfinite(apart) else best)
            if apart <= bound:
                fits.setdefault(_digest(weights, interface), (arrangement, interface, apart))
    if not fits:
        raise CheckFailed(
            f"{place}: no reading of it gives the logits of {logits} (nearest: {best:.3g} apart);"
            " nothing was written"
        )
    if len(fits) > 1:
        readings = "; ".join(
            f"{interface.spec}, {arrangement}" for arrangement, interface, _ in fits.values()
        )
        raise CheckFailed(
            f"{logits}: {len(fits)} readings give these logits ({readings}); give more of them, of"
            " longer texts"
        )
    ((arrangement, interface, apart),) = fits.values()
    weights, _ = _laid_out(tensors, mapped, arrangement, config["num_attention_heads"], place)
    model = _model(weights, interface, config, reference, place)
    description = f"{interface.spec}; {arrangement}" + (
        f"; assumed {', '.join(assumed)}" if assumed else ""
    )
    return (
        Imported(
            model,
            description,
            f"measured on {reference.ids.size} given ids: logits up to {apart:.1e} from"
            " those given",
        ),
        mapped,
    )


def _laid_out(
    tensors: Weights, mapped: list[Mapped], arrangement: Arrangement, heads: int, place: Path
) -> tuple[Weights, Weights]:
    try:
        return laid_out(tensors, mapped, arrangement, heads)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"{place}: its tensors cannot be cut for {heads} heads ({first_line(error, 120)})"
        ) from None


def _digest(weights: Weights, interface: InputInterface) -> str:
    """What tells one reading from another: the tensors of the model that it gives."""
    digest = hashlib.sha256(
        interface.materialize().numpy().data if not interface.spec.learned else b""
    )
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def require_complete(
    weights: Weights, config: dict[str, Any], reference: ReferenceLogits, place: Path
) -> None:
    """InputError where tensors are missing or of shapes that do not fit, or the logits are of
    another vocabulary.
    """
    if "lm_head.weight" not in weights:
        raise InputError(
            f"{place}: no head among its tensors (lm_head.weight): a tied head would make the input"
            " trainable"
        )
    size, width = weights["lm_head.weight"].shape
    blocks = layers({name: np.empty(0) for name in weights})
    gate = weights.get("model.layers.0.mlp.gate_proj.weight")
    inner = len(gate) if gate is not None else 0
    square, wide = (width, width), (inner, width)
    inside = {f"self_attn.{part}_proj": square for part in "qkvo"} | {
        "mlp.gate_proj": wide,
        "mlp.up_proj": wide,
    }
    inside |= {
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    wanted = {
        f"model.layers.{block}.{part}.weight": shape
        for block in range(max(blocks, 1))
        for part, shape in inside.items()
    }
    wanted |= {"model.norm.weight": (width,)} | ({TABLE: (size, width)} if TABLE in weights else {})
    for name, shape in wanted.items():
        if name not in weights or tuple(weights[name].shape) != shape:
            here = list(weights[name].shape) if name in weights else "missing"
            raise InputError(
                f"{place}: {name} is {here}, not {list(shape)}; say by --map FILE which tensor"
                " it is"
            )
    more = sorted(weights.keys() - wanted.keys() - {"lm_head.weight"})
    if more:
        raise InputError(
            f"{place}: {more[0]} has no place in this decoder of {blocks} blocks; drop it by --map"
            " FILE"
        )
    if reference.logits.shape[2] != size:
        raise InputError(
            f"{place}: a head of {size:,} tokens, and logits of {reference.logits.shape[2]:,}"
        )
    if reference.ids.min() < 0 or reference.ids.max() >= size:
        raise InputError(
            f"{place}: input_ids from {reference.ids.min()} to {reference.ids.max()}, and"
            f" {size:,} tokens"
        )
    if width % config["num_attention_heads"]:
        raise InputError(
            f"{place}: width {width} and {config['num_attention_heads']} heads do not fit each"
            " other"
        )


def read_config(place: Path) -> tuple[dict[str, Any], list[str]]:
    """The numbers that weights do not show, under our names; and which of them were assumed."""
    file = (place if place.is_dir() else place.parent) / "config.json"
    config = read_json(file)
    if not isinstance(config, dict):
        raise InputError(f"{file}: no JSON object; take a new copy")
    require_body(config, place)
    config = {**config, **(config.get("rope_parameters") or {})}
    values = {
        ours: next((config[name] for name in names if config.get(name) is not None), None)
        for ours, names in ALIASES.items()
    }
    if values["num_attention_heads"] is None:
        raise InputError(f"{file}: the number of heads is not there; add num_attention_heads")
    assumed = [f"{name} {value:g}" for name, value in ASSUMED.items() if values[name] is None]
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    return {
        **values,
        **{name: value for name, value in ASSUMED.items() if values[name] is None},
        "ends": ends,
    }, assumed


def arrangements(mapped: list[Mapped]) -> Iterator[Arrangement]:
    """Every way that these tensors could be laid out."""
    fused = {
        tuple(name.split(".", 3)[-1].removesuffix(".weight") for name in entry.ours)
        for entry in mapped
        if len(entry.ours) > 1
    }
    layouts = ("stacked", "by head") if QKV in fused else ("stacked",)
    for rotary, layout, gate_first in product(
        ("halves", "neighbours"), layouts, (True, False) if GATE_UP in fused else (True,)
    ):
        yield Arrangement(rotary, layout, gate_first)


def laid_out(
    tensors: Weights, mapped: list[Mapped], arrangement: Arrangement, heads: int
) -> tuple[Weights, Weights]:
    """Their tensors under our names and in our layout, float32; and the code's own tensors."""
    weights: Weights = {}
    for entry in mapped:
        tensor = tensors[entry.source_name]
        if len(entry.ours) > 1:
            tensor = (
                _by_head(tensor, heads, len(entry.ours))
                if "q_proj" in entry.ours[0] and arrangement.fused_qkv == "by head"
                else tensor
            )
            names = (
                entry.ours
                if arrangement.gate_first or "gate" not in entry.ours[0]
                else entry.ours[::-1]
            )
            weights |= dict(zip(names, tensor.chunk(len(names)), strict=True))
        elif entry.ours:
            weights[entry.ours[0]] = tensor
    code: Weights = {
        name: weights.pop(name) for name in ("codebook", "matrix", "offset") if name in weights
    }
    for name, tensor in weights.items():
        if arrangement.rotary == "neighbours" and name.endswith(("q_proj.weight", "k_proj.weight")):
            rows, width = tensor.shape
            tensor = (
                tensor.view(heads, rows // heads // 2, 2, width)
                .transpose(1, 2)
                .reshape(rows, width)
            )
        weights[name] = tensor.float().contiguous()
    return weights, code


def _by_head(tensor: torch.Tensor, heads: int, parts: int) -> torch.Tensor:
    """[q1; k1; v1; q2; ...] as [q; k; v]."""
    rows, width = tensor.shape
    return (
        tensor.view(heads, parts, rows // heads // parts, width)
        .transpose(0, 1)
        .reshape(rows, width)
    )


def difference(
    weights: Weights, interface: InputInterface, config: dict[str, Any], reference: ReferenceLogits
) -> tuple[float, float]:
    """The largest difference of the reference's logits from those given, and the bound of float32,
    on the first text first.
    """
    arrays = {name: tensor.numpy() for name, tensor in weights.items() if name != TABLE}
    # a trained table is what was given, a code what its spec says
    trained = not interface.spec.fixed and TABLE in weights
    table = weights[TABLE] if trained else interface.materialize()
    shape = Shape(config["num_attention_heads"], config["rope_theta"], config["rms_norm_eps"])
    blocks, worst, bound = layers(arrays), 0.0, 0.0
    for ids, logits in zip(reference.ids, reference.logits, strict=True):
        exact = forward({**arrays, TABLE: table.numpy()}, shape, ids)
        bound = max(bound, 32 * (blocks + 1) * ROUNDOFF * float(np.abs(exact).max()))
        worst = float(np.maximum(worst, np.abs(exact - logits).max()))  # NaN stays NaN
        if not worst <= bound:
            break  # another way to read it
    return worst, bound


def _model(
    weights: Weights,
    interface: InputInterface,
    config: dict[str, Any],
    reference: ReferenceLogits,
    place: Path,
) -> Any:
    size, width = weights["lm_head.weight"].shape
    values = {
        "vocab_size": size,
        "hidden_size": width,
        "intermediate_size": len(weights["model.layers.0.mlp.gate_proj.weight"]),
        "num_hidden_layers": layers({name: np.empty(0) for name in weights}),
        "num_attention_heads": config["num_attention_heads"],
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
        "max_position_embeddings": config["max_position_embeddings"] or reference.ids.shape[1],
        **config["ends"],
    }
    table = weights.pop(TABLE, torch.empty(0))
    return assembled(values, interface, weights, table, None, place)
