"""A trained model in other people's runtimes, and proof beside it that it is still the same
function.

`source` is what leaves, `expected` what it says on a few texts, `llama`, `gguf_file` and
`onnx_graph` write it, `runtimes` open what was written, `agreement` compares, `card` says it in
words, `export_model` puts them in order: an export that does not agree is deleted before anyone
sees it.
"""
