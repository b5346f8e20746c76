"""Checkpoints of other programs: other names, fused and interleaved tensors, stored codes; believed
by their logits alone.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.export.conftest import SHAPE, trained
from tokencodes import TokenCodeForCausalLM
from tokencodes.cli import run as command
from tokencodes.errors import CheckFailed, InputError
from tokencodes.importing.import_model import import_model
from tokencodes.importing.names import mapping

HEADS, CHANNELS = 4, 16
NAMES = {
    "model.norm": "ln_f",
    "lm_head": "head",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn.wq",
    "self_attn.k_proj": "attn.wk",
    "self_attn.v_proj": "attn.wv",
    "self_attn.o_proj": "attn.wo",
    "mlp.gate_proj": "ffn.w1",
    "mlp.up_proj": "ffn.w3",
    "mlp.down_proj": "ffn.w2",
}


def foreign_tensors(model, prefix="module.", neighbours=False, fused=None, up_first=False):
    """The tensors of a model as another program may have them."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("model.embed_tokens."):
            continue
        path = name.removesuffix(".weight")
        if neighbours and path.endswith(("q_proj", "k_proj")):
            tensor = tensor.view(HEADS, 2, CHANNELS // 2, -1).transpose(1, 2).reshape(tensor.shape)
        if path.startswith("model.layers."):
            number, _, part = path.removeprefix("model.layers.").partition(".")
            path = f"blocks.{number}.{NAMES[part]}"
        else:
            path = NAMES[path]
        tensors[f"{prefix}{path}.weight"] = tensor.clone()
    for number in range(SHAPE["num_hidden_layers"]) if fused else ():
        qkv = [tensors.pop(f"{prefix}blocks.{number}.attn.w{part}.weight") for part in "qkv"]
        if fused == "by head":
            qkv = [part.view(HEADS, CHANNELS, -1) for part in qkv]
            whole = torch.stack(qkv, dim=1).reshape(-1, qkv[0].shape[-1])
        else:
            whole = torch.cat(qkv)
        tensors[f"{prefix}blocks.{number}.attn.wqkv.weight"] = whole
        pair = [tensors.pop(f"{prefix}blocks.{number}.ffn.{part}.weight") for part in ("w1", "w3")]
        tensors[f"{prefix}blocks.{number}.ffn.w13.weight"] = torch.cat(
            pair[::-1] if up_first else pair
        )
    return tensors


@pytest.fixture
def leave(tmp_path):
    """Writes such a checkpoint with logits beside it."""

    def write(model, tensors, as_pickle=False):
        folder = tmp_path / "theirs"
        folder.mkdir()
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        if as_pickle:
            torch.save({"model": tensors, "step": 7}, folder / "ckpt.pt")
        else:
            save_file(tensors, folder / "weights.safetensors")
        (folder / "config.json").write_text(
            json.dumps({"n_heads": HEADS, "norm_eps": 1e-5, "rope_base": 10000.0, "block_size": 96})
        )
        ids = torch.randint(0, 320, (2, 24), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            save_file(
                {"input_ids": ids, "logits": model(ids).logits}, tmp_path / "logits.safetensors"
            )
        return folder, tmp_path / "logits.safetensors", ids

    return write


def same(model, folder, ids):
    with torch.no_grad():
        return torch.equal(
            model(ids).logits, TokenCodeForCausalLM.from_pretrained(folder).eval()(ids).logits
        )


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("fused", [None, "stacked", "by head"])
@pytest.mark.parametrize("up_first", [False, True])
def test_every_layout_is_found_by_its_logits(neighbours, fused, up_first, leave, tmp_path):
    model = trained("gf2")
    tensors = foreign_tensors(model, neighbours=neighbours, fused=fused, up_first=up_first)
    tensors["module.embedding.codebook"] = model.state_dict()["model.embed_tokens.codebook"].to(
        torch.int64
    )
    folder, logits, ids = leave(model, tensors)
    imported = import_model(folder, tmp_path / "ours", None, None, logits, False)
    assert imported.interface["interface"] == "gf2" and same(model, tmp_path / "ours", ids)
    assert ("neighbours" in imported.recognised_by) == neighbours and len(imported.mapping) == len(
        tensors
    )


@pytest.mark.parametrize(
    "spec", ["binary", "gf2:affine=true", "binary:values=pm1,lift=interleave", "learned"]
)
def test_a_written_out_table_will_do(spec, leave, tmp_path):
    model = trained(spec)
    tensors = foreign_tensors(model, prefix="")
    tensors["wte.weight"] = model.input_interface.materialize()
    tensors["blocks.0.attn.rotary_emb.inv_freq"] = torch.ones(8)
    folder, logits, ids = leave(model, tensors, as_pickle=True)
    imported = import_model(folder, tmp_path / "ours", None, None, logits, False)
    assert same(model, tmp_path / "ours", ids)
    assert imported.interface["interface"].split(":")[0] == spec.split(":")[0]


def test_a_head_that_shares_the_tables_storage_is_a_head_of_its_own_here(leave, tmp_path):
    model = trained("learned")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.input_interface.weight)
    tensors = foreign_tensors(model, prefix="")
    tensors["wte.weight"] = tensors["head.weight"]
    folder, logits, ids = leave(model, tensors, as_pickle=True)
    import_model(folder, tmp_path / "ours", None, None, logits, False)
    assert same(model, tmp_path / "ours", ids)


def test_what_lies_about_a_checkpoint_does_not_make_it_another_thing(leave, tmp_path):
    """A folder of several steps, whose configuration says llama,
    with a `checkpoints` beside them."""
    model = trained("gf2")
    tensors = foreign_tensors(model) | {
        "module.embedding.codebook": (
            model.state_dict()["model.embed_tokens.codebook"].to(torch.int64)
        )
    }
    folder, logits, ids = leave(model, tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    (folder / "checkpoints").mkdir()
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, folder / "step2.safetensors")
    import_model(folder / "weights.safetensors", tmp_path / "one", None, None, logits, False)
    (folder / "step2.safetensors").unlink()
    import_model(folder, tmp_path / "whole", None, None, logits, False)
    assert same(model, tmp_path / "one", ids) and same(model, tmp_path / "whole", ids)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_and_an_offset_will_do_either_way_round(transposed, leave, tmp_path):
    model = trained("gf2:affine=true")
    tensors = foreign_tensors(model)
    state = model.state_dict()
    matrix = state["model.embed_tokens.matrix"]
    tensors["module.embedding.A"] = (matrix.T if transposed else matrix).float()
    tensors["module.embedding.offset"] = state["model.embed_tokens.offset"].float()
    tensors["module.embedding.powers"] = 2 ** torch.arange(9)
    folder, logits, ids = leave(model, tensors)
    import_model(folder, tmp_path / "ours", None, None, logits, False)
    assert same(model, tmp_path / "ours", ids)


def test_a_map_says_what_no_rule_knows(leave, tmp_path, capsys):
    model = trained("binary")
    tensors = {
        name.replace("attn.wo", "attn.zz"): tensor
        for name, tensor in foreign_tensors(model, "net.").items()
    }
    tensors["net.junk"] = torch.ones(3)
    folder, logits, ids = leave(model, tensors)
    arguments = [
        "import",
        str(folder),
        "--out",
        str(tmp_path / "ours"),
        "--logits",
        str(logits),
        "--interface",
        "binary",
    ]
    assert command(arguments) == 2
    assert (
        "tensors have names that no rule knows, first 'net.blocks.0.attn.zz.weight'"
        in capsys.readouterr().err
    )
    rules = {
        "net.blocks.{n}.attn.zz.weight": "model.layers.{n}.self_attn.o_proj.weight",
        "net.junk": None,
    }
    (tmp_path / "map.json").write_text(json.dumps(rules))
    assert command([*arguments, "--map", str(tmp_path / "map.json")]) == 0
    output = capsys.readouterr().out
    assert (
        "map file" in output
        and "model.layers.1.self_attn.o_proj.weight" in output
        and same(model, tmp_path / "ours", ids)
    )


def test_other_logits_are_not_believed_and_nothing_is_written(leave, tmp_path):
    model = trained("gf2")
    tensors = foreign_tensors(model)
    tensors["module.codebook"] = model.state_dict()["model.embed_tokens.codebook"]
    tensors["module.blocks.1.ffn.w2.weight"][0, 0] += 0.05
    folder, logits, _ = leave(model, tensors)
    with pytest.raises(CheckFailed, match="no reading of it gives the logits"):
        import_model(folder, tmp_path / "ours", None, None, logits, False)
    with pytest.raises(InputError, match="it is believed only by its own logits; give --logits"):
        import_model(folder, tmp_path / "ours", None, None, None, False)
    assert not (tmp_path / "ours").exists()


def test_unusable_logits_heads_and_maps_are_one_line(leave, tmp_path):
    model = trained("binary")
    folder, logits, ids = leave(model, foreign_tensors(model))
    np.savez(tmp_path / "empty.npz", input_ids=ids.numpy())
    for file, said in (
        (tmp_path / "empty.npz", "input_ids and logits are needed"),
        (tmp_path / "no.npz", r"no\.npz: no such file"),
    ):
        with pytest.raises(InputError, match=said):
            import_model(folder, tmp_path / "ours", None, None, file, False)
    with pytest.raises(InputError, match="neither an input table nor a code among the tensors"):
        import_model(folder, tmp_path / "ours", None, None, logits, False)
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match="the number of heads is not there"):
        import_model(folder, tmp_path / "ours", "binary", None, logits, False)
    (tmp_path / "map.json").write_text('{"a.{n}": "b"}')
    with pytest.raises(InputError, match="stands on one side only"):
        import_model(folder, tmp_path / "ours", "binary", tmp_path / "map.json", logits, False)


