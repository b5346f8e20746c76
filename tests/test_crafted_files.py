"""Files of data and configurations that would run code, if anything unpickled, evaluated or
rendered them. Nothing does.

Each test puts a payload into one kind of file that people share. The payload creates a file, `ran`,
when its code runs. Loading ends in one line, or the file is used as the data that it is; `ran` is
never there.
"""

import json
import shutil

import numpy as np
import pytest
import torch

from tests.traps import Trap
from tokencodes.cli import run as command
from tokencodes.codes.codebook import read_matrix
from tokencodes.data.dataset import Dataset, fingerprint
from tokencodes.data.shards import CHECKSUMS, block_sums
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.evaluate import suites, tasks
from tokencodes.evaluate.texts import open_texts
from tokencodes.files import file_sha256, read_json, write_json
from tokencodes.importing.import_model import import_model
from tokencodes.swap import Boundary


@pytest.fixture
def trap(tmp_path) -> Trap:
    return Trap(tmp_path)


def test_a_pickle_where_a_boundary_is_expected_ends_in_one_line(trap, tmp_path):
    (tmp_path / "interface.json").write_bytes(trap.pickled)
    assert "interface.json" in trap.ends(lambda: Boundary.read(tmp_path / "interface.json"))


def test_a_pickle_where_a_tokenizer_is_expected_ends_in_one_line(trap, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(trap.pickled)
    assert "not a tokenizers file" in trap.ends(lambda: TokenizerFile(tmp_path / "tokenizer.json"))
    assert "not a tokenizers file" in trap.ends(
        lambda: open_texts(str(tmp_path / "tokenizer.json"))
    )


@pytest.mark.parametrize(
    "name", ["object.npy", "pickle.npy", "pickle.txt", "source.txt", "arrays.npy"]
)
def test_code_in_a_matrix_file_ends_in_one_line(name, trap, tmp_path):
    file = tmp_path / name
    if name == "object.npy":
        np.save(file, np.array([[trap.payload]], dtype=object), allow_pickle=True)
    elif name == "arrays.npy":  # numpy opens what begins like a zip file as several arrays
        with file.open("wb") as stream:
            np.savez(stream, matrix=np.array([[trap.payload]], dtype=object))
    else:
        file.write_bytes(trap.source.encode() if name == "source.txt" else trap.pickled)
    assert str(file) in trap.ends(lambda: read_matrix(file))


@pytest.mark.parametrize("name", ["offsets.npy", "tokens.npy"])
def test_objects_in_a_datasets_arrays_end_in_one_line(name, dataset, trap, tmp_path):
    shutil.copytree(dataset.path, tmp_path / "data")
    manifest = read_json(tmp_path / "data" / "manifest.json")
    for source in manifest["sources"]:
        for entry in source["shards"]:
            shard = tmp_path / "data" / source["name"] / entry["path"]
            np.save(shard / name, np.array([trap.payload] * 4, dtype=object), allow_pickle=True)
            sums = {**json.loads((shard / CHECKSUMS).read_text()), name: block_sums(shard / name)}
            (shard / CHECKSUMS).write_text(json.dumps(sums))
            entry["checksums_sha256"] = file_sha256(shard / CHECKSUMS)
    manifest["fingerprint"] = fingerprint(manifest)
    write_json(tmp_path / "data" / "manifest.json", manifest)
    shard = Dataset(tmp_path / "data").shards("train")[0]
    assert name in trap.ends(lambda: shard.span(0, 0, 2))


def test_a_pickle_where_a_manifest_of_a_dataset_is_expected_ends_in_one_line(
    dataset, trap, tmp_path
):
    shutil.copytree(dataset.path, tmp_path / "data")
    (tmp_path / "data" / "manifest.json").write_bytes(trap.pickled)
    assert "manifest.json" in trap.ends(lambda: Dataset(tmp_path / "data"))


@pytest.mark.parametrize("kind", ["pickle", "source", "template"])
def test_code_in_a_configuration_ends_in_one_line_and_in_no_run(
    kind, study, trap, tmp_path, capsys
):
    file = tmp_path / "study.toml"
    text = {
        "source": f"interface = {json.dumps(trap.source)}",
        "template": f"interface = {json.dumps(trap.template)}",
    }
    file.write_bytes(trap.pickled if kind == "pickle" else f"[arms.one]\n{text[kind]}\n".encode())
    for arguments in (
        ["config", "show", str(file)],
        ["train", str(file), "--out", str(tmp_path / "run")],
    ):
        assert command(arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not trap.mark.exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name", ["weights.pt", "weights.pth", "weights.bin", "weights.safetensors"]
)
def test_a_pickle_among_the_weights_to_import_ends_in_one_line(name, trap, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / name).write_bytes(trap.pickled)
    if name == "weights.pt":
        torch.save({"model": trap.payload}, tmp_path / "theirs" / name)
    np.savez(tmp_path / "logits.npz", input_ids=np.arange(4)[None], logits=np.ones((1, 4, 8)))
    place, out = tmp_path / "theirs", tmp_path / "out"
    assert name in trap.ends(
        lambda: import_model(place, out, None, None, tmp_path / "logits.npz", False)
    )
    assert not out.exists()


@pytest.mark.parametrize("name", ["logits.npz", "logits.safetensors"])
def test_objects_among_the_logits_to_import_by_end_in_one_line(name, trap, tmp_path):
    file = tmp_path / name
    if name.endswith(".npz"):
        np.savez(file, input_ids=np.arange(4)[None], logits=np.array([trap.payload], dtype=object))
    else:
        file.write_bytes(trap.pickled)
    (tmp_path / "theirs.pt").write_bytes(b"")
    assert name in trap.ends(
        lambda: import_model(tmp_path / "theirs.pt", tmp_path / "out", None, None, file, False)
    )


def test_a_pickle_where_a_map_is_expected_ends_in_one_line(trap, tmp_path):
    torch.save({"head.weight": torch.ones(2, 2)}, tmp_path / "theirs.pt")
    np.savez(tmp_path / "logits.npz", input_ids=np.arange(4)[None], logits=np.ones((1, 4, 8)))
    (tmp_path / "map.json").write_bytes(trap.pickled)
    arguments = (
        tmp_path / "theirs.pt",
        tmp_path / "out",
        None,
        tmp_path / "map.json",
        tmp_path / "logits.npz",
        False,
    )
    assert "map.json" in trap.ends(lambda: import_model(*arguments))


def test_a_pickle_where_a_gguf_file_is_expected_ends_in_one_line(trap, tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(trap.pickled)
    assert "model.gguf" in trap.ends(
        lambda: import_model(tmp_path / "model.gguf", tmp_path / "out", None, None, None, False)
    )


def test_a_chat_template_in_a_gguf_file_is_not_rendered(trap, tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    for add in (
        writer.add_context_length,
        writer.add_embedding_length,
        writer.add_feed_forward_length,
        writer.add_vocab_size,
    ):
        add(8)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_chat_template(trap.template)
    writer.add_tensor("output.weight", np.ones((4, 4), dtype=np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    assert "model.gguf" in trap.ends(
        lambda: import_model(tmp_path / "model.gguf", tmp_path / "out", None, None, None, False)
    )


@pytest.mark.parametrize("location", ["../../outside.bin", "absolute", "link.bin"])
def test_an_onnx_graph_reads_no_tensor_from_outside_of_its_folder(location, trap, tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "outside.bin").write_bytes(np.ones((4, 4), dtype=np.float32).tobytes())
    folder = tmp_path / "model" / "onnx"
    folder.mkdir(parents=True)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    table = onnx.TensorProto(name="table", data_type=onnx.TensorProto.FLOAT, dims=[4, 4])
    table.data_location = onnx.TensorProto.EXTERNAL
    where = str(tmp_path / "outside.bin") if location == "absolute" else location
    table.external_data.add(key="location", value=where)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["table", "past_key_values.0.key"], ["logits"])],
        "crafted",
        [
            onnx.helper.make_tensor_value_info(
                "past_key_values.0.key", onnx.TensorProto.INT64, [1, 1, 1, 1]
            )
        ],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)],
        [table],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    (folder / "model.onnx").write_bytes(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    write_json(tmp_path / "model" / "config.json", {"model_type": "llama", "vocab_size": 4})
    assert "model.onnx" in trap.ends(
        lambda: import_model(tmp_path / "model", tmp_path / "out", None, None, None, False)
    )
    assert not (tmp_path / "out").exists()


def test_a_row_of_a_benchmark_is_text_and_no_template(trap, tmp_path, monkeypatch):
    """lm-eval renders its own templates; what a row holds is put into them and never rendered
    again.
    """
    row = {
        "id": "1",
        "question": trap.template,
        "choices": {"text": [trap.template, "no"], "label": ["A", "B"]},
        "answerKey": "A",
    }
    text = json.dumps(row) + "\n"
    (tmp_path / "arc_easy_test.jsonl").write_text(text)
    assert "other rows than are meant" in trap.ends(
        lambda: tasks.read_rows(tmp_path, "arc_easy_test")
    )
    sums = {**suites.SHA256, "arc_easy_test": file_sha256(tmp_path / "arc_easy_test.jsonl")}
    monkeypatch.setattr(tasks, "SHA256", sums)
    (made,) = tasks.make_tasks(suites.benchmarks("arc_easy"), tmp_path)
    (document,) = made.documents
    assert trap.template in made.task.doc_to_text(document)
    assert trap.template in made.task.doc_to_choice(document)
    assert not trap.mark.exists()


@pytest.mark.parametrize(
    "name", ["study.toml", "dataset_facts.json", "ngram_baselines.json", "gf2/seed-1/result.json"]
)
def test_a_pickle_in_a_studys_folder_ends_in_one_line(name, trap, tmp_path, capsys):
    (tmp_path / "study" / "gf2" / "seed-1").mkdir(parents=True)
    (tmp_path / "study" / name).write_bytes(trap.pickled)
    assert command(["report", str(tmp_path / "study")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not trap.mark.exists()


def test_a_pickle_in_an_evaluations_folder_ends_in_one_line(trap, tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_bytes(trap.pickled)
        (tmp_path / name / "documents.jsonl.gz").write_bytes(trap.pickled)
    for arguments in (
        ["contrast", str(tmp_path / "one"), str(tmp_path / "two")],
        ["report", str(tmp_path / "one")],
    ):
        assert command(arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not trap.mark.exists()
