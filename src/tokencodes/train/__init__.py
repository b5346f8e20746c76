"""Training: one run of one arm. Knows data and model.

Open in this order: `config` (what a run is), `settings` (how it is read), `corpus` (its dataset),
`optimizer`, `loop` (the steps), `metrics` (what is written down), `cost` (parameters and cost,
without training). Checkpoints are in `tokencodes.checkpoint`, which knows nothing of the trainer,
for `verify` and others to read. Paper: section "Body and recipe".
"""