def test_two_tensors_that_would_be_the_same_are_refused():
    with pytest.raises(InputError, match=r"would both be model\.norm\.weight"):
        mapping(["ln_f.weight", "norm.weight"], {})


def test_logits_that_cannot_tell_readings_apart_are_not_enough(leave, tmp_path):
    model = trained("binary")
    folder, _, _ = leave(model, foreign_tensors(model))
    for ids, change in (
        (torch.tensor([[5]]), 0.0),
        (torch.zeros(1, 6, dtype=torch.int64), 0.0),
        (torch.tensor([[5, 6, 7]]), float("nan")),
    ):
        with torch.no_grad():
            save_file(
                {"input_ids": ids, "logits": model(ids).logits + change},
                tmp_path / "few.safetensors",
            )
        with pytest.raises(
            InputError, match="texts of two tokens or more, and finite logits that are not all 0"
        ):
            import_model(
                folder, tmp_path / "ours", "binary", None, tmp_path / "few.safetensors", False
            )


def test_an_incomplete_checkpoint_says_what_is_missing(leave, tmp_path):
    model = trained("binary")
    tensors = foreign_tensors(model)
    del tensors["module.blocks.1.ffn.w2.weight"]
    folder, logits, _ = leave(model, tensors)
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.down_proj\.weight is missing"):
        import_model(folder, tmp_path / "ours", "binary", None, logits, False)


