"""An ONNX graph of the decoder: prefill and cached decode in one, with the compact code at the
input instead of a V×d table.

Built node by node from standard operators, under the names that optimum and transformers.js use, so
that they find the cache:
  in    input_ids int64[B, T]   attention_mask int64[B, P+T]   position_ids int64[B, T]
        past_key_values.N.key|value [B, H, P, C]
  out   logits [B, T, V]        present.N.key|value [B, H, P+T, C]
P is the length of the cache (0 at first), C a head's width. A trace of the module would do too, but
holds the model twice, and its graph says less to a reader than the formula does. Paper: section
"Body and recipe".
"""

from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from tokencodes.codes import lift
from tokencodes.export.source import Source
from tokencodes.interfaces import FixedCode, InputInterface, LearnedTable
from tokencodes.verify.identity import stored_book

OPSET = 18
IR_VERSION = 9  # the newest version that every runtime of the last two years reads
INLINE_BYTES = 1 << 30  # above, weights lie in a file of their own: protobuf ends at 2 GB
DATA = "model.onnx_data"
INPUT_VECTORS = "inputs_embeds"  # the name of what comes out of the input stage
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Graph:
    """Nodes and tensors of the graph. Tensors are written to disk at once if they are too large for
    the graph's own file.
    """

    def __init__(self, folder: Path, outside: bool) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.data = (folder / DATA).open("wb") if outside else None

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        """Adds one node. Returns the name of its output."""
        out = name or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def constant(self, value: ArrayLike, name: str = "") -> str:
        """Adds a small tensor. Returns its name."""
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        return self._keep(numpy_helper.from_array(array, name or f"constant_{len(self.tensors)}"))

    def weight(self, tensor: torch.Tensor, name: str) -> str:
        """Adds a tensor of the model. Returns its name."""
        array = np.ascontiguousarray(tensor.detach().numpy())
        if self.data is None:
            return self._keep(numpy_helper.from_array(array, name))
        kept = TensorProto(
            name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape
        )
        kept.data_location = TensorProto.EXTERNAL
        # on a page, so that it can be mapped
        start = self.data.seek(-(-self.data.tell() // 4096) * 4096)
        for key, value in (
            ("location", DATA),
            ("offset", str(start)),
            ("length", str(array.nbytes)),
        ):
            kept.external_data.add(key=key, value=value)
        array.tofile(self.data)
        return self._keep(kept)

    def _keep(self, tensor: onnx.TensorProto) -> str:
        self.tensors.append(tensor)
        return str(tensor.name)


def write_onnx(source: Source, file: Path) -> bool:
    """Writes the graph in float32. Returns whether its weights are in a separate file, which is the
    case above 1 GiB.
    """
    model, config = source.model, source.model.config
    graph = Graph(file.parent, source.weight_bytes > INLINE_BYTES)
    heads, channels = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    x = graph.add("Identity", input_vectors(graph, model.input_interface), name=INPUT_VECTORS)
    positions = _Positions(graph, config.rope_parameters["rope_theta"], channels)
    cache_in, cache_out = [], []
    for number, block in enumerate(model.model.layers):
        here = f"model.layers.{number}"
        past = [f"past_key_values.{number}.{part}" for part in ("key", "value")]
        present = [f"present.{number}.{part}" for part in ("key", "value")]
        cache_in += [
            helper.make_tensor_value_info(name, FLOAT, ["batch", heads, "past", channels])
            for name in past
        ]
        cache_out += [
            helper.make_tensor_value_info(name, FLOAT, ["batch", heads, "total", channels])
            for name in present
        ]
        normed = _norm(graph, x, block.input_layernorm, f"{here}.input_layernorm.weight")
        mixed = _attention(
            graph, normed, block.self_attn, here, positions, past, present, heads, channels
        )
        x = graph.add("Add", x, mixed)
        normed = _norm(
            graph, x, block.post_attention_layernorm, f"{here}.post_attention_layernorm.weight"
        )
        x = graph.add("Add", x, _swiglu(graph, normed, block.mlp, f"{here}.mlp"))
    x = _norm(graph, x, model.model.norm, "model.norm.weight")
    _linear(graph, x, model.lm_head, "lm_head", name="logits")
    inputs = [
        helper.make_tensor_value_info("input_ids", INT64, ["batch", "length"]),
        helper.make_tensor_value_info("attention_mask", INT64, ["batch", "total"]),
        helper.make_tensor_value_info("position_ids", INT64, ["batch", "length"]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", FLOAT, ["batch", "length", config.vocab_size]),
        *cache_out,
    ]
    # for `import`
    between = [
        helper.make_tensor_value_info(INPUT_VECTORS, FLOAT, ["batch", "length", config.hidden_size])
    ]
    made = helper.make_graph(
        graph.nodes, source.name, [*inputs, *cache_in], outputs, graph.tensors, value_info=between
    )
    proto = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="tokencodes"
    )
    proto.ir_version = IR_VERSION
    facts = {key: str(value) for key, value in source.facts().items()}
    helper.set_model_props(proto, {**facts, "frozen_input": str(source.frozen).lower()})
    if graph.data is not None:
        graph.data.close()
    onnx.save(proto, file)
    onnx.checker.check_model(file)
    return graph.data is not None


def input_vectors(graph: Graph, interface: InputInterface) -> str:
    """Adds the input stage: token ids to float32[B, T, D]. A row of the code becomes its values and
    is lifted. Returns the name of the output.
    """
    spec = interface.spec
    if isinstance(interface, LearnedTable):
        return graph.add(
            "Gather", graph.weight(interface.weight, "model.embed_tokens.weight"), "input_ids"
        )
    if not isinstance(interface, FixedCode):
        coordinates = graph.weight(
            interface.get_parameter("coordinates"), "model.embed_tokens.coordinates"
        )
        return _lifted(graph, graph.add("Gather", coordinates, "input_ids"), interface)
    if (
        not spec.binary_valued
    ):  # float words: the bytes of the model, not new ones from this machine
        shown = interface.get_buffer("codebook").view(torch.float32)
        return _lifted(
            graph,
            graph.add("Gather", graph.weight(shown, "model.embed_tokens.codebook"), "input_ids"),
            interface,
        )
    book = stored_book(interface)
    # one byte for each bit
    words = graph.weight(torch.from_numpy(book.words_VK.copy()), "model.embed_tokens.codebook")
    bits = graph.add("Gather", words, "input_ids")
    levels = book.levels(interface.hidden_size)
    if levels is not None:
        level_0, level_1 = (graph.constant(level) for level in levels)
        return _lifted(
            graph,
            graph.add("Where", graph.add("Cast", bits, to=TensorProto.BOOL), level_1, level_0),
            interface,
        )
    z = graph.add("Cast", bits, to=FLOAT)
    if spec.values == "pm1":
        z = graph.add("Sub", graph.add("Mul", z, graph.constant(2.0)), graph.constant(1.0))
    return _lifted(graph, z, interface)


def _lifted(graph: Graph, z: str, interface: InputInterface) -> str:
    kind, width, hidden = (
        interface.spec.lift,
        interface.spec.code_width(interface.vocab_size),
        interface.hidden_size,
    )
    if kind == "orthogonal":
        return graph.add(
            "MatMul",
            z,
            graph.constant(interface.get_buffer("lift").view(torch.float32).numpy().T.copy()),
        )
    if kind == "pad":
        return graph.add("Pad", z, graph.constant([0, 0, 0, 0, 0, hidden - width]))
    if kind == "tile" and hidden % width == 0:
        return graph.add("Tile", z, graph.constant([1, 1, hidden // width]))
    return graph.add("Gather", z, graph.constant(lift.columns(kind, width, hidden)), axis=2)


class _Positions:
    """The tensors that all blocks share: cosines and sines float32[B, 1, T, C], and the mask [B, 1,
    T, P+T] that is added to scores.
    """

    def __init__(self, graph: Graph, theta: float, channels: int) -> None:
        inverse = 1.0 / theta ** (torch.arange(0, channels, 2, dtype=torch.float32) / channels)
        positions = graph.add(
            "Unsqueeze", graph.add("Cast", "position_ids", to=FLOAT), graph.constant([1, 3])
        )
        half = graph.add("Mul", positions, graph.constant(inverse.numpy()))
        angle = graph.add("Concat", half, half, axis=-1)
        self.cos, self.sin = graph.add("Cos", angle), graph.add("Sin", angle)
        length = graph.add("Shape", "input_ids", start=1, end=2)
        total = graph.add("Shape", "attention_mask", start=1, end=2)
        zero, step = graph.constant(np.int64(0)), graph.constant(np.int64(1))
        last = graph.add("Squeeze", total)
        first = graph.add("Sub", last, graph.add("Squeeze", length))
        queries = graph.add("Unsqueeze", graph.add("Range", first, last, step), graph.constant([1]))
        earlier = graph.add("LessOrEqual", graph.add("Range", zero, last, step), queries)
        real = graph.add(
            "Unsqueeze",
            graph.add("Cast", "attention_mask", to=TensorProto.BOOL),
            graph.constant([1, 2]),
        )
        seen = graph.add("And", earlier, real)
        self.mask = graph.add(
            "Where", seen, graph.constant(0.0), graph.constant(np.float32(np.finfo(np.float32).min))
        )


def _norm(graph: Graph, x: str, module: torch.nn.Module, name: str) -> str:
    """x / sqrt(mean(x^2) + eps) · scale."""
    mean = graph.add("ReduceMean", graph.add("Mul", x, x), graph.constant([-1]))
    root = graph.add(
        "Sqrt", graph.add("Add", mean, graph.constant(np.float32(module.variance_epsilon)))
    )
    return graph.add(
        "Mul", graph.add("Div", x, root), graph.weight(module.get_parameter("weight"), name)
    )


def _linear(graph: Graph, x: str, module: torch.nn.Module, path: str, name: str = "") -> str:
    return graph.add(
        "MatMul", x, graph.weight(module.get_parameter("weight").T, f"{path}.weight"), name=name
    )


def _attention(
    graph: Graph,
    x: str,
    module: torch.nn.Module,
    here: str,
    positions: _Positions,
    past: list[str],
    present: list[str],
    heads: int,
    channels: int,
) -> str:
    apart, together = (
        graph.constant([0, 0, heads, channels]),
        graph.constant([0, 0, heads * channels]),
    )

    def heads_of(part: str) -> str:
        projected = _linear(graph, x, module.get_submodule(part), f"{here}.self_attn.{part}")
        return graph.add("Transpose", graph.add("Reshape", projected, apart), perm=[0, 2, 1, 3])

    def turned(part: str) -> str:
        whole = heads_of(part)
        ends = [graph.constant([edge]) for edge in (0, channels // 2, channels)]
        axis = graph.constant([3])
        first, second = (
            graph.add("Slice", whole, *ends[:2], axis),
            graph.add("Slice", whole, *ends[1:], axis),
        )
        other = graph.add("Concat", graph.add("Neg", second), first, axis=-1)
        return graph.add(
            "Add", graph.add("Mul", whole, positions.cos), graph.add("Mul", other, positions.sin)
        )

    query = turned("q_proj")
    key = graph.add("Concat", past[0], turned("k_proj"), axis=2, name=present[0])
    value = graph.add("Concat", past[1], heads_of("v_proj"), axis=2, name=present[1])
    scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.add("Mul", scores, graph.constant(np.float32(channels**-0.5)))
    shares = graph.add("Softmax", graph.add("Add", scores, positions.mask), axis=-1)
    mixed = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    return _linear(
        graph,
        graph.add("Reshape", mixed, together),
        module.get_submodule("o_proj"),
        f"{here}.self_attn.o_proj",
    )


def _swiglu(graph: Graph, x: str, module: torch.nn.Module, path: str) -> str:
    gate = _linear(graph, x, module.get_submodule("gate_proj"), f"{path}.gate_proj")
    gated = graph.add("Mul", gate, graph.add("Sigmoid", gate))
    up = _linear(graph, x, module.get_submodule("up_proj"), f"{path}.up_proj")
    return _linear(
        graph, graph.add("Mul", gated, up), module.get_submodule("down_proj"), f"{path}.down_proj"
    )
