"""tokencodes: decoder language models whose token inputs are fixed codes, matched against a learned table.

Importing it registers the model with transformers' Auto classes.
"""

from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.errors import InputError
from tokencodes.interfaces import FixedCode, InputInterface, LearnedCode, LearnedTable, build_interface
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.swap import Boundary, boundary_of, load_swapped, mount, save_swapped, swap_input

__version__ = "0.1.0"
__all__ = [
    "Boundary",
    "FixedCode",
    "InputError",
    "InputInterface",
    "InterfaceSpec",
    "LearnedCode",
    "LearnedTable",
    "TokenCodeConfig",
    "TokenCodeForCausalLM",
    "boundary_of",
    "build_codebook",
    "build_interface",
    "load_swapped",
    "mount",
    "save_swapped",
    "swap_input",
]
