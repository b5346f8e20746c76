"""A GGUF file for llama.cpp and the programs based on it: metadata, vocabulary, and every tensor
under llama.cpp's names.

The layout is that of llama.cpp's converter for the Llama architecture. Its rotary positions rotate
neighbouring channels, so the rows of the query and key projections are put in that order. Norms are
always F32. The input table has the narrowest type that holds its values exactly, independent of the
type of the other matrices: a quantised code would be another code.
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
    """Writes one file. Returns the type of its input table. Raises InputError if Q8_0 cannot cut a
    width into blocks of 32, if the model has no tokenizer, or if llama.cpp has no name for the
    tokenizer.
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
    ) in (
        source.plain_weights()
    ):  # One tensor at a time, so that no second copy of the model exists.
        data = gguf.quantize(_rows(name, tensor, config.num_attention_heads), types[name])
        require_finite(name, torch.from_numpy(gguf.dequantize(data, types[name])), types[name].name)
        writer.write_tensor_data(data)
    writer.close()
    return types[TABLE].name


def gguf_name(name: str) -> str:
    """Returns llama.cpp's name of a Llama tensor."""
    path = name.removesuffix(".weight")
    if not path.startswith("model.layers."):
        return f"{NAMES[path]}.weight"
    number, _, part = path.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{NAMES[part]}.weight"


def _type(name: str, tensor: torch.Tensor, weights: str) -> Type:
    """Returns the stored type of a tensor. Norms are F32. The table has the narrowest exact type
    that is not narrower than the requested type.
    """
    if tensor.dim() == 1:
        return Type.F32
    requested = Type[weights]
    if name != TABLE:
        return requested
    dtypes = {Type.F16: torch.float16, Type.BF16: torch.bfloat16}
    order = {
        Type.F32: (),
        Type.F16: (Type.F16,),
        Type.BF16: (Type.BF16,),
        Type.Q8_0: (Type.F16, Type.BF16),
    }[requested]
    return next(
        (kind for kind in order if torch.equal(tensor.to(dtypes[kind]).float(), tensor)), Type.F32
    )


def _rows(name: str, tensor: torch.Tensor, heads: int) -> NDArray[np.float32]:
    """Returns the tensor in llama.cpp's order of rows. In queries and keys, channel i of a head is
    next to channel i + C/2, because the two rotate together.
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
    """Adds the tokens by id, their types, the merges in order, and the name of the rule that cuts
    text before merging.
    """
    if source.tokenizer is None:
        raise InputError(
            f"{source.place}: no tokenizer.json with it, and a GGUF file holds its vocabulary; put"
            " it there"
        )
    tokenizer = json.loads(source.tokenizer.read_bytes())
    if tokenizer["model"].get("type", "BPE") != "BPE":
        raise InputError(
            f"{source.tokenizer}: a model of type {tokenizer['model']['type']}, and only"
            " byte-level BPE is written; use --to llama"
        )
    size = source.model.config.vocab_size
    # ids without a token are padding
    tokens, types = [f"[PAD{id}]" for id in range(size)], [TokenType.UNUSED] * size
    for token, id in tokenizer["model"]["vocab"].items():
        tokens[id], types[id] = token, TokenType.NORMAL
    for added in tokenizer.get("added_tokens", ()):
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        tokens[added["id"]], types[added["id"]] = added["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer_name(tokenizer, source.tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(
        [
            merge if isinstance(merge, str) else " ".join(merge)
            for merge in tokenizer["model"]["merges"]
        ]
    )
    _add_ends(writer, source)
    writer.add_add_bos_token(False)  # training put the end of text after documents, never before
    writer.add_add_space_prefix(False)


def _add_ends(writer: gguf.GGUFWriter, source: Source) -> None:
    """Adds the token at which a text begins, and the tokens at which generation stops. llama.cpp
    has three of the latter and stops at each: end of text, of a turn, of a message. Raises
    InputError if there are more, or if an id is not a token.
    """
    config, ends = source.model.config, source.ends
    begins = [] if config.bos_token_id is None else [config.bos_token_id]  # 0 is a valid id
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


def pre_tokenizer_name(tokenizer: dict[str, Any], file: Path) -> str:
    """Returns llama.cpp's name for the work of a tokenizer before merging. tokenizer: the content
    of tokenizer.json. Raises InputError, which names a rule that a GGUF file cannot hold.
    """
    reason = next(_not_known(tokenizer), None)
    if reason is not None:
        raise InputError(
            f"{file}: {reason}; use --to llama or --to onnx, which carry the tokenizer itself"
        )
    return next(name for name, rule in PRE_TOKENIZERS.items() if rule == _pre_tokenizer(tokenizer))


def _not_known(tokenizer: dict[str, Any]) -> Iterator[str]:
    """Yields each rule of a tokenizer that a GGUF file cannot hold, as text."""
    model, after = tokenizer["model"], tokenizer.get("post_processor") or {}
    if tokenizer.get("normalizer"):
        yield (
            f"its normalizer {tokenizer['normalizer'].get('type')!r} changes texts, and a GGUF"
            " file has no such rule"
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
        if part.get("type") != "ByteLevel":  # ByteLevel changes only offsets
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
    if _pre_tokenizer(tokenizer) not in PRE_TOKENIZERS.values():
        kinds = [part.get("type") for part in _pre_tokenizer(tokenizer)]
        yield (
            "llama.cpp has no rule that is known to cut text as this tokenizer does (pre-tokenizer"
            f" {kinds})"
        )


def _pre_tokenizer(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the parts of a pre-tokenizer, with the values that decide where text is cut."""
    whole = tokenizer.get("pre_tokenizer") or {}
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
