"""`python -m tokencodes`, for torchrun."""

from tokencodes.cli import main

main()