def test_a_stored_code_that_is_not_that_of_the_interface_is_refused_whatever_ids_the_logits_are_of(
    leave, tmp_path
):
    """The logits beside it are of 48 ids. The others are believed by the stored code alone, so all
    of it is compared.
    """
    model = trained("gf2")
    state = model.state_dict()
    codebook, matrix = (
        state["model.embed_tokens.codebook"].clone(),
        state["model.embed_tokens.matrix"].clone(),
    )
    table = model.input_interface.materialize()
    _, _, ids = leave(model, {"none": torch.ones(1)})
    unused = next(id for id in range(319, 0, -1) if id not in set(ids.flatten().tolist()))
    codebook[unused, 3] ^= 1
    matrix[8, 8] ^= 1
    table[unused, 3::9] = 1 - table[unused, 3::9]
    folder = tmp_path / "theirs"
    for name, tensor, said in (
        ("codebook", codebook, "its codebook is not that of 'gf2'"),
        ("A", matrix.float(), "its matrix is not that of 'gf2'"),
        (
            "weight",
            table,
            "its input table is not that of 'gf2'|have the same vector in the input table",
        ),
    ):
        save_file(
            {**foreign_tensors(model), f"module.embedding.{name}": tensor},
            folder / "weights.safetensors",
        )
        with pytest.raises(InputError, match=said):
            import_model(
                folder, tmp_path / "ours", "gf2", None, tmp_path / "logits.safetensors", False
            )
    assert not (tmp_path / "ours").exists()


