"""Reading: a run goes on from a checkpoint at any number of ranks; a model alone is read by
everyone else.

Nothing here opens a pickle, and no code out of a folder is imported.
"""

import hashlib
import json
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from transformers import PreTrainedModel

from tokencodes.checkpoint.layout import TrainState, check, find, read_state
from tokencodes.checkpoint.tensors import MODEL, named, quiet
from tokencodes.checkpoint.write import cause_of
from tokencodes.errors import InputError, first_line, loading
from tokencodes.files import read_json_object
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.parallel import ALONE, World

# Of a configuration: how and by what it was saved. A tensor's own dtype is hashed with it.
NO_PART_OF_SCORES = (
    "transformers_version",
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
)
TAKE = "take another checkpoint or a new copy"


def restore(
    checkpoint: Path,
    model: TokenCodeForCausalLM,
    optimizer: torch.optim.Optimizer,
    world: World = ALONE,
) -> TrainState:
    """Loads model, optimizer and generator in place, checks the codebook, returns the counters.
    Called by all ranks together; the checkpoint may have been written by another number of them.
    InputError: it does not fit this model.
    """
    with quiet():
        model_state, optimizer_state = get_state_dict(model, optimizer)
        tensors = named(model_state, optimizer_state["state"])
        _read_tensors(checkpoint, tensors, world)
        set_state_dict(
            model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state
        )
    try:
        torch.set_rng_state(tensors["generator"])
    except RuntimeError as error:
        raise InputError(
            f"{checkpoint}: the generator's state is not valid ({first_line(error)}); take another"
        ) from None
    model.input_interface.check()
    return read_state(checkpoint)


def load_model(path: Path) -> TokenCodeForCausalLM:
    """The model of a run (its newest checkpoint), of one checkpoint or of an exported folder; its
    codebook is checked. InputError: there is none, it is damaged, or its parts do not belong
    together.
    """
    place = find(path)
    if not (place / "manifest.json").is_file():
        return _load_exported(place)
    check(place)
    with loading(place):
        model = TokenCodeForCausalLM(TokenCodeConfig.from_pretrained(place))
    _read_tensors(
        place, {f"{MODEL}{name}": tensor for name, tensor in model.state_dict().items()}, ALONE
    )
    model.input_interface.check()
    return model.eval()


def _read_tensors(checkpoint: Path, tensors: dict[str, torch.Tensor], world: World) -> None:
    """Reads a checkpoint's tensors into these. InputError: one is not there or has another shape,
    or the checkpoint holds weights that are not among these.
    """
    reader = HuggingFaceStorageReader(str(checkpoint / "tensors"))
    try:
        stored = reader.read_metadata().state_dict_metadata
        unknown = sorted(name for name in stored if name.startswith(MODEL) and name not in tensors)
        if unknown:
            raise InputError(
                f"{checkpoint}: holds {unknown[0].removeprefix(MODEL)!r}, which its model does not"
                f" have; {TAKE}"
            )
        with quiet():
            dcp.load(
                tensors, storage_reader=reader, process_group=world.saving, no_dist=world.ranks == 1
            )
    except CheckpointException as error:
        raise InputError(
            f"{checkpoint}: does not fit this model ({first_line(cause_of(error))}); {TAKE}"
        ) from error
    except (SafetensorError, OSError, LookupError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{checkpoint}/tensors: cannot be read ({first_line(error)}); {TAKE}"
        ) from error


def _load_exported(folder: Path) -> TokenCodeForCausalLM:
    kind = read_json_object(folder / "config.json").get("model_type")
    if kind != TokenCodeConfig.model_type:
        hint = (
            "`tokencodes import` makes one of ours of it"
            if kind == "llama"
            else "name one made by tokencodes"
        )
        raise InputError(
            f"{folder}: a model of type {kind!r}, not {TokenCodeConfig.model_type!r}; {hint}"
        )
    with loading(folder):
        model: TokenCodeForCausalLM = TokenCodeForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        )
    return model.eval()


def weights_sha256(model: PreTrainedModel) -> str:
    """Over the configuration and all parameters and buffers by name: what scores depend on, in the
    dtype in which they are used.
    """
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in NO_PART_OF_SCORES
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
