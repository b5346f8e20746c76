"""L1: configuration, tensors, storage. Proven, because there are finitely many and each is looked
at.
"""

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tokencodes.checkpoint import tokenizer_of
from tokencodes.codes.tables import shapes
from tokencodes.errors import InputError
from tokencodes.interfaces import LearnedTable
from tokencodes.interfaces.coded import TORCH_TYPES
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.verify.check import (
    MEASURED,
    PROVEN,
    Check,
    Subject,
    check,
    drawn_ids,
    not_applicable,
    row_not_finite,
)

INPUT = "model.embed_tokens."
SAFETENSORS_TYPES = {"uint8": "U8", "int32": "I32", "int64": "I64"}


def expected_tensors(model: TokenCodeForCausalLM) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder of this configuration has, written from the
    paper's description.
    """
    c, interface = model.config, model.input_interface
    d, f = c.hidden_size, c.intermediate_size
    tensors: dict[str, tuple[int, ...]] = {
        "model.norm.weight": (d,),
        "lm_head.weight": (c.vocab_size, d),
    }
    for layer in range(c.num_hidden_layers):
        block = f"model.layers.{layer}."
        tensors |= {
            f"{block}{name}.weight": (d,)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        tensors |= {f"{block}self_attn.{name}_proj.weight": (d, d) for name in "qkvo"}
        tensors |= {f"{block}mlp.{name}_proj.weight": (f, d) for name in ("gate", "up")}
        tensors[f"{block}mlp.down_proj.weight"] = (d, f)
    if isinstance(interface, LearnedTable):
        return {**tensors, f"{INPUT}weight": (c.vocab_size, d)}
    if not interface.spec.fixed:
        tensors[f"{INPUT}coordinates"] = (c.vocab_size, interface.spec.code_width(c.vocab_size))
    return tensors | {
        f"{INPUT}{name}": shape
        for name, (shape, _) in shapes(interface.spec, c.vocab_size, d).items()
    }


def state_dict_bijection(subject: Subject) -> Check:
    """The tensors are exactly those of the configuration."""
    model = subject.model
    actual = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    expected = expected_tensors(model)
    wrong = sorted(
        name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name)
    )
    detail = (
        f"{len(actual)} tensors by name and shape"
        if not wrong
        else f"{len(wrong)} differ, first {wrong[0]}"
    )
    return check("L1", "state-dict bijection", PROVEN, not wrong, detail)


def parameter_counts(subject: Subject) -> Check:
    """Trainable parameters are what the shapes say; none of them stands at a fixed input."""
    model, c = subject.model, subject.model.config
    body = c.num_hidden_layers * (
        4 * c.hidden_size**2 + 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    )
    body += c.hidden_size
    head, spec = c.vocab_size * c.hidden_size, model.input_interface.spec
    width = c.hidden_size if spec.learned else 0 if spec.fixed else spec.code_width(c.vocab_size)
    inputs, total = c.vocab_size * width, sum(p.numel() for p in model.parameters())
    holds = total == inputs + body + head and all(p.requires_grad for p in model.parameters())
    return check(
        "L1",
        "parameter counts",
        PROVEN,
        holds,
        f"{inputs:,} input + {body:,} body + {head:,} head = {total:,}",
    )


def head_untied(subject: Subject) -> Check:
    """The head's storage is its own, and the configuration does not ask for a tie."""
    model = subject.model
    head = model.lm_head.weight.untyped_storage().data_ptr()
    shared = [
        name
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight" and tensor.untyped_storage().data_ptr() == head
    ]
    detail = "storage of its own" if not shared else f"shares storage with {shared[0]}"
    return check(
        "L1", "head untied", PROVEN, not shared and not model.config.tie_word_embeddings, detail
    )


def finite_values(subject: Subject) -> Check:
    """Every number of every tensor is finite: weights, and tables of a code that hold float32 as
    bit patterns.
    """
    tensors, count, wrong = subject.model.state_dict(), 0, []
    for name, tensor in tensors.items():
        values = (
            tensor.view(torch.float32)
            if tensor.dtype == torch.int32 and not name.endswith(".order")
            else tensor
        )
        row = row_not_finite(values)
        count += tensor.numel()
        if row is not None:
            wrong.append(f"{name} is not finite in row {row}")
    return check(
        "L1",
        "finite values",
        PROVEN,
        not wrong,
        wrong[0] if wrong else f"{count:,} entries of {len(tensors)} tensors",
    )