def test_the_stored_code_of_the_interface_that_is_asked_for_is_taken(leave, tmp_path):
    model = trained("gf2")
    state = model.state_dict()
    folder, logits, ids = leave(model, {"none": torch.ones(1)})
    for number, (name, tensor) in enumerate(
        (
            ("codebook", state["model.embed_tokens.codebook"]),
            ("codebook", 2 * state["model.embed_tokens.codebook"].float() - 1),
            ("A", state["model.embed_tokens.matrix"].T.contiguous()),
            ("weight", model.input_interface.materialize()),
        )
    ):
        save_file(
            {**foreign_tensors(model), f"module.embedding.{name}": tensor},
            folder / "weights.safetensors",
        )
        import_model(folder, tmp_path / str(number), "gf2", None, logits, False)
        assert same(model, tmp_path / str(number), ids)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("codebook", lambda w: torch.zeros_like(w), "neither|no reading of it gives|no code"),
        (
            "codebook",
            lambda w: w.float().index_fill(0, torch.tensor([318]), float("nan")),
            "codebook is not finite in row 318",
        ),
        ("A", lambda w: torch.zeros(9, 9), "the stored matrix gives two of 320 tokens one word"),
        ("A", lambda w: 3 * torch.eye(9), "the stored matrix holds other numbers than 0 and 1"),
    ],
)
def test_a_stored_code_that_cannot_tell_tokens_apart_is_refused(
    name, change, said, leave, tmp_path
):
    model = trained("gf2")
    tensors = {
        **foreign_tensors(model),
        f"module.embedding.{name}": change(model.state_dict()["model.embed_tokens.codebook"]),
    }
    folder, logits, _ = leave(model, tensors)
    with pytest.raises((InputError, CheckFailed), match=said):
        import_model(folder, tmp_path / "ours", None, None, logits, False)
    assert not (tmp_path / "ours").exists()


def test_a_trained_table_that_is_not_finite_in_a_row_without_logits_is_refused(leave, tmp_path):
    model = trained("learned")
    _, logits, ids = leave(model, {"none": torch.ones(1)})
    unused = next(id for id in range(319, 0, -1) if id not in set(ids.flatten().tolist()))
    table = model.input_interface.materialize()
    table[unused, 5] = float("nan")
    save_file(
        {**foreign_tensors(model), "module.embedding.weight": table},
        tmp_path / "theirs" / "weights.safetensors",
    )
    for requested in (None, "learned"):
        with pytest.raises(
            InputError, match=rf"model\.embed_tokens\.weight is not finite in row {unused};"
        ):
            import_model(tmp_path / "theirs", tmp_path / "ours", requested, None, logits, False)


def test_ids_that_are_no_whole_numbers_are_refused(leave, tmp_path):
    model = trained("binary")
    folder, logits, _ = leave(model, foreign_tensors(model))
    arrays = load_file(logits)
    save_file({**arrays, "input_ids": arrays["input_ids"] + 0.5}, logits)
    with pytest.raises(InputError, match=r"input_ids of type float32; whole numbers are needed"):
        import_model(folder, tmp_path / "ours", "binary", None, logits, False)
