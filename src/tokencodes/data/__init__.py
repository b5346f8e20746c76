"""From text to windows of token ids. It uses no model and no torch.

Open in this order: `inputs` (paths, globs, hub names), `text` (files -> documents), `split`,
`tokenizer`; `encode` with `pretokens` and `wordcache` (texts -> ids, exact and fast); `convert`
(one input -> its shards) with `writer`, `prepare` (all inputs) with `workers`, `cluster`,
`progress`, `manifest`; `shards` and `dataset` (the format on disk and its readers); `sampler` and
`mixture` (which windows a step sees), `windows` (their ids), `loader` (read ahead). Paper: section
"Data".
"""