def buffer_types(subject: Subject) -> Check:
    """The tables of a code are integers, as they were made: no cast has reached them."""
    model = subject.model
    spec, buffers = model.input_interface.spec, dict(model.input_interface.named_buffers())
    tables = {} if spec.learned else shapes(spec, model.config.vocab_size, model.config.hidden_size)
    if not tables:
        return not_applicable("L1", "buffer types", "no stored tables")
    dtypes = {name: buffers[name].dtype for name in tables}
    stored = stored_types(subject.place / "model.safetensors", tables)
    wrong = [
        f"{name} is {dtypes[name]}"
        for name, (_, dtype) in tables.items()
        if dtypes[name] != TORCH_TYPES[dtype]
    ]
    wrong += [
        f"{name} is {kind} in the file"
        for name, kind in stored.items()
        if kind != SAFETENSORS_TYPES[tables[name][1]]
    ]
    kinds = ", ".join(f"{name} {dtype}" for name, (_, dtype) in tables.items())
    return check("L1", "buffer types", PROVEN, not wrong, wrong[0] if wrong else kinds)


def stored_types(file: Path, names: Iterable[str]) -> dict[str, str]:
    """Types of a code's tables in a safetensors file, as its header says; empty if there is no such
    file.
    """
    if not file.is_file():
        return {}
    with safe_open(file, framework="np") as weights:
        here = set(weights.keys())
        return {
            name: weights.get_slice(INPUT + name).get_dtype()
            for name in names
            if INPUT + name in here
        }


def tokenizer(subject: Subject) -> Check:
    """The tokenizer file beside the model is the one that made the ids it was trained on."""
    name, wanted = "tokenizer", subject.model.config.tokenizer_sha256
    file = tokenizer_of(subject.place)
    if wanted is None or file is None:
        return not_applicable(
            "L1", name, "no tokenizer file here" if wanted else "the model names no tokenizer"
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    detail = f"{file.name} {digest[:12]}" + (
        "" if digest == wanted else f", but the model was trained with {wanted[:12]}"
    )
    return check("L1", name, PROVEN, digest == wanted, detail)


@torch.no_grad()
def reload_equals(subject: Subject) -> Check:
    """Saved as a Hugging Face folder and read back, every tensor and every logit is the same."""
    model, ids = subject.model, drawn_ids(subject.model)
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
            again = TokenCodeForCausalLM.from_pretrained(Path(folder)).eval()
        except (
            InputError,
            RuntimeError,
        ) as error:  # safetensors refuses shared storage by a RuntimeError
            return check(
                "L1",
                "reload equals",
                MEASURED,
                False,
                f"no copy can be made: {str(error).strip().splitlines()[0]}",
            )
    old, new = model.state_dict(), again.state_dict()
    differ = differing(old, new)
    same = not differ and same_bits(model(ids).logits, again(ids).logits)
    detail = (
        f"{len(old)} tensors and {ids.numel()} positions bitwise equal"
        if same
        else f"differ: {', '.join(differ[:3]) or 'logits'}"
    )
    return check("L1", "reload equals", MEASURED, same, detail)


def export_equals(subject: Subject) -> Check:
    """The model folder that a finished run leaves holds this very checkpoint's tensors."""
    name, folder = "export equals checkpoint", subject.place.parent.parent / "model"
    if subject.place.parent.name != "checkpoints" or not (folder / "model.safetensors").is_file():
        return not_applicable("L1", name, "no exported copy beside this checkpoint")
    if (folder.parent / "checkpoints" / "latest").read_text(
        encoding="utf-8"
    ).strip() != subject.place.name:
        return not_applicable("L1", name, "the exported copy is of a later checkpoint")
    exported, here = load_file(folder / "model.safetensors"), subject.model.state_dict()
    differ = differing(exported, here)
    detail = (
        f"{len(here)} tensors bitwise equal"
        if not differ
        else f"{folder}: {len(differ)} differ, first {differ[0]}"
    )
    return check("L1", name, PROVEN, not differ, detail)


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that two state dicts do not share bit by bit: 0 and -0 differ, a NaN is
    itself.
    """
    names = first.keys() | second.keys()
    return sorted(
        n for n in names if n not in first or n not in second or not same_bits(first[n], second[n])
    )


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same type, shape and bytes."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(
        *(tensor.contiguous().flatten().view(torch.uint8) for tensor in (first, second))
    )


CHECKS = (
    *(state_dict_bijection, parameter_counts, head_untied, finite_values, buffer_types, tokenizer),
    *(reload_equals, export_equals),
)
