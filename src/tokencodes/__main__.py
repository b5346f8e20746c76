"""`python -m tokencodes`, for torchrun."""

from tokencodes.cli import main

if __name__ == "__main__":
    main()
