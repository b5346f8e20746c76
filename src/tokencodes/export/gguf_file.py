"""A GGUF file for llama.cpp and what stands on it: metadata, vocabulary, and every tensor under
llama.cpp's own names.

Layout as llama.cpp's converter writes it for the Llama architecture: its rotary positions turn
neighbouring channels, so the rows of the query and key projections are put in that order; norms are
always F32. The input table is kept in the narrowest type that holds its values exactly, whatever
the rest is stored in: a quantised code would be another code.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType, TokenType
from numpy.typing import NDArray

from tokencodes.errors import InputError
from tokencodes.export.llama import require_finite
from tokencodes.export.source import TABLE, UNFREEZES, Source

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
PRE_TOKENIZERS = {
    "smollm": [{"type": "Digits", "individual_digits": True}, BYTES],
    "gpt-2": [BYTES],
}
BLOCK = 32  # values that share a scale in Q8_0


def write_gguf(source: Source, weights: str, file: Path) -> str:
    """Writes one file; returns the type of its input table. InputError: a width that Q8_0 cannot
    cut into blocks of 32, a model without tokenizer, or a tokenizer that llama.cpp has no name for.
    """
    config = source.model.config
    if weights == "Q8_0" and (config.hidden_size % BLOCK or config.intermediate_size % BLOCK):
        raise InputError(
            f"--dtype Q8_0: widths {config.hidden_size} and {config.intermediate_size} are not"
            f" multiples of {BLOCK}; take F16"
        )
    writer = gguf.GGUFWriter(file, "llama")
    _add_model(writer, source, weights)
    _add_vocabulary(writer, source)
    types: dict[str, Type] = {}
    for name, tensor in source.plain_weights():
        types[name] = _type(name, tensor, weights)
        block, size = gguf.GGML_QUANT_SIZES[types[name]]
        written = tensor.numel() // block * size
        writer.add_tensor_info(
            gguf_name(name), tensor.shape, np.dtype(np.float32), written, raw_dtype=types[name]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (
        name,
        tensor,
    ) in source.plain_weights():  # one at a time, so that no second copy of the model exists
        data = gguf.quantize(_rows(name, tensor, config.num_attention_heads), types[name])
        require_finite(name, torch.from_numpy(gguf.dequantize(data, types[name])), types[name].name)
        writer.write_tensor_data(data)
    writer.close()
    return types[TABLE].name


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Llama tensor."""
    path = name.removesuffix(".weight")
    if not path.startswith("model.layers."):
        return f"{NAMES[path]}.weight"
    number, _, part = path.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{NAMES[part]}.weight"


def _type(name: str, tensor: torch.Tensor, weights: str) -> Type:
    """What a tensor is stored as: norms F32, the table in the narrowest exact type that is no
    narrower than asked for.
    """
    if tensor.dim() == 1:
        return Type.F32
    asked = Type[weights]
    if name != TABLE:
        return asked
    dtypes = {Type.F16: torch.float16, Type.BF16: torch.bfloat16}
    order = {
        Type.F32: (),
        Type.F16: (Type.F16,),
        Type.BF16: (Type.BF16,),
        Type.Q8_0: (Type.F16, Type.BF16),
    }[asked]
    return next(
        (kind for kind in order if torch.equal(tensor.to(dtypes[kind]).float(), tensor)), Type.F32
    )


def _rows(name: str, tensor: torch.Tensor, heads: int) -> NDArray[np.float32]:
    """The tensor as llama.cpp reads it: in queries and keys, channel i of a head beside channel i +
    C/2, which it turns with.
    """
    array: NDArray[np.float32] = tensor.detach().numpy()
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return array
    rows, width = array.shape
    return np.ascontiguousarray(
        array.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2)
    ).reshape(rows, width)


def _add_model(writer: gguf.GGUFWriter, source: Source, weights: str) -> None:
    config, facts = source.model.config, source.facts()
    writer.add_name(source.name)
    warning = f" {UNFREEZES}" if source.frozen else ""
    writer.add_description(
        f"Llama whose token input is the interface {facts['interface']!r}.{warning}"
    )
    writer.add_file_type(FILE_TYPES[weights])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_bool("tokencodes.frozen_input", source.frozen)
    for key, value in facts.items():
        writer.add_string(f"tokencodes.{key}", value or "")


