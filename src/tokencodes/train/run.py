"""One run from the first step to its result: the folder that belongs to it, its training, and what
it leaves.
"""

from contextlib import ExitStack
from pathlib import Path

from tokencodes.data.dataset import Corpus, Dataset
from tokencodes.data.prepare import Say
from tokencodes.errors import InputError
from tokencodes.files import locked_folder, write_json
from tokencodes.measured import OVERFLOW, perplexity
from tokencodes.parallel import World, join
from tokencodes.result import RESULT, Divergence, ResultRecord, read_result
from tokencodes.train.config import DataConfig, RunConfig
from tokencodes.train.corpus import check_folder, open_dataset, open_prepared
from tokencodes.train.environment import environment, keep_freed_memory, memory_bytes
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Observer
from tokencodes.train.nonfinite import Diverging
from tokencodes.train.stop import Stop


def finish(trainer: Trainer) -> ResultRecord:
    """After the last step: the model as a Hugging Face folder, and result.json, whose presence
    means that the run has ended.

    A held-out loss whose exponential overflows is no score: the run diverged, and no model is left
    beside its checkpoints.
    """
    loss = trainer.held_out_loss()
    if perplexity(loss) is None:
        reason = (
            f"held-out loss {loss:,.1f} nats per token after the last step: its perplexity is"
            f" {OVERFLOW}"
        )
        return write_result(trainer, None, _divergence(trainer, trainer.state.step, reason))
    trainer.export(trainer.out / "model")
    return write_result(trainer, loss, None)


def _divergence(trainer: Trainer, step: int, reason: str) -> Divergence:
    return Divergence(reason=reason, step=step, last_loss=trainer.state.last_loss)


def write_result(
    trainer: Trainer, loss: float | None, divergence: Divergence | None
) -> ResultRecord:
    """Writes result.json: with a held-out loss, or with what the run diverged by. All ranks
    together.
    """
    config, state, held_out, world = trainer.config, trainer.state, trainer.held_out, trainer.world
    result = ResultRecord(
        status="done" if divergence is None else "diverged",
        divergence=divergence,
        arm=config.arm,
        seed=config.seed,
        interface=trainer.model.config.interface,
        spec_sha256=str(trainer.model.config.spec_sha256),
        codebook_sha256=trainer.model.config.codebook_sha256,
        steps=state.step,
        tokens=state.tokens,
        held_out_loss=loss,
        bits_per_byte=None if loss is None else held_out.bits_per_byte(loss),
        perplexity=None if loss is None else perplexity(loss),
        held_out_tokens=held_out.tokens,
        held_out_bytes=held_out.text_bytes,
        held_out_sha256=held_out.sha256,
        start_sha256=state.start_sha256,
        windows_sha256=state.windows_sha256,
        dataset_fingerprint=trainer.dataset.fingerprint,
        seconds=state.seconds,
        process_peak_rss_bytes=max(world.gather(memory_bytes(world.device))),
        environment=environment(world, config.engine),
    )
    world.on_first(lambda: write_json(trainer.out / RESULT, result.model_dump(mode="json")))
    return result


def open_together(config: DataConfig, folder: Path, say: Say, world: World) -> Corpus:
    """`open_dataset` by the first rank, which prepares what must be;
    the others open what it found."""
    corpus = world.own_first(lambda: open_dataset(config, folder, say))
    if corpus is not None:
        return corpus
    return (
        open_prepared(config)
        if config.dataset is not None or config.mixture
        else Dataset(folder / "data")
    )


def train(
    run: RunConfig,
    dataset: Corpus,
    out: Path,
    observer: Observer,
    stop: Stop | None = None,
    world: World | None = None,
    keep_divergence: bool = False,
) -> ResultRecord | None:
    """One run to its end: its result, or None if it was stopped (repeating the call goes on). Where
    there are several ranks, all of them call it.

    keep_divergence: a run whose numbers stop being finite gets a result that is marked `diverged`,
    as a study needs to go on; otherwise it raises `Diverging` and has no result.
    """
    world = world or join(run.engine.device)
    if world.device.type == "cpu":
        keep_freed_memory()
    with ExitStack() as held:
        world.on_first(lambda: _hold(held, out, run))
        kept = world.on_first(lambda: _kept_result(out, run, dataset))
        if kept is not None:
            return kept
        trainer = Trainer(run, dataset, out, observer, stop, world=world)
        with world.together():
            try:
                return finish(trainer) if trainer.run() else None
            except Diverging as error:
                if not keep_divergence:
                    raise
                return write_result(trainer, None, _divergence(trainer, error.step, error.reason))


def _hold(held: ExitStack, out: Path, run: RunConfig) -> None:
    check_folder(out, run)
    held.enter_context(locked_folder(out))
    check_folder(out, run)  # again: another program may have been here before the lock was ours


def _kept_result(out: Path, run: RunConfig, dataset: Corpus) -> ResultRecord | None:
    """The result of a run that has ended, if it is this run's on this dataset; None if there is
    none yet.
    """
    result = read_result(out)
    if result is None:
        return None
    for key, wanted in (
        ("arm", run.arm),
        ("seed", run.seed),
        ("dataset_fingerprint", dataset.fingerprint),
    ):
        value = getattr(result, key)
        if value != wanted:
            raise InputError(
                f"{out}/{RESULT}: its {key} is {value!r}, not {wanted!r}; remove the folder and"
                " train it again"
            )
    return result
