"""tokencodes: decoder language models whose token inputs are fixed codes, matched against a learned table.

Importing it registers the model with transformers' Auto classes.
"""

from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.errors import InputError
from tokencodes.interfaces import FixedCode, InputInterface, LearnedTable, build_interface
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM

__version__ = "0.1.0"
__all__ = [
    "FixedCode",
    "InputError",
    "InputInterface",
    "InterfaceSpec",
    "LearnedTable",
    "TokenCodeConfig",
    "TokenCodeForCausalLM",
    "build_codebook",
    "build_interface",
]