def _add_vocabulary(writer: gguf.GGUFWriter, source: Source) -> None:
    """Tokens by id, what each is, merges in order, and the name of the rule that cuts text before
    merging.
    """
    if source.tokenizer is None:
        raise InputError(
            f"{source.place}: no tokenizer.json with it, and a GGUF file holds its vocabulary; put"
            " it there"
        )
    told = json.loads(source.tokenizer.read_bytes())
    if told["model"].get("type", "BPE") != "BPE":
        raise InputError(
            f"{source.tokenizer}: a model of type {told['model']['type']}, and only byte-level BPE"
            " is written; use --to llama"
        )
    size = source.model.config.vocab_size
    # ids that no token has are padding
    tokens, types = [f"[PAD{id}]" for id in range(size)], [TokenType.UNUSED] * size
    for token, id in told["model"]["vocab"].items():
        tokens[id], types[id] = token, TokenType.NORMAL
    for one in told.get("added_tokens", ()):
        kind = TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
        tokens[one["id"]], types[one["id"]] = one["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(told, source.tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [one if isinstance(one, str) else " ".join(one) for one in told["model"]["merges"]]
    )
    _add_ends(writer, source)
    writer.add_add_bos_token(False)  # training put the end of text behind documents, never before
    writer.add_add_space_prefix(False)


def _add_ends(writer: gguf.GGUFWriter, source: Source) -> None:
    """The token at which a text begins, and those at which generation stops. llama.cpp knows three
    of those, and stops at each: end of text, of a turn, of a message. InputError: there are more,
    or one is no token.
    """
    config, ends = source.model.config, source.ends
    begins = [] if config.bos_token_id is None else [config.bos_token_id]  # id 0 is an id
    for name, ids in (("bos_token_id", begins), ("eos_token_id", ends)):
        outside = [id for id in ids if not 0 <= id < config.vocab_size]
        if outside:
            raise InputError(
                f"{source.place}: {name} {outside[0]} is outside 0 ... {config.vocab_size - 1};"
                " name a token"
            )
    adds = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    if len(ends) > len(adds):
        raise InputError(
            f"{source.place}: generation stops at {len(ends)} tokens ({', '.join(map(str, ends))}),"
            " and a GGUF file holds three; use --to llama or --to onnx, or leave some out of"
            " eos_token_id in generation_config.json"
        )
    for id in begins:
        writer.add_bos_token_id(id)
    for add, id in zip(adds, ends, strict=False):
        add(id)


def pre_tokenizer_name(told: dict[str, Any], file: Path) -> str:
    """llama.cpp's name for what a tokenizer does before it merges. InputError names a rule that a
    GGUF file does not hold.
    """
    reason = next(_not_known(told), None)
    if reason is not None:
        raise InputError(
            f"{file}: {reason}; use --to llama or --to onnx, which carry the tokenizer itself"
        )
    return next(name for name, rule in PRE_TOKENIZERS.items() if rule == _pre_tokenizer(told))


def _not_known(told: dict[str, Any]) -> Iterator[str]:
    """Each thing that a tokenizer does and a GGUF file does not say."""
    model, after = told["model"], told.get("post_processor") or {}
    if told.get("normalizer"):
        yield (
            f"its normalizer {told['normalizer'].get('type')!r} changes texts, and a GGUF file has"
            " no such rule"
        )
    for key in (
        "byte_fallback",
        "ignore_merges",
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
    ):
        if model.get(key):
            yield f"its model has {key} {model[key]!r}, and llama.cpp's byte-level BPE has not"
    parts = (
        after.get("processors", ()) if after.get("type") == "Sequence" else [after] if after else []
    )
    for part in parts:
        if part.get("type") != "ByteLevel":  # that one changes offsets alone
            tokens = sorted(part.get("special_tokens") or {})
            adds = (
                f" adds {', '.join(tokens)} to every text"
                if tokens
                else " may add tokens to every text"
            )
            yield (
                f"its post-processor {part.get('type')!r}{adds}, and this GGUF file says that no"
                " token is added"
            )
    if _pre_tokenizer(told) not in PRE_TOKENIZERS.values():
        kinds = [part.get("type") for part in _pre_tokenizer(told)]
        yield (
            "llama.cpp has no rule that is known to cut text as this tokenizer does (pre-tokenizer"
            f" {kinds})"
        )


def _pre_tokenizer(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a pre-tokenizer, with what decides where text is cut."""
    whole = told.get("pre_tokenizer") or {}
    parts = whole["pretokenizers"] if whole.get("type") == "Sequence" else [whole]
    return [
        (
            {
                key: value
                for key, value in {"use_regex": True, **part}.items()
                if key != "trim_offsets"
            }
            if part.get("type") == "ByteLevel"
            else part
        )
        for part in parts
    ]
