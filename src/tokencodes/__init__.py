"""tokencodes: decoder language models whose token inputs are fixed codes, matched against a learned
table.

Importing it makes transformers' Auto classes know the model. Neither torch nor transformers is
loaded before it is needed, so that what works on text alone starts at once.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokencodes.codes import InterfaceSpec, build_codebook
    from tokencodes.errors import InputError
    from tokencodes.hub import load
    from tokencodes.interfaces import (
        FixedCode,
        InputInterface,
        LearnedCode,
        LearnedTable,
        build_interface,
    )
    from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
    from tokencodes.swap import Boundary, boundary_of, load_swapped, mount, save_swapped, swap_input

__version__ = "0.1.0"
_HOME = {
    "codes": ("InterfaceSpec", "build_codebook"),
    "errors": ("InputError",),
    "hub": ("load",),
    "interfaces": ("FixedCode", "InputInterface", "LearnedCode", "LearnedTable", "build_interface"),
    "model": ("TokenCodeConfig", "TokenCodeForCausalLM"),
    "swap": ("Boundary", "boundary_of", "load_swapped", "mount", "save_swapped", "swap_input"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
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
    "load",
    "load_swapped",
    "mount",
    "save_swapped",
    "swap_input",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tokencodes' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tokencodes.{_MODULE_OF[name]}"), name)


class _Registration(importlib.abc.MetaPathFinder):
    """Waits for `import transformers`, and follows it by `model`, which registers with the Auto
    classes.
    """

    def __init__(self) -> None:
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """transformers' own spec, whose loading is followed by ours;
        nothing for any other module."""
        if name != "transformers" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)  # by the finders after this one
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: Any) -> None:
                load(module)
                importlib.import_module("tokencodes.model")

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if "transformers" in sys.modules:
    importlib.import_module("tokencodes.model")
else:
    sys.meta_path.insert(0, _Registration())
