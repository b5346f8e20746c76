"""Training on the other samplings and on mixtures: matched, exact, and told apart in the ledger."""

import pytest
import torch

from tests.conftest import tiny_study
from tests.train.test_loop import StopAfter, records, weights
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare
from tokencodes.data.windows import IGNORE
from tokencodes.errors import InputError
from tokencodes.loss import inputs_and_targets
from tokencodes.train.corpus import open_dataset
from tokencodes.train.ledger import read_ledger
from tokencodes.train.loop import Trainer
from tokencodes.train.metrics import Silent
from tokencodes.train.run import train
from tokencodes.train.stop import Stop
from tokencodes.verify.certificate import certify

BATCH = {"global_batch_size": 4, "micro_batch_size": 2, "streams": 2, "windows_per_visit": 4}


def sampled(dataset, sampling: str, **sections):
    return tiny_study(dataset.path, **{"batch": {**BATCH, "sampling": sampling}, **sections}).run(
        "gf2", 1
    )


@pytest.mark.parametrize("sampling", ["token-uniform", "packed"])
def test_every_sampling_resumes_bitwise_and_passes_its_checks(sampling, dataset, tmp_path):
    run, stop = sampled(dataset, sampling), Stop()
    train(run, dataset, tmp_path / "whole", Silent())
    assert train(run, dataset, tmp_path / "stopped", StopAfter(3, stop), stop) is None
    train(run, dataset, tmp_path / "stopped", Silent())
    assert records(tmp_path / "whole") == records(tmp_path / "stopped")
    old, new = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert certify(tmp_path / "stopped").holds


def test_packed_counts_real_tokens_and_its_loss_is_the_mean_over_them(dataset, tmp_path):
    batch = {**BATCH, "sampling": "packed", "global_batch_size": 192, "micro_batch_size": 32}
    trainer = Trainer(
        sampled(dataset, "packed", batch=batch, budget={"tokens": 16}), dataset, tmp_path, Silent()
    )
    ids = torch.from_numpy(trainer.window_ids(0))
    inputs, targets = inputs_and_targets(ids)
    real = targets != IGNORE
    assert 0 < int(real.sum()) < targets.numel()
    logits = trainer.model(inputs).logits
    expected = torch.nn.functional.cross_entropy(logits[real], targets[real])
    trainer.run()
    first = records(tmp_path)[1]
    assert first["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    assert first["tokens"] == int(real.sum())


@pytest.fixture
def halves(texts, tokenizer_path, tmp_path):
    folders = []
    for source in sorted(texts.iterdir()):
        out = tmp_path / "prepared" / source.name.split(".")[0]
        prepare([str(source)], tokenizer_path, out, PrepareOptions(validation_fraction=0.2))
        folders.append(str(out))
    return folders


def test_a_mixture_trains_and_its_ledger_names_document_and_offset(halves, tmp_path):
    parts = [
        {"dataset": folder, "weight": weight}
        for folder, weight in zip(halves, (3.0, 1.0), strict=True)
    ]
    study = tiny_study(
        "unused",
        data={"mixture": parts, "vocab_size": 320},
        heldout={"windows": 8, "interval_steps": 0},
    )
    run = study.run("gf2", 1)
    corpus = open_dataset(run.data, tmp_path / "run", Silent().say)
    train(run, corpus, tmp_path / "run", Silent())
    trainer = Trainer(run, corpus, tmp_path / "other", Silent())
    for step in (1, 5, 8, 1000):
        entries = read_ledger(tmp_path / "run", step)
        ids = trainer.window_ids(step - 1)
        assert [entry.window for entry in entries] == list(range((step - 1) * 4, step * 4))
        for entry, row in zip(entries, ids, strict=True):
            shard = next(
                s for s in corpus.shards("train") if str(s.path) == f"{entry.dataset}/{entry.shard}"
            )
            assert shard.names()["id"][entry.document].as_py() == entry.id
            assert row.tolist() == shard.span(entry.document, entry.start, entry.tokens).tolist()
            assert entry.source.split(".")[0] in entry.dataset


def test_the_ledger_finds_text_that_was_prepared_beside_a_run_and_refuses_other_text(
    texts, tmp_path, dataset
):
    data = {"inputs": [str(texts)], "vocab_size": 320, "validation_fraction": 0.2}
    run = tiny_study("unused", data=data).run("gf2", 1)
    corpus = open_dataset(run.data, tmp_path / "study", Silent().say)
    train(run, corpus, tmp_path / "study" / "gf2" / "seed-1", Silent())
    entries = read_ledger(tmp_path / "study" / "gf2" / "seed-1", 2)
    assert len({entry.id for entry in entries}) > 1
    with pytest.raises(InputError, match="steps count from 1"):
        read_ledger(tmp_path / "study" / "gf2" / "seed-1", 0)
    with pytest.raises(InputError, match="no such file"):
        read_ledger(tmp_path / "study", 1)
    (tmp_path / "study" / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="its prepared text is not beside it"):
        read_ledger(tmp_path / "study" / "gf2" / "seed-1", 1)
    prepare(
        [str(texts)],
        dataset.tokenizer.path,
        tmp_path / "study" / "data",
        PrepareOptions(validation_fraction=0.3),
    )
    with pytest.raises(InputError, match="not the text of"):
        read_ledger(tmp_path / "study" / "gf2" / "seed-1", 1)
    result = tmp_path / "study" / "gf2" / "seed-1" / "result.json"
    for text in ("{}", "[]", "null", '{"dataset_fingerprint": 7}', "not JSON"):
        result.write_text(text)
        with pytest.raises(InputError, match=r"result\.json: damaged"):
            read_ledger(tmp_path / "study" / "gf2" / "seed-1", 1)


def test_a_dataset_and_a_mixture_together_are_refused(dataset, tmp_path):
    both = {
        "dataset": str(dataset.path),
        "mixture": [{"dataset": str(dataset.path), "weight": 1}],
        "vocab_size": 320,
    }
    with pytest.raises(InputError, match="both a dataset and a mixture"):
        open_dataset(tiny_study("unused", data=both).data, tmp_path, Silent().say)


def test_a_recipe_that_is_bound_to_a_tokenizer_takes_no_other(dataset, texts, tmp_path):
    data = {
        "dataset": str(dataset.path),
        "vocab_size": 320,
        "tokenizer_sha256": dataset.tokenizer_sha256,
    }
    assert (
        open_dataset(tiny_study("unused", data=data).data, tmp_path, Silent().say).fingerprint
        == dataset.fingerprint
    )
    with pytest.raises(InputError, match="made with another tokenizer"):
        open_dataset(
            tiny_study("unused", data={**data, "tokenizer_sha256": "0" * 64}).data,
            tmp_path,
            Silent().say,
        )
    unnamed = {"inputs": [str(texts)], "vocab_size": 320, "tokenizer_sha256": "0" * 64}
    with pytest.raises(InputError, match="bound to the tokenizer with SHA-256 000000000000"):
        open_dataset(tiny_study("unused", data=unnamed).data, tmp_path, Silent().say)
