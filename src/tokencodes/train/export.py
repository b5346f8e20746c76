"""The model of a run as a Hugging Face folder: safetensors, configuration, and the very tokenizer
that made its ids.
"""

import errno
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule

from tokencodes import checkpoint
from tokencodes.checkpoint import TrainState
from tokencodes.data.dataset import Corpus
from tokencodes.data.tokenizer import END_OF_TEXT
from tokencodes.files import readable
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.parallel import World


def write_model(
    model: TokenCodeForCausalLM,
    corpus: Corpus,
    state: TrainState,
    last_ids: np.ndarray,
    folder: Path,
    world: World,
) -> None:
    """Writes `folder`, whole or not at all. Called by all ranks together; the first one gathers the
    weights and writes.
    """
    elsewhere = isinstance(model, FSDPModule) or world.device.type != "cpu"
    options = StateDictOptions(full_state_dict=True, cpu_offload=True) if elsewhere else None
    weights = get_model_state_dict(model, options=options)
    world.on_first(lambda: _write(model, weights, corpus, state, last_ids, folder))


def _write(
    model: TokenCodeForCausalLM,
    weights: dict[str, torch.Tensor],
    corpus: Corpus,
    state: TrainState,
    last_ids: np.ndarray,
    folder: Path,
) -> None:
    partial = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        model.save_pretrained(partial, state_dict=weights)
        tokenizer = corpus.tokenizer
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tokenizer.path),
            bos_token=END_OF_TEXT,
            eos_token=END_OF_TEXT,
            pad_token=END_OF_TEXT,
        )
        fast.save_pretrained(partial)
        # the very bytes that the model names by hash
        shutil.copyfile(tokenizer.path, partial / "tokenizer.json")
        checkpoint.write_replay(partial, state, last_ids)
        readable(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except SafetensorError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(errno.EIO, f"could not write the model ({error})", str(folder)) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
