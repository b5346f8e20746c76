"""GGUF files: read back by another program's reader, complete in what llama.cpp asks for, exact
where the code is.
"""

import json

import gguf
import numpy as np
import pytest

from tests.export.conftest import assert_same_tensors, trained
from tokencodes.checkpoint import load_model
from tokencodes.cli import run as command
from tokencodes.codes import InterfaceSpec
from tokencodes.errors import InputError
from tokencodes.export.export_model import export
from tokencodes.importing.import_model import import_model

SPECS = [
    "learned",
    "binary",
    "gf2",
    "binary:values=pm1,lift=interleave",
    "gaussian:lift=pad,width=12",
]


def fields(file):
    reader = gguf.GGUFReader(file)
    return {name: field.contents() for name, field in reader.fields.items()}, {
        tensor.name: tensor for tensor in reader.tensors
    }


def file_in(folder):
    (file,) = folder.glob("*.gguf")
    return file


def by(exported, name):
    return next(runtime for runtime in exported.runtimes if runtime.runtime.startswith(name))


@pytest.mark.parametrize("spec", SPECS)
def test_float32_logits_are_ours_in_another_reader(spec, make, tmp_path):
    exported = export(make(spec), "gguf", tmp_path / "out")
    reader = by(exported, "transformers")
    assert (
        reader.status == "agrees"
        and reader.largest_difference <= 1e-4
        and reader.greedy_steps_equal == (64, 64)
    )
    assert exported.input_table == "F32" and (file_in(tmp_path / "out")).is_file()


def test_what_is_not_installed_is_not_run_and_never_agrees(make, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    exported = export(make(), "gguf", tmp_path / "out")
    assert (
        by(exported, "llama.cpp").status == "not run"
        and by(exported, "llama.cpp").largest_difference is None
    )
    assert "| llama.cpp | - | not run |" in (tmp_path / "out" / "README.md").read_text()


def test_what_comes_back_from_a_file_can_be_saved_and_trained(make, tmp_path, capsys):
    export(make(), "gguf", tmp_path / "out", "F16")
    assert command(["import", str(tmp_path / "out"), "--out", str(tmp_path / "back")]) == 0
    errors = capsys.readouterr().err
    assert (
        "note: its weights were rounded to F16 when it was exported" in errors
        and "note: no tokenizer came with it" in errors
    )
    load_model(tmp_path / "back").save_pretrained(tmp_path / "again")
    export(tmp_path / "back", "llama", tmp_path / "plain")
    for folder in ("back", "plain"):
        assert "quantization_config" not in json.loads(
            (tmp_path / folder / "config.json").read_text()
        )


def test_pages_of_a_file_leave_memory_as_its_tensors_are_read(make, tmp_path):
    from tokencodes.export.runtimes import letting_pages_go

    export(make(), "gguf", tmp_path / "out")
    file, whole = file_in(tmp_path / "out"), gguf.GGUFReader
    wanted = {tensor.name: tensor.data.copy() for tensor in whole(file).tensors}
    with pytest.raises(KeyError), letting_pages_go():
        reader = gguf.GGUFReader(file)
        assert type(reader) is not whole and len(reader.tensors) == len(wanted)
        for tensor in reader.tensors:
            assert np.array_equal(tensor.data, wanted[tensor.name])
            last = tensor
        # a page that was let go comes back from the file
        assert np.array_equal(last.data, wanted[last.name])
        raise KeyError
    assert gguf.GGUFReader is whole


@pytest.mark.parametrize("weights", ["F32", "F16", "BF16", "Q8_0"])
def test_the_real_runtime_agrees_where_it_is_installed(weights, make, tmp_path):
    pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python is not installed: it is compiled at its installation"
    )
    runtime = by(export(make("gf2"), "gguf", tmp_path / "out", weights), "llama.cpp")
    assert runtime.status == "agrees" and (weights != "F32" or runtime.largest_difference <= 1e-4)
    assert weights not in ("F32", "F16") or runtime.greedy_steps_equal == (64, 64)


@pytest.mark.parametrize(
    ("spec", "weights", "table"),
    [
        ("binary", "F16", "F16"),
        ("binary", "BF16", "BF16"),
        ("binary", "Q8_0", "F16"),
        ("binary:scale=0.3", "F16", "F32"),
        ("binary:scale=1e-6", "Q8_0", "F32"),
        ("binary:scale=131072", "Q8_0", "BF16"),
    ],
)
def test_the_table_keeps_a_type_that_holds_the_code(spec, weights, table, make, tmp_path):
    folder = make(spec)
    exported = export(folder, "gguf", tmp_path / "out", weights)
    assert exported.input_table == table
    _, tensors = fields(file_in(tmp_path / "out"))
    stored = tensors["token_embd.weight"]
    shown = gguf.dequantize(stored.data, stored.tensor_type).reshape(-1, 64)
    assert np.array_equal(shown, trained(spec).input_interface.materialize().numpy())
    assert (
        tensors["blk.0.ffn_up.weight"].tensor_type.name == weights
        and tensors["output_norm.weight"].tensor_type.name == "F32"
    )


