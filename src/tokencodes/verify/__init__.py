"""What is proven, what was measured, what does not apply: `reference` (its own forward), `checks`, `certificate`."""
