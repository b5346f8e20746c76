"""What leaves: a checkpoint's model, its tokenizer, and the plain Llama that it is to everyone
else.
"""

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
# Of a configuration: what only our class knows, and what every class has and no decoder uses.
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
    """place: the checkpoint that was taken, not the run that was named. tokenizer: its
    tokenizer.json, None where it has none.
    """

    place: Path
    model: TokenCodeForCausalLM
    tokenizer: Path | None

    @property
    def name(self) -> str:
        """A short name: that of the run, or of the folder, without step and `model`."""
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
        """Of the plain Llama in float32."""
        config = self.model.config
        body = sum(
            p.numel()
            for name, p in self.model.named_parameters()
            if not name.startswith("model.embed_tokens.")
        )
        return 4 * (body + config.vocab_size * config.hidden_size)

    @property
    def frozen(self) -> bool:
        """Whether the input is a fixed code, so that nothing of it was trained."""
        return bool(self.model.input_interface.spec.fixed)

    @property
    def exact(self) -> bool:
        """Whether a table of the input's vectors gives them bit by bit: not where a matrix product
        makes them.
        """
        spec = self.model.input_interface.spec
        return bool(spec.learned or spec.lift != "orthogonal")

    @property
    def ends(self) -> list[int]:
        """The tokens at which generation stops: those of generation_config.json, else of
        config.json, each once.
        """
        found = self.model.generation_config.eos_token_id
        found = self.model.config.eos_token_id if found is None else found
        return list(
            dict.fromkeys(found if isinstance(found, list) else [] if found is None else [found])
        )

    @property
    def eos_token_ids(self) -> int | list[int] | None:
        """The same as transformers writes it: none, one, or a list."""
        return self.ends if len(self.ends) > 1 else next(iter(self.ends), None)

    def facts(self) -> dict[str, Any]:
        """What tells this input interface from any other, as it travels with every format."""
        config = self.model.config
        return {
            "interface": config.interface,
            "spec_sha256": config.spec_sha256,
            "codebook_sha256": config.codebook_sha256,
            "tokenizer_sha256": config.tokenizer_sha256,
        }

    def plain_config(self) -> dict[str, Any]:
        """config.json of the plain Llama, for readers of transformers 4 and 5: they look for rotary
        positions and for the dtype under other names.
        """
        config = self.model.config
        told = {
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
            if key not in LEFT_OUT and key not in told
        }
        return kept | told

    def plain_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The plain Llama's tensors by name, float32: the table first, then body and head; no
        buffer of the code.
        """
        yield TABLE, self.model.input_interface.materialize()
        for name, tensor in self.model.state_dict().items():
            if not name.startswith("model.embed_tokens."):
                yield name, tensor


def open_source(place: Path) -> Source:
    """The model of a run (its newest checkpoint), of one checkpoint or of an exported folder.

    InputError: a weight is not finite; rotary positions are scaled; the tokenizer is not the one
    that the model was trained with, or has no place in its vocabulary.
    """
    place = checkpoint.find(place)
    tokenizer, raw = checkpoint.tokenizer_of(place), read_json(place / "config.json")
    if (
        isinstance(raw, dict) and raw.get("model_type") == TokenCodeConfig.model_type
    ):  # else `load_model` says what it is
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
    """All that can be said before the weights are read."""
    require_body(config.to_dict(), place)
    rotary = config.rope_parameters.get("rope_type", "default")
    if rotary != "default":
        raise InputError(
            f"{place}: rotary positions of type {rotary!r}; only plain ones are exported"
        )
    if tokenizer is not None:
        _check_tokenizer(tokenizer, config)


def require_body(told: Mapping[str, Any], place: Path) -> None:
    """InputError where a configuration is of another body than the paper's, which the formats and
    the reference are for.
    """
    heads, width = told.get("num_attention_heads"), told.get("hidden_size")
    other = {
        "num_key_value_heads": told.get("num_key_value_heads") not in (None, heads),
        "attention_bias": bool(told.get("attention_bias")),
        "mlp_bias": bool(told.get("mlp_bias")),
        "hidden_act": told.get("hidden_act", "silu") not in ("silu", "swish"),
        "head_dim": (
            None not in (told.get("head_dim"), heads, width) and told["head_dim"] * heads != width
        ),
    }
    for key in (key for key, differs in other.items() if differs):
        raise InputError(
            f"{place}: {key} {told[key]!r}; only the paper's body is taken: as many key heads as"
            " heads, SwiGLU, no biases"
        )


def _check_tokenizer(file: Path, config: TokenCodeConfig) -> None:
    data, wanted, size = file.read_bytes(), config.tokenizer_sha256, config.vocab_size
    found = hashlib.sha256(data).hexdigest()
    if wanted not in (None, found):
        raise InputError(
            f"{file}: SHA-256 {found[:12]}, but the model was trained with the tokenizer"
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
