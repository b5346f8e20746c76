"""A plain Llama folder: the lifted table as `embed_tokens`, and all files that transformers looks
for.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tokencodes.errors import InputError
from tokencodes.export.source import Source
from tokencodes.files import read_json, write_json
from tokencodes.verify.check import row_not_finite

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def write_llama(source: Source, weights: str, folder: Path) -> None:
    """Writes weights, configuration, generation configuration and tokenizer.

    In a type other than F32 it changes the source's model: the body is cast in place. Raises
    InputError if the table is not exact in the chosen type, or if a weight is too large for it.
    """
    dtype = DTYPES[weights]
    if dtype != torch.float32:
        _check_exact(source, dtype, weights)
        source.model.to(dtype)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in source.plain_weights()}
    for name, tensor in tensors.items():
        require_finite(name, tensor, weights)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    name = str(dtype).removeprefix("torch.")
    write_json(
        folder / "config.json", {**source.plain_config(), "dtype": name, "torch_dtype": name}
    )
    write_json(folder / "generation_config.json", generation(source))
    copy_tokenizer(source, folder)


def require_finite(name: str, tensor: torch.Tensor, weights: str) -> None:
    """Raises InputError if a type cannot hold a tensor, because a value in any row becomes
    infinite.
    """
    row = row_not_finite(tensor)
    if row is not None:
        raise InputError(
            f"--dtype {weights}: {name} has a value in row {row} that is too large for it; take F32"
        )


def generation(source: Source) -> dict[str, Any]:
    """Returns generation_config.json: the tokens at which a text begins and ends. The user of the
    model chooses the decoding.
    """
    end = next(iter(source.ends), None)
    begin = source.model.config.bos_token_id
    return {
        "bos_token_id": begin,
        "eos_token_id": source.eos_token_ids,
        "pad_token_id": end,
        "use_cache": True,
    }


def copy_tokenizer(source: Source, folder: Path) -> None:
    """Copies the tokenizer byte by byte and writes its configuration. The configuration has a class
    name that transformers 4 and 5 both have, the two inputs that `generate` accepts from version 4,
    and the padding side that generation needs.
    """
    if source.tokenizer is None:
        return
    shutil.copyfile(source.tokenizer, folder / "tokenizer.json")
    config_file = source.tokenizer.with_name("tokenizer_config.json")
    config = read_json(config_file) if config_file.is_file() else {}
    config.pop("backend", None)
    longest = source.model.config.max_position_embeddings
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "padding_side": "left",
    }
    write_json(
        folder / "tokenizer_config.json",
        {**config, "model_input_names": ["input_ids", "attention_mask"]},
    )


def _check_exact(source: Source, dtype: torch.dtype, weights: str) -> None:
    table = source.model.input_interface.materialize()
    if source.model.input_interface.spec.fixed and not torch.equal(table.to(dtype).float(), table):
        raise InputError(
            f"--dtype {weights}: the fixed code {source.model.config.interface!r} is not exact in"
            " it; take F32, where it is"
        )
