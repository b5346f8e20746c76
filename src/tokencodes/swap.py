"""A fixed input interface in any model: `swap_input(model, spec)`. Several models can share one
declared interface.

It works for causal language models of transformers, and for a plain torch module with one
embedding. The body is not changed. A head that was tied to the table gets a copy of it, with a
warning. A model's own scaling (Gemma's sqrt(d)) stays.
"""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_model as save_weights
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.errors import InputError, loading
from tokencodes.files import read_json_object, write_json
from tokencodes.interfaces import (
    TIED,
    InputInterface,
    build_interface,
    refuse_resize,
    refuse_tied_head,
)
from tokencodes.records import Record, checked

BOUNDARY_VERSION = 1
WEIGHTS = "model.safetensors"


class ScaledInput(nn.Module):
    """An interface for a model that multiplies its embeddings by a constant inside the embedding
    module.
    """

    def __init__(self, interface: InputInterface, scale: float) -> None:
        super().__init__()
        self.interface = interface
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        x = self.interface(ids)
        return x * torch.tensor(self.scale, dtype=x.dtype, device=x.device)


def swap_input(
    model: nn.Module, spec: str, module: str | None = None, given: Given | None = None
) -> nn.Module:
    """Replaces the token embedding of a model, in place, by the interface of a spec. Returns the
    model.

    module: the dotted name of the embedding, for a torch module with several. given: arrays that
    the spec names by hash. Warns if a tied head was untied. Raises InputError if there is no
    embedding, if there are several, or if the spec does not fit V×d.
    """
    name, table = _find_embedding(model, module)
    interface = build_interface(
        InterfaceSpec.parse(spec), table.num_embeddings, table.embedding_dim, None, given
    )
    _untie(model, name, table.weight)
    interface = interface.to(device=table.weight.device, dtype=table.weight.dtype)
    scale = getattr(
        table, "scalar_embed_scale", None
    )  # the attribute's name in transformers, for every Gemma
    model.set_submodule(name, interface if scale is None else ScaledInput(interface, float(scale)))
    if isinstance(model, PreTrainedModel):
        model.config.tokencodes_interface = str(interface.spec)
        model.config.tokencodes_codebook_sha256 = interface.sha256
        model.resize_token_embeddings = refuse_resize
        for name in ("tie_weights", "save_pretrained"):
            setattr(model, name, partial(_with_its_own_head, model, name))
    return model


def _with_its_own_head(model: PreTrainedModel, method: str, *args: Any, **kwargs: Any) -> Any:
    """Replaces `tie_weights` and `save_pretrained` of a swapped model. Raises InputError if the
    head was tied after the swap.
    """
    refuse_tied_head(model)
    return getattr(type(model), method)(model, *args, **kwargs)


def interface_of(model: nn.Module) -> InputInterface:
    """Returns the interface in a model. Raises InputError if the model has none, or several."""
    interfaces = [part for part in model.modules() if isinstance(part, InputInterface)]
    if len(interfaces) != 1:
        raise InputError(
            f"{type(model).__name__}: {len(interfaces)} input interfaces, not one; make one by"
            " swap_input(model, spec)"
        )
    return interfaces[0]


def save_swapped(model: PreTrainedModel, folder: Path | str) -> None:
    """Saves a swapped model of transformers: config.json, and every tensor in model.safetensors
    under the model's own names.

    Raises InputError, and writes nothing, if the model has no interface, or if its head was tied to
    the input.
    """
    interface_of(model)  # raises InputError if there is no interface for `load_swapped` to check
    refuse_tied_head(model)
    Path(folder).mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    save_weights(model, str(Path(folder) / WEIGHTS))


