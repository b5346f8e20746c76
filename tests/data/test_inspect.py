"""What `inspect` says is what a count of every token, and of many windows, says."""

import numpy as np
import pytest

from tokencodes.data.inspect import EDGES, inspect
from tokencodes.data.mixture import build_sampler
from tokencodes.data.options import PrepareOptions
from tokencodes.data.prepare import prepare

CONTEXT = 128


@pytest.fixture(scope="module")
def inspection(dataset):
    return inspect(dataset, CONTEXT, full=True)


def counted_exposure(dataset, windows: int) -> list[np.ndarray]:
    """How often each token of each training shard was a target, by drawing windows."""
    shards = dataset.shards("train")
    seen = [np.zeros(shard.tokens, dtype=np.int64) for shard in shards]
    drawn = build_sampler(dataset, "paper", CONTEXT, 1, 2, 4).draw(np.arange(windows))
    for shard, document, start in zip(drawn.shard, drawn.document, drawn.start, strict=True):
        first = shards[shard].offsets[document] + start
        seen[shard][first + 1 : first + CONTEXT + 1] += 1
    return seen


def targets(shard) -> np.ndarray:
    """All tokens but the first of each document."""
    mask = np.ones(shard.tokens, dtype=bool)
    mask[shard.offsets[:-1]] = False
    return mask


def test_counts_are_those_of_the_shards(dataset, inspection):
    for side, facts in inspection.sides.items():
        lengths = np.concatenate([shard.lengths for shard in dataset.shards(side)])
        assert (facts.documents, facts.tokens) == (len(lengths), lengths.sum())
        long = lengths[lengths > CONTEXT]
        assert (facts.eligible_documents, facts.eligible_tokens) == (len(long), long.sum())
    assert sum(length_bin.documents for length_bin in inspection.lengths) == sum(
        facts.documents for facts in inspection.sides.values()
    )
    assert sum(length_bin.tokens for length_bin in inspection.lengths) == sum(
        inspection.sources.values()
    )
    assert set(inspection.sources) == {"austen.jsonl", "sotu.jsonl"}


def test_each_length_falls_into_its_bin(dataset, inspection):
    lengths = np.concatenate([shard.lengths for shard in dataset.own_shards])
    for length_bin in inspection.lengths:
        inside = (lengths > length_bin.low) & (lengths <= length_bin.high)
        assert (length_bin.documents, length_bin.tokens) == (inside.sum(), lengths[inside].sum())


def test_exposure_is_what_drawing_windows_gives(dataset, inspection):
    windows = 60_000
    seen = counted_exposure(dataset, windows)
    shards = dataset.shards("train")
    everything = np.concatenate(
        [count[targets(shard)] for count, shard in zip(seen, shards, strict=True)]
    )
    mean = windows * CONTEXT / len(everything)
    never = sum(int((shard.lengths[shard.lengths <= CONTEXT] - 1).sum()) for shard in shards)
    assert inspection.exposure.unseen == pytest.approx(never / len(everything))
    inside, outside = [], []
    for count, shard in zip(seen, shards, strict=True):
        for first, length in zip(shard.offsets[:-1], shard.lengths, strict=True):
            if length > CONTEXT:
                slope = min(CONTEXT, int(length) - CONTEXT) - 1
                document = count[first + 1 : first + length]
                inside.append(document[slope : len(document) - slope])
                outside += [document[:slope], document[len(document) - slope :]]
    assert inspection.exposure.interior == pytest.approx(
        np.concatenate(inside).mean() / mean, rel=0.02
    )
    assert inspection.exposure.edges == pytest.approx(
        np.concatenate(outside).mean() / mean, rel=0.02
    )


def test_the_exposure_histogram_is_exact(dataset, inspection):
    shards = dataset.shards("train")
    alike = CONTEXT / sum(shard.tokens - shard.documents for shard in shards)
    relative = []
    for shard in shards:
        eligible = shard.lengths[shard.lengths > CONTEXT]
        for length in eligible.tolist():
            p, m = np.arange(1, length), length - CONTEXT
            covered = np.minimum.reduce(
                [p, np.full_like(p, CONTEXT), np.full_like(p, m), length - p]
            )
            relative.append(covered / (m * len(eligible) * len(shards) * alike))
    relative = np.concatenate(relative)
    bounds = [0.0, *EDGES, np.inf]
    assert relative.sum() * alike == pytest.approx(CONTEXT)
    for histogram_bin, low, high in zip(
        inspection.exposure.histogram, bounds[:-1], bounds[1:], strict=True
    ):
        inside = (relative > low) & (relative <= high)
        assert histogram_bin.tokens == inside.sum()
        assert histogram_bin.share == pytest.approx(relative[inside].sum() / relative.sum())


def test_a_context_that_no_document_has_is_said(dataset):
    assert inspect(dataset, 10**6, full=False).exposure is None


def test_bytes_that_the_tokenizer_drops_are_counted(real_data, tmp_path):
    lost = "\u0004\u0006"  # two of the 21 bytes that SmolLM2's tokenizer has no token for
    (tmp_path / "a.txt").write_text("some words " + lost + "more <|endoftext|> words " * 20)
    (tmp_path / "b.txt").write_text("plain words " * 20)
    out = prepare(
        [str(tmp_path)],
        real_data / "tokenizer" / "smollm2.json",
        tmp_path / "out",
        PrepareOptions(validation_fraction=0.0),
    )
    inspection = inspect(out, 16, full=True)
    assert (inspection.lost_bytes, inspection.noted) == (2, {"special token in the text": 1})


def test_a_source_column_names_the_sources(texts, tokenizer_path, tmp_path):
    rows = [
        f'{{"text": "some words here and there {i}", "id": "{i}", "meta": {{"site": "s{i % 30}"}}}}'
        for i in range(300)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    from tokencodes.data.text import Columns

    options = PrepareOptions(validation_fraction=0.2, columns=Columns(source="meta.site"))
    inspection = inspect(
        prepare([str(tmp_path / "a.jsonl")], tokenizer_path, tmp_path / "out", options),
        8,
        full=False,
    )
    assert len(inspection.sources) == 21
    assert "(10 others)" in inspection.sources
    assert sum(inspection.sources.values()) == sum(
        facts.tokens for facts in inspection.sides.values()
    )
