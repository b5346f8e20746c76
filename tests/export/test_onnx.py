"""ONNX graphs: the compact code at the input, logits of ours, a cache that changes nothing."""

import json
import os

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from tests.export.conftest import assert_same_tensors, trained
from tokencodes.codes import InterfaceSpec
from tokencodes.export import onnx_graph
from tokencodes.export.export_model import export
from tokencodes.importing.import_model import import_model

SPECS = [
    "learned",
    "binary",
    "gf2",
    "binary:ids=permuted,storage=computed",
    "binary:values=pm1,lift=interleave",
    "random:width=24,center=true,scale=match",
    "gaussian:lift=pad,width=12",
    "sphere:width=16,lift=orthogonal",
    "learned-code:lift=interleave",
]


@pytest.mark.parametrize("spec", SPECS)
def test_logits_are_ours_with_and_without_a_cache(spec, make, tmp_path):
    exported = export(make(spec), "onnx", tmp_path / "out")
    runtime = exported.runtimes[0]
    assert (runtime.runtime, runtime.status) == (
        "onnxruntime",
        "agrees",
    ) and runtime.largest_difference <= 1e-4
    assert runtime.greedy_steps_equal == (64, 64)


def test_the_graph_holds_the_code_and_not_its_table(make, tmp_path):
    export(make("gf2", hidden_size=72), "onnx", tmp_path / "out")
    graph = onnx.load(tmp_path / "out" / "onnx" / "model.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds[:4] == ["Gather", "Cast", "Tile", "Identity"]
    sizes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    assert sizes["model.embed_tokens.codebook"] == [320, 9] and [320, 72] not in sizes.values()


@pytest.mark.parametrize(
    "spec", ["learned", "gf2", "binary:values=pm1,lift=interleave", "learned-code"]
)
def test_a_graph_comes_back_as_what_it_was(spec, make, tmp_path):
    folder = make(spec)
    export(folder, "onnx", tmp_path / "out")
    imported = import_model(tmp_path / "out", tmp_path / "again", None, None, None, False)
    assert (
        imported.interface["interface"] == str(InterfaceSpec.parse(spec))
        and "onnxruntime" in imported.compared
    )
    assert_same_tensors(folder, tmp_path / "again")


def session(folder):
    return onnxruntime.InferenceSession(
        str(folder / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
    )


def test_padding_on_the_left_and_a_cache_in_parts_change_nothing(make, tmp_path):
    export(make("gf2"), "onnx", tmp_path / "out")
    model, run = trained("gf2"), session(tmp_path / "out")
    ids = torch.randint(1, 320, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(ids).logits.numpy()
    empty = np.zeros((2, 4, 0, 16), dtype=np.float32)
    names = [
        graph_input.name for graph_input in run.get_inputs() if graph_input.name.startswith("past")
    ]
    cache, chunks = [empty] * len(names), []
    for first, last in ((0, 7), (7, 8), (8, 20)):
        inputs = {
            "input_ids": ids[:, first:last].numpy(),
            "attention_mask": np.ones((2, last), dtype=np.int64),
            "position_ids": np.tile(np.arange(first, last), (2, 1)),
        }
        logits, *cache = run.run(None, inputs | dict(zip(names, cache, strict=True)))
        chunks.append(logits)
    assert np.abs(np.concatenate(chunks, axis=1) - whole).max() < 1e-4
    padded = np.concatenate([np.zeros((2, 3), dtype=np.int64), ids.numpy()], axis=1)
    mask = np.concatenate(
        [np.zeros((2, 3), dtype=np.int64), np.ones((2, 20), dtype=np.int64)], axis=1
    )
    inputs = {
        "input_ids": padded,
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0),
    }
    logits = run.run(["logits"], inputs | dict.fromkeys(names, empty))[0]
    assert np.abs(logits[:, 3:] - whole).max() < 1e-4


def test_large_weights_lie_in_a_file_of_their_own(make, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "INLINE_BYTES", 1000)
    exported = export(make(), "onnx", tmp_path / "out")
    assert exported.runtimes[0].status == "agrees"
    assert (tmp_path / "out" / "onnx" / "model.onnx_data").stat().st_size > 50 * (
        tmp_path / "out" / "onnx" / "model.onnx"
    ).stat().st_size / 10
    assert json.loads((tmp_path / "out" / "config.json").read_text())["transformers.js_config"][
        "use_external_data_format"
    ]


@pytest.mark.skipif(
    "NODE_PATH" not in os.environ, reason="NODE_PATH names no folder with transformers.js"
)
@pytest.mark.parametrize("spec", ["binary", "gf2", "learned"])
def test_transformers_js_agrees_where_it_is_installed(spec, make, tmp_path):
    runtime = export(make(spec), "onnx", tmp_path / "out").runtimes[1]
    assert (runtime.runtime, runtime.status) == (
        "transformers.js",
        "agrees",
    ) and runtime.greedy_steps_equal == (64, 64)


def test_transformers_js_is_not_run_where_it_is_not(make, tmp_path, monkeypatch):
    monkeypatch.delenv("NODE_PATH", raising=False)
    assert export(make(), "onnx", tmp_path / "out").runtimes[1].status == "not run"
