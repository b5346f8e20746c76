"""`python -m tokencodes`, for torchrun."""

from tokencodes_command import main

if __name__ == "__main__":
    main()