def test_metadata_are_complete_and_token_0_is_a_token(make, tmp_path):
    export(make("gf2", vocab_size=330), "gguf", tmp_path / "out")  # ten rows that no token has
    metadata, tensors = fields(file_in(tmp_path / "out"))
    shape = {
        "context_length": 96,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 4,
        "rope.dimension_count": 16,
        "rope.freq_base": 10000.0,
        "vocab_size": 330,
    }
    assert {key: metadata[f"llama.{key}"] for key in shape} == shape
    assert metadata["tokenizer.ggml.bos_token_id"] == metadata["tokenizer.ggml.eos_token_id"] == 0
    assert (
        metadata["tokenizer.ggml.pre"] == "smollm"
        and metadata["tokenizer.ggml.add_bos_token"] is False
    )
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert (
        len(tokens) == len(types) == 330
        and tokens[0] == "<|endoftext|>"
        and tokens[-1] == "[PAD329]"
    )
    assert (types[0], types[5], types[-1]) == (
        gguf.TokenType.CONTROL,
        gguf.TokenType.NORMAL,
        gguf.TokenType.UNUSED,
    )
    assert metadata["tokencodes.frozen_input"] is True and metadata["tokencodes.interface"] == "gf2"
    assert len(tensors) == 3 + 9 * 2 and tensors["output.weight"].shape.tolist() == [64, 330]


def test_a_width_without_blocks_of_32_cannot_be_quantised(make, tmp_path, capsys):
    arguments = [
        "export",
        str(make(hidden_size=40, num_attention_heads=2)),
        "--to",
        "gguf",
        "--dtype",
        "Q8_0",
        "--out",
        str(tmp_path / "o"),
    ]
    assert (
        command(arguments) == 2
        and "widths 40 and 96 are not multiples of 32; take F16" in capsys.readouterr().err
    )


def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(make, tmp_path, tokenizer_path):
    from tokencodes.export.gguf_file import pre_tokenizer_name

    tokenizer = json.loads(tokenizer_path.read_text())
    assert pre_tokenizer_name(tokenizer, tokenizer_path) == "smollm"
    assert (
        pre_tokenizer_name(
            {**tokenizer, "pre_tokenizer": tokenizer["pre_tokenizer"]["pretokenizers"][1]},
            tokenizer_path,
        )
        == "gpt-2"
    )
    for change in ({"pre_tokenizer": None}, {"pre_tokenizer": {"type": "Whitespace"}}):
        with pytest.raises(
            InputError, match="has no rule that is known to cut text as this tokenizer does"
        ):
            pre_tokenizer_name({**tokenizer, **change}, tokenizer_path)


BEGIN = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": False,
    "use_regex": True,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "NFC"}}, "its normalizer 'NFC' changes texts"),
        (
            {"post_processor": BEGIN},
            (
                "its post-processor 'TemplateProcessing' adds <s> to every text, and this GGUF file"
                " says"
            ),
        ),
        (
            {"post_processor": {"type": "Sequence", "processors": [BYTE_LEVEL, BEGIN]}},
            "'TemplateProcessing' adds <s> to every",
        ),
        (
            {"post_processor": {"type": "Other"}},
            "its post-processor 'Other' may add tokens to every text",
        ),
        ({"model": {"byte_fallback": True}}, "its model has byte_fallback True"),
        ({"model": {"ignore_merges": True}}, "its model has ignore_merges True"),
        ({"model": {"dropout": 0.1}}, "its model has dropout 0.1"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "its model has end_of_word_suffix '</w>'"),
        (
            {"model": {"continuing_subword_prefix": "##"}},
            "its model has continuing_subword_prefix '##'",
        ),
    ],
)
def test_a_refused_tokenizer_is_refused_for_the_rule_that_a_file_cannot_hold(
    change, reason, tokenizer_path
):
    from tokencodes.export.gguf_file import pre_tokenizer_name

    tokenizer = json.loads(tokenizer_path.read_text())
    with pytest.raises(InputError) as refused:
        pre_tokenizer_name(
            {**tokenizer, **change, "model": {**tokenizer["model"], **change.get("model", {})}},
            tokenizer_path,
        )
    assert reason in str(refused.value) and "pre-tokenizer" not in str(refused.value)
    for harmless in (None, BYTE_LEVEL, {"type": "Sequence", "processors": [BYTE_LEVEL]}):
        assert (
            pre_tokenizer_name({**tokenizer, "post_processor": harmless}, tokenizer_path)
            == "smollm"
        )