def load_swapped(folder: Path | str) -> PreTrainedModel:
    """Returns a swapped model that `save_swapped` saved. It checks every tensor and the code, and
    it runs no program code from the folder.

    Raises InputError if the folder holds no swapped model, or if a file is missing, damaged or of
    another model.
    """
    with loading(folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    spec = getattr(config, "tokencodes_interface", None)
    if not isinstance(spec, str):
        raise InputError(
            f"{folder}/config.json: no tokencodes_interface, so its input was not swapped; load it"
            " as usual"
        )
    if getattr(config, "tie_word_embeddings", False):
        raise InputError(f"{folder}/config.json: {TIED}")
    file = Path(folder) / WEIGHTS
    if not file.is_file():
        raise InputError(f"{file}: missing; save the model with save_swapped")
    with loading(folder):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parsed = InterfaceSpec.parse(spec)
    if parsed.given:
        raise InputError(
            f"{folder}: {spec!r} needs its {parsed.given[0]}; swap_input(model, spec, given=...)"
            " and load the state"
        )
    swap_input(model, spec)
    with loading(file):
        missing, unexpected = load_weights(model, str(file), strict=False)
    if missing or unexpected:
        raise InputError(
            f"{file}: {len(missing)} tensors are missing and {len(unexpected)} superfluous; save"
            " the model with save_swapped"
        )
    interface = interface_of(model)
    interface.sha256 = getattr(config, "tokencodes_codebook_sha256", None)
    interface.check()
    return model


def _find_embedding(model: nn.Module, module: str | None) -> tuple[str, nn.Embedding]:
    tables = {name: part for name, part in model.named_modules() if isinstance(part, nn.Embedding)}
    if module is not None:
        if module not in tables:
            raise InputError(
                f"module {module!r} is not an nn.Embedding of this model; it has"
                f" {', '.join(tables) or 'none'}"
            )
        return module, tables[module]
    if isinstance(model, PreTrainedModel):
        tables = {
            name: part for name, part in tables.items() if part is model.get_input_embeddings()
        }
    if len(tables) != 1:
        raise InputError(
            f"{type(model).__name__}: {len(tables)} candidates for the token embedding"
            f" ({', '.join(tables) or 'none'}); name it by module="
        )
    return next(iter(tables.items()))


def _untie(model: nn.Module, name: str, weight: nn.Parameter) -> None:
    """Gives every other module that uses the table's parameter a copy of it."""
    tied = [
        (part_name, part, key)
        for part_name, part in model.named_modules(remove_duplicate=False)
        for key, parameter in part.named_parameters(recurse=False)
        if parameter is weight and part_name != name
    ]
    for part_name, part, key in tied:
        setattr(
            part, key, nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
        )
        warnings.warn(
            f"{part_name}.{key} was tied to the input table; it now has a copy of its own",
            stacklevel=3,
        )
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.config.tie_word_embeddings = False
            part._tied_weights_keys = None
            part.all_tied_weights_keys = {}


class Boundary(Record):
    """A declared input interface, as a file that two models can share. The body after the interface
    may be replaced.
    """

    interface: str
    vocab_size: int
    hidden_size: int
    spec_sha256: str
    codebook_sha256: str | None
    tokenizer_sha256: str | None = None
    version: int = BOUNDARY_VERSION

    def write(self, path: Path) -> None:
        """Saves the boundary as JSON, whole or not at all."""
        write_json(path, self.model_dump())

    @staticmethod
    def read(path: Path) -> "Boundary":
        """Returns the boundary of a file. Raises InputError if the file is damaged, of a newer
        version, or has hashes that do not match its spec.
        """
        value = read_json_object(path)
        if value.get("version") != BOUNDARY_VERSION:
            version = value.get("version")
            raise InputError(
                f"{path}: interface file of version {version!r}; this program reads version"
                f" {BOUNDARY_VERSION}"
            )
        boundary = checked(value, Boundary, str(path), "this is not an interface file")
        spec = InterfaceSpec.parse(boundary.interface)
        if spec.sha256(boundary.vocab_size, boundary.hidden_size) != boundary.spec_sha256:
            raise InputError(
                f"{path}: spec_sha256 is not that of {boundary.interface!r}; the file was changed"
                " by hand"
            )
        return boundary


def boundary_of(model: nn.Module, tokenizer_sha256: str | None = None) -> Boundary:
    """Returns the boundary that a model's interface declares."""
    interface = interface_of(model)
    return Boundary(
        interface=str(interface.spec),
        vocab_size=interface.vocab_size,
        hidden_size=interface.hidden_size,
        spec_sha256=interface.spec.sha256(interface.vocab_size, interface.hidden_size),
        codebook_sha256=interface.sha256,
        tokenizer_sha256=tokenizer_sha256,
    )


def mount(body: nn.Module, boundary: Boundary, tokenizer_sha256: str | None = None) -> nn.Module:
    """Connects a body to a declared interface. A body that has an interface must have exactly this
    one. A body without one gets it.

    Returns the body. Raises InputError, which names the first fact in which the two differ.
    """
    if not any(isinstance(part, InputInterface) for part in body.modules()):
        swap_input(body, boundary.interface)
    here = boundary_of(body, tokenizer_sha256 or boundary.tokenizer_sha256)
    interface_of(body).check()
    for key, wanted in boundary.model_dump().items():
        actual = getattr(here, key)
        if actual != wanted:
            raise InputError(
                f"this body stands behind another interface: its {key} is {actual!r}, declared is"
                f" {wanted!r}"
            )
    return body
