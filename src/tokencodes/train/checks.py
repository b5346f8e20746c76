"""What of a run can be refused is refused here, before anything is written and before memory is
taken.

`check_model` needs no text: it builds the code for V tokens, and the model without its weights.
`check_text` needs prepared text: vocabulary, windows, order. `check_memory` needs the machine.
"""

from pathlib import Path

import torch

from tokencodes.codes import InterfaceSpec
from tokencodes.data.dataset import Corpus
from tokencodes.data.loader import rank_indices
from tokencodes.data.windows import HeldOut, held_out_windows
from tokencodes.errors import InputError
from tokencodes.memory import require_memory
from tokencodes.parallel import World
from tokencodes.train.build import build_model, sampler_of
from tokencodes.train.config import RunConfig
from tokencodes.train.corpus import check_folder, open_prepared
from tokencodes.train.interface import resolve, settle_without_text

FLOAT32 = 4
STATE = 4 * FLOAT32  # bytes of a parameter: weight, gradient, and the two moments of AdamW
SMALLER = (
    "lower data.vocab_size, model.hidden_size, model.intermediate_size or model.num_hidden_layers,"
    " or use more ranks"
)


def check_model(run: RunConfig) -> None:
    """InputError where the code or the model of a run cannot be built. Nothing of the model is
    allocated.
    """
    with torch.device("meta"):
        build_model(run, *settle_without_text(run.interface))


def check_text(run: RunConfig, corpus: Corpus, ranks: int = 1) -> HeldOut:
    """The held-out windows of a run on this text. InputError where it cannot be trained on it."""
    corpus.require(run.data.vocab_size)
    rank_indices(0, run.batch.global_batch_size, 0, ranks)
    sampler_of(run, corpus)
    check_order(run, corpus)
    return held_out_windows(corpus, run.model.context_length, run.heldout.windows)


def check_run(run: RunConfig, out: Path) -> None:
    """What is checked of a run that is to be trained elsewhere: its folder, its code and model, its
    text if that is here.
    """
    check_folder(out, run)
    check_model(run)
    check_named_text(run)


def check_named_text(run: RunConfig) -> None:
    """`check_text` of the prepared text that a run names, if that is here."""
    names = [run.data.dataset] if run.data.dataset else [part.dataset for part in run.data.mixture]
    if names and all(Path(name).exists() for name in names):
        check_text(run, open_prepared(run.data))


def check_order(run: RunConfig, corpus: Corpus) -> None:
    """InputError where a spec names another order of tokens than this text gives."""
    if InterfaceSpec.parse(run.interface).order is not None:
        resolve(run.interface, corpus)


def parameter_count(run: RunConfig) -> int:
    """Trainable parameters of a run's model, by formula: no array is made."""
    model, vocab_size = run.model, run.data.vocab_size
    width, spec = model.hidden_size, InterfaceSpec.parse(run.interface)
    block = 4 * width**2 + 3 * width * model.intermediate_size + 2 * width
    table = width if spec.learned else 0 if spec.fixed else spec.code_width(vocab_size)
    return model.num_hidden_layers * block + width + vocab_size * (width + table)


def check_memory(run: RunConfig, world: World) -> None:
    """InputError, on every rank, where weights, gradients and optimizer states alone cannot fit.
    Activations are not counted, so a run that fits is never refused.
    """
    problem = None
    try:
        _require(run, world)
    except InputError as error:
        problem = str(error)
    problems = [line for line in world.gather(problem) if line]
    if problems:
        raise InputError(problems[0])


def _require(run: RunConfig, world: World) -> None:
    parameters = parameter_count(run)
    shards = {"full": world.ranks, "hybrid": world.ranks_here, "replicate": 1}[run.engine.sharding]
    state = STATE * parameters // shards  # of each rank
    what = f"weights, gradients and optimizer states of {parameters:,} parameters"
    # every rank draws the whole model in the host's memory
    drawn = FLOAT32 * parameters * world.ranks_here
    if world.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(world.device)
        require_memory(state, f"{what} on {world.device}", SMALLER, total, free)
        require_memory(
            drawn, f"{parameters:,} weights, drawn by each of {world.ranks_here} ranks", SMALLER
        )
        return
    require_memory(max(state * world.ranks_here, drawn), what, SMALLER)
