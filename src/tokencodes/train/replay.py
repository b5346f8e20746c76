"""One step computed again: from the newest checkpoint before it, without touching the run.

A run is a pure function of its configuration and dataset, so a step that a log shows, or that
stopped a run because it was not finite, can be had again and looked at. Bitwise in float32 on one
machine, thread count and number of ranks.
"""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tokencodes import checkpoint
from tokencodes.data.dataset import Corpus
from tokencodes.errors import CheckFailed, InputError
from tokencodes.parallel import World
from tokencodes.train.config import RunConfig
from tokencodes.train.environment import environment
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent, StartRecord, StepRecord, read_metrics
from tokencodes.train.nonfinite import NonFinite

ROUNDING = 1e-3  # relative, of a loss and a norm some steps after a checkpoint


@dataclass(frozen=True)
class Replayed:
    """A step again. Losses in nats per token; `logged` is what metrics.jsonl has of it, None if it
    never got there.
    """

    step: int
    # the step of the checkpoint that it was computed from; 0: from the initial weights
    began_after: int
    loss: float
    grad_norm: float
    grad_norm_parts: dict[str, float]
    finite: bool
    logged_loss: float | None
    logged_grad_norm: float | None
    # in what it was computed otherwise than the log says (ranks, device, threads, ...); None: in
    # nothing
    otherwise: str | None

    @property
    def agrees(self) -> bool | None:
        """Whether it is what was logged, to the last bit, or to rounding where it was computed
        otherwise. None: nothing was.
        """
        if self.logged_loss is None or self.logged_grad_norm is None:
            return None
        if self.otherwise is None:
            return (self.loss, self.grad_norm) == (self.logged_loss, self.logged_grad_norm)
        pairs = ((self.loss, self.logged_loss), (self.grad_norm, self.logged_grad_norm))
        return all(math.isclose(computed, logged, rel_tol=ROUNDING) for computed, logged in pairs)


def replay(
    run: RunConfig, corpus: Corpus, out: Path, step: int, world: World | None = None
) -> Replayed:
    """Step 1, 2, ... of the run in `out`, again. InputError: no such step can be reached from what
    is there.
    """
    if not 1 <= step <= 1 << 40:
        raise InputError(f"step {step}: steps count from 1, as in metrics.jsonl")
    log = read_metrics(out / "metrics.jsonl")
    places = [
        path
        for path in checkpoint.checkpoints(out / "checkpoints")
        if checkpoint.step_of(path) < step
    ]
    with tempfile.TemporaryDirectory() as aside:
        trainer = Trainer(run, corpus, Path(aside) / "run", Silent(), world=world)
        if places:
            problem = checkpoint.damage(places[0])
            if problem:
                raise InputError(
                    f"{problem}; remove that checkpoint to replay from the one before it"
                )
            trainer.go_on_from(places[0])
        began = trainer.state.step
        loader = trainer.loader()
        try:
            while trainer.state.step < step:
                outcome: StepRecord | NonFinite = trainer.train_step(loader)
        except NonFinite as error:
            if trainer.state.step + 1 < step:
                message = (
                    f"step {trainer.state.step + 1} is not finite, so step {step} is never reached"
                )
                raise CheckFailed(message) from error
            outcome = error
        finally:
            loader.close()
    logged = next(
        (line for line in reversed(log) if isinstance(line, StepRecord) and line.step == step), None
    )
    starts = [
        line.environment for line in log if isinstance(line, StartRecord) and line.step < step
    ]
    here = environment(trainer.world, run.engine)
    otherwise = next(
        (key for key, value in here.items() if starts and starts[-1].get(key) != value), None
    )
    computed = (
        outcome.loss,
        outcome.grad_norm,
        outcome.grad_norm_parts,
        isinstance(outcome, StepRecord),
    )
    loss, norm = (None, None) if logged is None else (logged.loss, logged.grad_norm)
    return Replayed(step, began, *computed, loss, norm, otherwise)
