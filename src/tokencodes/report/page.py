"""report.html: one self-contained file that opens without a network."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.errors import InputError
from tokencodes.files import write_json, write_text
from tokencodes.measured import significant
from tokencodes.report import figures
from tokencodes.report.benchmarks import benchmarks_of
from tokencodes.report.pages import rendered
from tokencodes.report.results import StudyResult, read_study_folder
from tokencodes.study_records import STUDY, Sample


def write_report(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Reads a study's folder, writes its report.html and summary.json; returns the page's path and
    the summary.
    """
    study = read_study_folder(folder)
    page = folder / "report.html"
    write_text(page, rendered("page.html.j2", **_context(study)))
    numbers = summary(study)
    write_json(folder / "summary.json", numbers)
    return page, numbers


def summary(study: StudyResult) -> dict[str, Any]:
    """The report's numbers for a program."""
    return {
        "finished": study.finished,
        "planned": study.planned,
        "matched": study.matched(),
        "ngram_baselines": {
            "unigram": study.ngram_baselines.unigram,
            "bigram": study.ngram_baselines.bigram,
        },
        "arms": {
            arm: {
                "interface": study.config.arms[arm].interface,
                "seeds": list(study.scores(arm)),
                "held_out_loss": study.values(arm, "held_out_loss").tolist(),
                "mean_held_out_loss": float(study.values(arm, "held_out_loss").mean()),
                "mean_bits_per_byte": float(study.values(arm, "bits_per_byte").mean()),
            }
            for arm in study.scored
        },
        "diverged": [
            {"arm": run.arm, "seed": run.seed, **run.divergence.model_dump()}
            for run in study.diverged
            if run.divergence
        ],
        "pairs": [{**asdict(pair), "sentence": study.sentence_of(pair)} for pair in study.pairs()],
        "not_compared": study.without_pair(),
    }


def drawable(spec: InterfaceSpec) -> bool:
    """Whether a spec alone gives its codebook: fixed, and nothing of it read off text or from a
    file.
    """
    return spec.fixed and not spec.given


def _context(study: StudyResult) -> dict[str, Any]:
    pairs = study.pairs()
    ended = [run for seeds in study.runs.values() for run in seeds.values()]
    # a run that diverged did fewer steps
    example = next((run for run in ended if not run.result.diverged), ended[0])
    specs = {arm: _spec(study, arm) for arm in study.arms}
    model, vocab_size = study.config.model, study.facts.dataset.vocab_size
    return {
        "study": study,
        "config": study.config,
        "facts": study.facts,
        "environment": example.result.environment,
        "result": example.result,
        "rows": [_row(study, arm) for arm in study.arms],
        "pairs": pairs,
        "matched": study.matched(),
        "sentences": [*(study.sentence_of(pair) for pair in pairs), *study.without_pair()],
        "untrained": next((run.held_out[0].loss for run in ended if run.held_out), None),
        "curves": figures.loss_curves(study),
        "final": figures.final_losses(study),
        "differences": figures.differences(study, pairs) if pairs else None,
        "codebooks": {
            arm: figures.draw_codebook(build_codebook(spec, vocab_size), model.hidden_size, arm)
            for arm, spec in specs.items()
            if drawable(spec)
        },
        "not_drawn": [arm for arm, spec in specs.items() if spec.fixed and not drawable(spec)],
        "first": {arm: next(iter(study.runs[arm].values())).result for arm in study.arms},
        "samples": {arm: _first_sample(study, arm) for arm in study.arms},
        "benchmarks": benchmarks_of(study),
        "beaten": [
            arm
            for arm in study.scored
            if study.values(arm, "held_out_loss").mean() < study.ngram_baselines.bigram
        ],
    }


def _spec(study: StudyResult, arm: str) -> InterfaceSpec:
    try:
        return InterfaceSpec.parse(study.config.arms[arm].interface)
    except InputError as error:
        raise InputError(f"{study.folder / STUDY}: arms.{arm}.interface: {error}") from None


def _row(study: StudyResult, arm: str) -> list[str]:
    """The cells of an arm: means of the runs that have a score, and the loss of each seed or that
    it diverged.
    """
    seeds = (run.result for run in study.runs[arm].values())
    each = ", ".join(
        "diverged" if result.diverged else f"{result.held_out_loss:.3f}" for result in seeds
    )
    if arm not in study.scored:
        return [arm, "-", each, "-", "-", "-"]
    loss, bits, mean_perplexity = (
        float(study.values(arm, key).mean())
        for key in ("held_out_loss", "bits_per_byte", "perplexity")
    )
    below = study.ngram_baselines.unigram - loss
    return [
        arm,
        f"{loss:.3f}",
        each,
        f"{bits:.3f}",
        significant(mean_perplexity, 4),
        f"{below:.3f}",
    ]


def _first_sample(study: StudyResult, arm: str) -> Sample | None:
    return next((run.sample for run in study.runs[arm].values() if run.sample), None)
