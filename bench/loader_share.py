"""Measures the share of a training step that sampling and reading take, without the loader's
thread.

python bench/loader_share.py [--preset nano] [--steps 12]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from timing import seconds

from tokencodes.train.corpus import open_dataset
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.settings import read_study


def main() -> None:
    """Prints medians and the share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    study, _ = read_study(options.preset, [])
    with tempfile.TemporaryDirectory() as folder:
        run = study.run("gf2", 1)
        trainer = Trainer(
            run, open_dataset(run.data, Path(folder), print), Path(folder) / "run", Silent()
        )
        loader = trainer.loader()
        steps = [seconds(lambda: trainer.train_step(loader)) for _ in range(options.steps)][2:]
        loader.close()
        reads = [seconds(lambda: trainer.window_ids(step)) for step in range(1000, 1200)]  # noqa: B023
    step, read = statistics.median(steps), statistics.median(reads)
    print(
        f"{options.preset}: step {1000 * step:.1f} ms, its windows {1000 * read:.3f} ms:"
        f" {read / step:.3%}"
    )


if __name__ == "__main__":
    main()
