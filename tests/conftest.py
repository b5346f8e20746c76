"""A tiny but real study that the tests share: embedded text, byte-level BPE of 320, two blocks of
width 36.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from tokencodes.data.dataset import Dataset
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.text import read_documents
from tokencodes.data.tokenizer import train_tokenizer
from tokencodes.files import LOCK
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.train.build import build_model
from tokencodes.train.config import RunConfig, StudyConfig
from tokencodes.train.corpus import resolve_inputs
from tokencodes.train.interface import resolve
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train

VOCAB = 320  # 9 bits, 192 codes unused
TINY_MODEL = {
    "hidden_size": 36,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "context_length": 16,
}


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> None:
    """Bitwise claims hold within one thread count."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    """Two files of real documents, cut to 1,500 characters."""
    folder = tmp_path_factory.mktemp("texts")
    for path in resolve_inputs(("embedded:austen", "embedded:sotu")):
        documents = list(read_documents(Path(path)))[:40]
        name = Path(path).name.removesuffix(".gz")
        lines = (
            json.dumps({"id": document.id, "text": document.text[:1500]}) for document in documents
        )
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tokenizer_path(texts, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(
        (d.text for file in sorted(texts.iterdir()) for d in read_documents(file)), VOCAB, out
    )
    return out


@pytest.fixture(scope="session")
def dataset(texts, tokenizer_path, tmp_path_factory) -> Dataset:
    return prepare(
        [str(texts)],
        tokenizer_path,
        tmp_path_factory.mktemp("dataset") / "data",
        PrepareOptions(validation_fraction=0.2),
    )


def tiny_study(dataset_path: Path | str, **sections) -> StudyConfig:
    """Four arms, two seeds, eight steps of four windows; `sections` replace or add tables."""
    values = {
        "data": {"dataset": str(dataset_path), "vocab_size": VOCAB},
        "model": TINY_MODEL,
        "optimizer": {"peak_lr": 3e-3, "min_lr": 3e-4, "warmup_steps": 2, "schedule_steps": 8},
        "batch": {
            "global_batch_size": 4,
            "micro_batch_size": 2,
            "streams": 2,
            "windows_per_visit": 4,
        },
        "budget": {"tokens": 8 * 4 * 16},
        "heldout": {"windows": 8, "interval_steps": 4},
        "checkpoint": {"interval_steps": 2, "keep_latest": 2},
        "study": {"seeds": [1, 2], "baseline": "learned", "contrasts": [["permuted", "binary"]]},
        "arms": {
            "learned": {"interface": "learned"},
            "binary": {"interface": "binary"},
            "gf2": {"interface": "gf2"},
            "permuted": {"interface": "binary:ids=permuted"},
        },
    }
    if "arms" in sections:
        values["study"] = {"seeds": [1, 2], "baseline": "learned"}
    return StudyConfig.model_validate({**values, **sections})


def fresh_model(run: RunConfig) -> TokenCodeForCausalLM:
    """The model of a run whose interface needs no dataset."""
    return build_model(run, *resolve(run.interface, None))


@pytest.fixture(scope="session")
def study(dataset) -> StudyConfig:
    return tiny_study(dataset.path)


@pytest.fixture(scope="session")
def run_folder(study, dataset, tmp_path_factory) -> Path:
    """A finished run, to be read or copied and never changed."""
    folder = tmp_path_factory.mktemp("run") / "gf2"
    train(study.run("gf2", 1), dataset, folder, Silent())
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real tokenizer, texts and benchmark rows, which are too large or not ours to embed."""
    folder = os.environ.get("TOKENCODES_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "needs real data: set TOKENCODES_DATA to a folder with tokenizer/smollm2.json and"
            " corpora/*.jsonl.gz"
        )
    return Path(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a dataset but the locks."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != LOCK)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture
def small_disk(tmp_path):
    """A function that gives a folder, a file system of its own, this many bytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")

    def sized(size: int) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
        return disk

    yield sized
    # a dataset may still be mapped from it
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
