"""Reading: a run goes on from a checkpoint at any number of ranks; a model alone is read by everyone else."""

import hashlib
import json
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict, set_state_dict
from transformers import PreTrainedModel

from tokencodes.checkpoint.layout import TrainState, damage, find, read_state
from tokencodes.checkpoint.write import cause_of, quiet, tensors_of
from tokencodes.errors import InputError
from tokencodes.files import read_json
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.parallel import ALONE, World

# Of a configuration: how and by what it was saved. A tensor's own dtype is hashed with it.
NO_PART_OF_SCORES = ("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype")


def restore(
    checkpoint: Path, model: TokenCodeForCausalLM, optimizer: torch.optim.Optimizer, world: World = ALONE
) -> TrainState:
    """Loads model, optimizer and generator in place, checks the codebook, returns the counters. Called by all ranks together;
    the checkpoint may have been written by another number of them."""
    tensors = tensors_of(model, optimizer)
    with quiet():
        try:
            dcp.load(tensors, checkpoint_id=checkpoint / "tensors", process_group=world.saving, no_dist=world.ranks == 1)
        except CheckpointException as error:
            told = f"{checkpoint}: cannot be loaded into this model ({cause_of(error)}); take another checkpoint"
            raise InputError(told) from error
        set_state_dict(model, optimizer, model_state_dict=tensors["model"], optim_state_dict=tensors["optimizer"])
    torch.set_rng_state(tensors["generator"])
    model.input_interface.check()
    return read_state(checkpoint)


def load_model(path: Path) -> TokenCodeForCausalLM:
    """The model of a run (its newest checkpoint), of one checkpoint or of an exported folder; its codebook is checked."""
    place = find(path)
    if not (place / "manifest.json").is_file():
        return _load_exported(place)
    problem = damage(place)
    if problem:
        raise InputError(f"{problem}; take another checkpoint or a new copy")
    model = TokenCodeForCausalLM(TokenCodeConfig.from_pretrained(place))
    with quiet():
        tensors = {"model": get_model_state_dict(model)}
        dcp.load(tensors, checkpoint_id=place / "tensors", no_dist=True)
        set_model_state_dict(model, tensors["model"])
    model.input_interface.check()
    return model.eval()


def _load_exported(folder: Path) -> TokenCodeForCausalLM:
    kind = read_json(folder / "config.json").get("model_type")
    if kind != TokenCodeConfig.model_type:
        way = "`tokencodes import` makes one of ours of it" if kind == "llama" else "name one made by tokencodes"
        raise InputError(f"{folder}: a model of type {kind!r}, not {TokenCodeConfig.model_type!r}; {way}")
    try:
        model: TokenCodeForCausalLM = TokenCodeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot be loaded ({str(error).splitlines()[0]}); take a complete copy") from None
    return model.eval()


def weights_sha256(model: PreTrainedModel) -> str:
    """Over the configuration and all parameters and buffers by name: what scores depend on, in the dtype in which they are
    used."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in NO_PART_OF_SCORES}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
