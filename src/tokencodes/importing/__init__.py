"""Models that come in: a code found again in a written-out table, and checkpoints of other
programs.

`fit` finds the interface of a table, exactly or not at all; `plain` takes plain Llama folders,
`names` and `foreign` checkpoints with other names and layouts, believed only where the independent
reference gives the logits that came with them.
"""