def _stop_at(folder, ends):
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": ends})
    )


@pytest.mark.parametrize(
    ("ends", "written"),
    [
        (None, {"eos": 0}),  # the configuration's
        (7, {"eos": 7}),
        ([7], {"eos": 7}),
        ([7, 0], {"eos": 7, "eot": 0}),
        ([7, 0, 7, 9], {"eos": 7, "eot": 0, "eom": 9}),
    ],
)
def test_every_end_token_leaves_and_comes_back(ends, written, make, tmp_path):
    folder = make("learned")
    _stop_at(folder, ends)
    export(folder, "gguf", tmp_path / "out")
    metadata, _ = fields(file_in(tmp_path / "out"))
    end_ids = {end: metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")}
    assert {end: id for end, id in end_ids.items() if id is not None} == written
    import_model(tmp_path / "out", tmp_path / "back", None, None, None, False)
    export(folder, "llama", tmp_path / "plain")
    import_model(tmp_path / "plain", tmp_path / "from-plain", None, None, None, False)
    export(folder, "onnx", tmp_path / "onnx")
    import_model(tmp_path / "onnx", tmp_path / "from-onnx", None, None, None, False)
    wanted = list(written.values()) if len(written) > 1 else written["eos"]
    for place in ("back", "plain", "from-plain", "onnx", "from-onnx"):
        for file in ("config.json", "generation_config.json"):
            assert json.loads((tmp_path / place / file).read_text())["eos_token_id"] == wanted, (
                place,
                file,
            )
    for place in ("plain", "onnx"):
        assert (
            json.loads((tmp_path / place / "generation_config.json").read_text())["pad_token_id"]
            == written["eos"]
        )


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([1, 2, 3, 4], r"generation stops at 4 tokens \(1, 2, 3, 4\), and a GGUF file holds three"),
        ([0, 320], r"eos_token_id 320 is outside 0 \.\.\. 319"),
        (-1, r"eos_token_id -1 is outside 0 \.\.\. 319"),
    ],
)
def test_end_tokens_that_a_file_cannot_hold_are_refused(ends, said, make, tmp_path):
    folder = make("binary")
    _stop_at(folder, ends)
    with pytest.raises(InputError, match=said):
        export(folder, "gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_text_becomes_the_same_tokens_in_llama_cpp(make, tmp_path):
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python is not installed: it is compiled at its installation"
    )
    from tokenizers import Tokenizer

    export(make(), "gguf", tmp_path / "out")
    model = llama_cpp.Llama(str(file_in(tmp_path / "out")), vocab_only=True, verbose=False)
    own = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    for text in ("She was 1234 years\n\nold,  don't\tyou  ", "naïve café 東京 ½ x²", "  leading"):
        assert model.tokenize(text.encode(), add_bos=False) == own.encode(text).ids


@pytest.mark.parametrize(
    "spec", ["learned", "gf2", "binary:ids=permuted", "gaussian:lift=pad,width=12"]
)
def test_a_file_comes_back_as_what_it_was(spec, make, tmp_path):
    folder = make(spec)
    export(folder, "gguf", tmp_path / "out")
    imported = import_model(file_in(tmp_path / "out"), tmp_path / "again", None, None, None, False)
    assert imported.interface["interface"] == str(InterfaceSpec.parse(spec))
    assert_same_tensors(folder, tmp_path / "again")
    configs = [
        json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "again")
    ]
    assert all(
        configs[0][key] == configs[1][key]
        for key in ("rms_norm_eps", "rope_parameters", "codebook_sha256", "tokenizer_sha256")
    )


def test_a_quantised_file_does_not_come_back(make, tmp_path):
    export(make(), "gguf", tmp_path / "out", "Q8_0")
    with pytest.raises(
        InputError, match="its weights are quantised, so the trained ones are not in it"
    ):
        import_model(tmp_path / "out", tmp_path / "again", None, None, None, False)


def test_a_file_without_the_shape_of_its_model_is_refused_before_anything_is_built(tmp_path):
    """transformers would build its default Llama of 7B parameters, which takes more memory than a
    laptop has.
    """
    writer = gguf.GGUFWriter(tmp_path / "cut.gguf", "llama")
    writer.add_context_length(16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        InputError,
        match=r"cut\.gguf: llama\.block_count is missing, so the shape of the model is not known",
    ):
        import_model(tmp_path / "cut.gguf", tmp_path / "out", None, None, None, False)
    assert not (tmp_path / "out").exists()
