"""What is proven, what was measured, what does not apply, what is not shown.

`reference` is an independent forward; `identity` (L0), `structure` (L1), `forward` (L2) and
`runtime` (L3 to L5) are the checks, `check` says what one is; `certificate` puts them together.
Paper: section "Verification utility".
"""
