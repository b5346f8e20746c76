"""Export of a trained model to other runtimes, with proof that it still computes the same function.

`source` reads the model. `expected` computes its outputs on a few texts. `llama`, `gguf_file` and
`onnx_graph` write it. `runtimes` opens the written files. `agreement` compares the outputs. `card`
writes the model card. `export_model` runs these in order. An export that does not agree is deleted
before it becomes visible.
"""
