"""One run from the first update to its result: the folder that belongs to it, its training, and what it leaves."""

import math
import platform
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tokencodes import checkpoint
from tokencodes.data.dataset import Corpus
from tokencodes.data.tokenizer import END_OF_TEXT
from tokencodes.errors import InputError
from tokencodes.files import LOCK, only_one, read_json, write_json
from tokencodes.train.config import RunConfig
from tokencodes.train.loop import Stop, Trainer, check_folder
from tokencodes.train.metrics import Observer

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage, in bytes


def finish(trainer: Trainer) -> dict[str, Any]:
    """After the last update: the model as a Hugging Face folder, and result.json, whose presence means "done"."""
    partial, final = trainer.out / ".tmp-model", trainer.out / "model"
    shutil.rmtree(partial, ignore_errors=True)
    trainer.model.save_pretrained(partial)
    tokenizer = trainer.dataset.tokenizer
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer.path), bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    fast.save_pretrained(partial)
    shutil.copyfile(tokenizer.path, partial / "tokenizer.json")  # the very bytes that the model names by hash
    checkpoint.write_replay(partial, trainer.state, trainer.last_ids)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    config, state, held_out = trainer.config, trainer.state, trainer.held_out
    loss = trainer.held_out_loss()
    result = {
        "arm": config.arm,
        "seed": config.seed,
        "interface": trainer.model.config.interface,
        "spec_sha256": trainer.model.config.spec_sha256,
        "codebook_sha256": trainer.model.config.codebook_sha256,
        "updates": state.update,
        "targets": state.targets,
        "held_out_loss": loss,
        "bits_per_byte": held_out.bits_per_byte(loss),
        "perplexity": math.exp(loss),
        "held_out_targets": held_out.targets,
        "held_out_bytes": held_out.target_bytes,
        "held_out_sha256": held_out.sha256,
        "start_sha256": state.start_sha256,
        "windows_sha256": state.windows_sha256,
        "dataset_fingerprint": trainer.dataset.fingerprint,
        "seconds": state.seconds,
        "process_peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT,
        "environment": environment(),
    }
    write_json(trainer.out / "result.json", result)
    return result


def train(run: RunConfig, dataset: Corpus, out: Path, observer: Observer, stop: Stop | None = None) -> dict[str, Any] | None:
    """One run to its end: its result, or None if it was stopped (repeating the call goes on)."""
    check_folder(out, run)
    with only_one(out):
        check_folder(out, run)  # again: another program may have been here before the lock was ours
        if (out / "result.json").is_file():
            return _kept_result(out, run, dataset)
        try:
            trainer = Trainer(run, dataset, out, observer, stop)
        except InputError:
            if [path.name for path in out.iterdir()] == [LOCK]:
                shutil.rmtree(out)  # nothing was begun, so nothing is left
            raise
        return finish(trainer) if trainer.run() else None


def _kept_result(out: Path, run: RunConfig, dataset: Corpus) -> dict[str, Any]:
    """The result of a finished run, if it is this run's on this dataset."""
    result = read_json(out / "result.json")
    expected = {"arm": run.arm, "seed": run.seed, "dataset_fingerprint": dataset.fingerprint}
    for key, wanted in expected.items():
        found = result.get(key) if isinstance(result, dict) else None
        if found != wanted:
            raise InputError(f"{out}/result.json: its {key} is {found!r}, not {wanted!r}; remove the folder and train it again")
    kept: dict[str, Any] = result
    return kept


def environment() -> dict[str, str | int]:
    """What the numbers were computed with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
        "dtype": "float32",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
