"""Training: one run of one arm. Knows data and model.

Open in this order: `config` (what a run is), `corpus` (its dataset), `optimizer`, `loop` (the updates), `metrics` (what is
written down), `account` (parameters and cost, without training). Checkpoints are in
`tokencodes.checkpoint`, which knows nothing of the trainer, so that `verify` and others can read them. Paper: section "Body and recipe".
"""
