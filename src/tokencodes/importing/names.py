"""Other programs' names for the parts of this decoder, by rules, and a map file for what no rule
knows.

A map file is JSON: {"their.name.{n}": "our.name.{n}", ...}; null drops a tensor, a list of our
names cuts a fused one in equal parts along its rows, in that order. {n} stands for the number of a
block. Our names are a plain Llama's; a code's tensors are called codebook, matrix and offset.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tokencodes.errors import InputError
from tokencodes.files import read_json

WRAPPERS = (
    "module.",
    "_orig_mod.",
    "model.",
    "transformer.",
    "decoder.",
    "backbone.",
    "net.",
    "gpt.",
    "llm.",
)
BLOCK = re.compile(r"^(?:layers|layer|blocks|block|h)\.(\d+)\.(.+)$")
ATTENTION, FEED = (
    r"(?:self_attn|self_attention|attention|attn|mha|sa)\.",
    r"(?:mlp|feed_forward|feedforward|ffn|ff)\.",
)
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
# Our name, or names of what is fused; and how others call it, below the block.
IN_BLOCK: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("input_layernorm",),
        r"(?:input_layernorm|attention_norm|attn_norm|ln_?1|norm_?1|pre_attn_norm|pre_attention_norm|rms_?1)",
    ),
    (
        ("post_attention_layernorm",),
        r"(?:post_attention_layernorm|ffn_norm|mlp_norm|ln_?2|norm_?2|pre_ffn_norm|pre_mlp_norm|rms_?2)",
    ),
    ((QKV[0],), ATTENTION + r"(?:q_proj|wq|q|query|to_q|q_lin|w_q)"),
    ((QKV[1],), ATTENTION + r"(?:k_proj|wk|k|key|to_k|k_lin|w_k)"),
    ((QKV[2],), ATTENTION + r"(?:v_proj|wv|v|value|to_v|v_lin|w_v)"),
    (QKV, ATTENTION + r"(?:wqkv|qkv|qkv_proj|c_attn|in_proj|query_key_value|to_qkv|w_qkv)"),
    (
        ("self_attn.o_proj",),
        ATTENTION + r"(?:o_proj|wo|out_proj|c_proj|proj|out|dense|to_out|o|w_o)",
    ),
    ((GATE_UP[0],), FEED + r"(?:gate_proj|w1|gate|w_gate|wg)"),
    ((GATE_UP[1],), FEED + r"(?:up_proj|w3|up|w_up|wu)"),
    (GATE_UP, FEED + r"(?:gate_up_proj|gate_up|w13|w12|c_fc|fc1|w_in|wi)"),
    (("mlp.down_proj",), FEED + r"(?:down_proj|w2|down|c_proj|w_down|fc2|w_out|wd)"),
)
TABLES = r"embed_tokens|tok_embeddings|wte|embedding|embeddings|token_embedding|tok_emb|embed"
OUTSIDE: tuple[tuple[str, str], ...] = (
    ("model.norm", r"(?:norm|ln_f|final_norm|norm_f|final_layernorm|ln_out|norm_out)"),
    ("lm_head", r"(?:lm_head|output|head|unembed|lm_head\.linear|output_projection|out_head)"),
    ("model.embed_tokens", rf"(?:{TABLES})"),
)
CODE = rf"(?:(?:{TABLES}|input_interface|codes?|encoder|input)\.)*"
CODES: tuple[tuple[str, str], ...] = (
    (
        "codebook",
        CODE + r"(?:codebook|code_table|codes|token_codes|bits|binary_codes|code_buffer|table)",
    ),
    ("matrix", CODE + r"(?:matrix|A|gf2_matrix|transform|mixing_matrix|code_matrix)"),
    ("offset", CODE + r"(?:offset|b|gf2_offset|bias_bits|affine_offset|code_offset)"),
)
# Made anew by the model, and no part of what was trained.
MADE = re.compile(
    r"(?:.*\.)?(?:inv_freq|rotary_emb\..*|rope\..*|freqs_cis|cos_cached|sin_cached|causal_mask|attn_mask|masked_bias|mask)$"
)
LIFTS = re.compile(
    r"(?:.*\.)?(?:lift|projection|repeat|tile|expand|powers|shifts|bit_positions|bit_shifts|positions)$"
)


@dataclass(frozen=True)
class Mapped:
    """One of their tensors: what it is here. ours: none where it is dropped, several where it is
    cut. by: the rule's origin.
    """

    source_name: str
    ours: tuple[str, ...]
    by: str


def read_map(file: Path) -> dict[str, tuple[str, ...]]:
    """A map file; InputError where it is none."""
    content = read_json(file)
    if not isinstance(content, dict):
        raise InputError(f"{file}: a map is a JSON object of their names and ours")
    rules: dict[str, tuple[str, ...]] = {}
    for pattern, ours in content.items():
        names = [ours] if isinstance(ours, str) else [] if ours is None else ours
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{file}: {pattern!r}: {ours!r} is no name, list of names or null")
        if any(name.count("{n}") != pattern.count("{n}") for name in names):
            raise InputError(f"{file}: {pattern!r}: {{n}} stands on one side only")
        rules[pattern] = tuple(names)
    return rules


def mapping(names: list[str], rules: dict[str, tuple[str, ...]]) -> list[Mapped]:
    """What each of their tensors is. InputError names the first that neither the map nor a rule
    knows, or two that would be the same.
    """
    mapped = [_mapped(name, rules) for name in sorted(names)]
    unknown = [entry.source_name for entry in mapped if entry.by == "unknown"]
    if unknown:
        raise InputError(
            f"{len(unknown)} tensors have names that no rule knows, first {unknown[0]!r}; say by"
            ' --map FILE what they are ({"their.name.{n}": "model.layers.{n}...."}, null to'
            " drop)"
        )
    taken: dict[str, str] = {}
    for entry in mapped:
        for ours in entry.ours:
            if ours in taken:
                raise InputError(
                    f"{taken[ours]!r} and {entry.source_name!r} would both be {ours}; say by --map"
                    " FILE which it is"
                )
            taken[ours] = entry.source_name
    return mapped


def _mapped(name: str, rules: dict[str, tuple[str, ...]]) -> Mapped:
    for pattern, ours in rules.items():
        fits = re.fullmatch(re.escape(pattern).replace(r"\{n\}", r"(\d+)"), name)
        if fits:
            number = fits.group(1) if fits.groups() else ""
            return Mapped(name, tuple(target.replace("{n}", number) for target in ours), "map file")
    bare = name
    while bare.startswith(WRAPPERS):
        bare = bare.partition(".")[2]
    block = BLOCK.match(bare)
    if MADE.fullmatch(bare):
        return Mapped(name, (), "made anew")
    part, ending = bare.removesuffix(".weight"), bare.endswith(".weight")
    if block and ending:
        inside = block.group(2).removesuffix(".weight")
        for ours, rule in IN_BLOCK:
            if re.fullmatch(rule, inside):
                return Mapped(
                    name,
                    tuple(f"model.layers.{block.group(1)}.{target}.weight" for target in ours),
                    "rule",
                )
    elif not block and ending:
        for outer, rule in OUTSIDE:
            if re.fullmatch(rule, part):
                return Mapped(name, (f"{outer}.weight",), "rule")
    elif not block:
        for code, rule in CODES:
            if re.fullmatch(rule, bare):
                return Mapped(name, (code,), "rule")
        if LIFTS.fullmatch(bare):
            return Mapped(name, (), "part of the code")
    return Mapped(name, (), "unknown")
