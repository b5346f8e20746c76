"""The source of an export: a checkpoint's model, its tokenizer, and the equivalent plain Llama."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tokencodes import checkpoint
from tokencodes.errors import InputError
from tokencodes.files import read_json
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.verify.check import row_not_finite

TABLE = "model.embed_tokens.weight"
UNFREEZES = (
    "The input table of this copy is written out and can be trained: any fine-tuning that does not"
    " leave model.embed_tokens alone unfreezes it, and the input is then no fixed code any more."
)
# Keys of a configuration that only our class has, or that every class has and no decoder uses.
LEFT_OUT = {
    *("interface", "spec_sha256", "codebook_sha256", "tokenizer_sha256", "dtype", "_name_or_path"),
    *(
        "id2label",
        "label2id",
        "problem_type",
        "chunk_size_feed_forward",
        "return_dict",
        "is_encoder_decoder",
    ),
    *("output_attentions", "output_hidden_states", "quantization_config"),
}
# Largest padding of a vocabulary that a tokenizer does not fill.
PADDED = 1024


@dataclass(eq=False)
class Source:
    """place: the folder of the checkpoint, not of its run. tokenizer: its tokenizer.json, None if
    it has none.
    """

    place: Path
    model: TokenCodeForCausalLM
    tokenizer: Path | None

    @property
    def name(self) -> str:
        """A short name: the name of the run or of the folder, without the step and `model`."""
        place = self.place.resolve()
        if (
            place.parent.name == "snapshots"
        ):  # of the hub's cache: models--OWNER--NAME/snapshots/COMMIT
            return place.parent.parent.name.rpartition("--")[2]
        place = place.parent.parent if place.parent.name == "checkpoints" else place
        place = place.parent if place.name == "model" else place
        arm = f"{place.parent.name}-" if place.name.startswith("seed-") else ""
        return f"{arm}{place.name}"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the plain Llama in float32."""
        config = self.model.config
        body = sum(
            p.numel()
            for name, p in self.model.named_parameters()
            if not name.startswith("model.embed_tokens.")
        )
        return 4 * (body + config.vocab_size * config.hidden_size)

    @property
    def frozen(self) -> bool:
        """Whether the input is a fixed code, so that no part of it was trained."""
        return bool(self.model.input_interface.spec.fixed)

    @property
    def exact(self) -> bool:
        """Whether a table of the input's vectors gives them bit by bit. It does not if a matrix
        product computes them.
        """
        spec = self.model.input_interface.spec
        return bool(spec.learned or spec.lift != "orthogonal")

    @property
    def ends(self) -> list[int]:
        """The tokens at which generation stops, each once. They come from generation_config.json,
        or from config.json if it has none.
        """
        end_ids = self.model.generation_config.eos_token_id
        end_ids = self.model.config.eos_token_id if end_ids is None else end_ids
        return list(
            dict.fromkeys(
                end_ids if isinstance(end_ids, list) else [] if end_ids is None else [end_ids]
            )
        )

    @property
    def eos_token_ids(self) -> int | list[int] | None:
        """The same in the notation of transformers: none, one, or a list."""
        return self.ends if len(self.ends) > 1 else next(iter(self.ends), None)

    def facts(self) -> dict[str, Any]:
        """Returns the facts that identify this input interface. Every format stores them."""
        config = self.model.config
        return {
            "interface": config.interface,
            "spec_sha256": config.spec_sha256,
            "codebook_sha256": config.codebook_sha256,
            "tokenizer_sha256": config.tokenizer_sha256,
        }

    def plain_config(self) -> dict[str, Any]:
        """Returns config.json of the plain Llama, for readers of transformers 4 and 5. The two
        versions use different names for rotary positions and for the dtype.
        """
        config = self.model.config
        values = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "tie_word_embeddings": False,
            "eos_token_id": self.eos_token_ids,
            "rope_theta": config.rope_parameters["rope_theta"],
            "rope_scaling": None,
            "frozen_input": self.frozen,
            "tokencodes": self.facts(),
        }
        kept = {
            key: value
            for key, value in config.to_dict().items()
            if key not in LEFT_OUT and key not in values
        }
        return kept | values

    def plain_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the tensors of the plain Llama by name, float32: the table first, then body and
        head. Buffers of the code are left out.
        """
        yield TABLE, self.model.input_interface.materialize()
        for name, tensor in self.model.state_dict().items():
            if not name.startswith("model.embed_tokens."):
                yield name, tensor


def open_source(place: Path) -> Source:
    """Returns the model of a run (its newest checkpoint), of one checkpoint or of an exported
    folder.

    Raises InputError if a weight is not finite, if rotary positions are scaled, if the tokenizer is
    not the one that the model was trained with, or if the tokenizer does not fit the vocabulary.
    """
    place = checkpoint.find(place)
    tokenizer, raw = checkpoint.tokenizer_of(place), read_json(place / "config.json")
    if (
        isinstance(raw, dict) and raw.get("model_type") == TokenCodeConfig.model_type
    ):  # in other cases `load_model` raises the error
        _check(TokenCodeConfig.from_pretrained(place), place, tokenizer)
    model = checkpoint.load_model(place)
    for name, parameter in model.named_parameters():
        row = row_not_finite(parameter)
        if row is not None:
            raise InputError(
                f"{place}: {name} is not finite in row {row}; take an earlier checkpoint"
            )
    return Source(place, model, tokenizer)


def _check(config: TokenCodeConfig, place: Path, tokenizer: Path | None) -> None:
    """Checks the configuration before the weights are read."""
    require_body(config.to_dict(), place)
    rotary = config.rope_parameters.get("rope_type", "default")
    if rotary != "default":
        raise InputError(
            f"{place}: rotary positions of type {rotary!r}; only plain ones are exported"
        )
    if tokenizer is not None:
        _check_tokenizer(tokenizer, config)


def require_body(config: Mapping[str, Any], place: Path) -> None:
    """Raises InputError if a configuration describes a body other than the paper's. The formats and
    the reference support only that body.
    """
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    other = {
        "num_key_value_heads": config.get("num_key_value_heads") not in (None, heads),
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "hidden_act": config.get("hidden_act", "silu") not in ("silu", "swish"),
        "head_dim": (
            None not in (config.get("head_dim"), heads, width)
            and config["head_dim"] * heads != width
        ),
    }
    for key in (key for key, differs in other.items() if differs):
        raise InputError(
            f"{place}: {key} {config[key]!r}; only the paper's body is taken: as many key heads as"
            " heads, SwiGLU, no biases"
        )


def _check_tokenizer(file: Path, config: TokenCodeConfig) -> None:
    data, wanted, size = file.read_bytes(), config.tokenizer_sha256, config.vocab_size
    sha256 = hashlib.sha256(data).hexdigest()
    if wanted not in (None, sha256):
        raise InputError(
            f"{file}: SHA-256 {sha256[:12]}, but the model was trained with the tokenizer"
            f" {wanted[:12]}; put that one there"
        )
    try:
        entries = max(Tokenizer.from_buffer(data).get_vocab().values(), default=-1) + 1
    except Exception as error:  # the library raises a bare Exception
        raise InputError(f"{file}: not a tokenizers file ({str(error)[:80]})") from None
    if not size - PADDED <= entries <= size:
        raise InputError(
            f"{file}: {entries:,} entries, but the model knows {size:,} tokens; put its own"
            " tokenizer there"
        )
