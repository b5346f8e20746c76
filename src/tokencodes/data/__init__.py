"""From text to windows of token ids. Knows no model.

Open in this order: `text` (files -> documents), `split`, `tokenizer`, `prepare` (documents -> shards), `shards` (the format on
disk and its reader), `sampler` (which windows an update sees), `windows` (their ids). Paper: section "Data".
"""
