"""Measures how far a trained input table moved from its initial values, relative to their norm.

    python tools/table_movement.py RUN ...

For each run it prints ‖E - E0‖ / ‖E0‖ of the whole table, and the median over tokens of the same
ratio for one row. E is the table of the run's newest checkpoint. E0 is the initial table. If the
ratios are near 0, the table was hardly trained. A comparison of a trained table with a fixed one
then says nothing about training.
"""

import sys
from pathlib import Path

from torch import Tensor

from tokencodes import checkpoint
from tokencodes.init import initialise
from tokencodes.interfaces import LearnedTable
from tokencodes.train.build import build_model
from tokencodes.train.interface import resolve
from tokencodes.train.settings import read_run


def tables(run: Path) -> tuple[Tensor, Tensor]:
    """Returns the initial table of a run and the table of its newest checkpoint, both V×d. Raises
    SystemExit if the input of the run is fixed.
    """
    config = read_run(run / "config.toml")
    drawn = build_model(config, *resolve(config.interface, None))
    initialise(drawn, config.seed)
    trained = checkpoint.load_model(run)
    if not isinstance(trained.input_interface, LearnedTable):
        raise SystemExit(
            f"{run}: its input {config.interface!r} is fixed, so it cannot move; name runs with a"
            " learned table"
        )
    return drawn.input_interface.materialize(), trained.input_interface.materialize()


def movement(before_VD: Tensor, after_VD: Tensor) -> tuple[float, float]:
    """Returns ‖E - E0‖ / ‖E0‖ of the whole table, and the median of its rows."""
    change_V, length_V = (after_VD - before_VD).norm(dim=1), before_VD.norm(dim=1)
    return float(change_V.norm() / length_V.norm()), float((change_V / length_V).median())


def main() -> None:
    """Prints one line for each run."""
    for place in sys.argv[1:]:
        whole, row = movement(*tables(Path(place)))
        print(f"{place}: whole table {whole:.3f}, median row {row:.3f}")


if __name__ == "__main__":
    main()
