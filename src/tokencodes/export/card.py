"""The model card. It shows facts from the records of the model's run, and the programs that really
opened the export.
"""

import shlex
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

import tokencodes
from tokencodes import checkpoint
from tokencodes.checkpoint.origin import Origin
from tokencodes.errors import InputError
from tokencodes.escape import markdown, markdown_code, printable
from tokencodes.export.source import UNFREEZES, Source
from tokencodes.files import CARD, read_toml, write_text
from tokencodes.measured import OVERFLOW
from tokencodes.records import Known, checked, read_record

if TYPE_CHECKING:
    from tokencodes.export.export_model import Export

SAMPLING = {
    "paper": "document, then by place in it",
    "token-uniform": "place, each with equal chance",
    "packed": "place in documents packed one behind the other",
}
NOT_METRICS = ("documents", "lost_bytes", "byte_perplexity", "ties")


class ArmKeys(Known):
    """An arm in study.toml."""

    interface: str


class SeedKeys(Known):
    """[study] of study.toml."""

    seeds: tuple[int, ...]


class StudyKeys(Known):
    """study.toml."""

    arms: dict[str, ArmKeys]
    study: SeedKeys


class IdentityKeys(Known):
    """`identity` of evaluation.json."""

    weights_sha256: str
    documents: int | None
    seed: int | None
    lm_eval_version: str
    context_length: int
    prefix: int | None
    embedded_held_out: bool | None = None


class AuditKeys(Known):
    """A benchmark's counts in evaluation.json."""

    name: str
    documents: int
    requests: int
    truncated: int


class OpinionKeys(Known):
    """`second_opinion` of evaluation.json."""

    checked: int
    largest: float


class EvaluationKeys(Known):
    """evaluation.json. results: values by benchmark and key. Some keys are not metrics."""

    identity: IdentityKeys
    audit: tuple[AuditKeys, ...]
    results: dict[str, dict[str, Any]]
    second_opinion: OpinionKeys
    requests_sha256: str


@dataclass(frozen=True)
class CardFacts:
    """The facts about a model: its name and shape, and its run, study and evaluation if they are
    stored beside it.
    """

    name: str
    shape: str
    run: dict[str, Any] | None = None
    study: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    limits: list[str] = field(default_factory=list)


def read_facts(source: Source) -> CardFacts:
    """Returns the facts from the run of a checkpoint. Raises InputError if the evaluation of
    exactly these weights is damaged.
    """
    config, place = source.model.config, source.place
    trained = sum(parameter.numel() for parameter in source.model.parameters())
    shape = (
        f"{trained:,} trained parameters: {config.num_hidden_layers} blocks of width"
        f" {config.hidden_size:,}, {config.num_attention_heads} heads, feed-forward"
        f" {config.intermediate_size:,}, {config.vocab_size:,} tokens, context"
        f" {config.max_position_embeddings:,}"
    )
    limits = []
    if (
        config.interface != "learned"
        and config.bos_token_id == 0
        and not source.model.input_interface(_zero())[0].any()
    ):
        limits.append(
            "Token 0 begins and ends texts and has the zero code: after it alone every next token"
            " is equally likely, so the first token of a text that begins with it costs ln"
            f" {config.vocab_size:,} nats."
        )
    origin = checkpoint.origin_of(place)
    if origin is None or origin.result is None:
        return CardFacts(source.name, shape, limits=limits)
    result = origin.result
    limits.insert(0, "One run is one draw: another seed, recipe or text may do otherwise.")
    if origin.step != result.steps:
        limits.append(
            f"This is step {origin.step:,} of a run of {result.steps:,} steps; its figures above"
            " are of the run's end."
        )
    if result.divergence is not None:
        limits.append(
            f"The run diverged in step {result.divergence.step}, so it has no score:"
            f" {result.divergence.reason}."
        )
    evaluation = _evaluation_of(source, origin.folder / "evaluation" / "evaluation.json")
    return CardFacts(source.name, shape, _run(origin), _study(origin), evaluation, limits)


def _zero() -> Any:
    import torch

    return torch.zeros(1, 1, dtype=torch.int64)


def _evaluation_of(source: Source, file: Path) -> dict[str, Any] | None:
    """Returns the evaluation beside a run, and None if there is none of exactly these weights."""
    evaluation = (
        read_record(file, EvaluationKeys, "remove it, or evaluate anew") if file.is_file() else None
    )
    if evaluation is None or evaluation.identity.weights_sha256 != checkpoint.weights_sha256(
        source.model
    ):
        return None
    return _evaluation(evaluation)


def _run(origin: Origin) -> dict[str, Any]:
    config, result = origin.config, origin.result
    assert result is not None
    optimizer, batch, data = config.optimizer, config.batch, config.data
    several = data.inputs or tuple(part.dataset for part in data.mixture)
    # only the name: the card is published without the path
    text = ", ".join(Path(path).name for path in ((data.dataset,) if data.dataset else several))
    recipe = (
        f"AdamW ({optimizer.beta1}, {optimizer.beta2}), learning rate {optimizer.peak_lr:g} to"
        f" {optimizer.min_lr:g} over {optimizer.schedule_steps:,} steps, of which"
        f" {optimizer.warmup_steps:,} warm up, weight decay {optimizer.weight_decay:g}, gradients"
        f" clipped at {optimizer.max_grad_norm:g}, {batch.global_batch_size:,} windows of"
        f" {config.model.context_length:,} tokens a step, drawn by {SAMPLING[batch.sampling]},"
        f" {result.environment['dtype']}"
    )
    return {
        "arm": result.arm,
        "seed": result.seed,
        "steps": f"{result.steps:,}",
        "tokens": f"{result.tokens:,}",
        "data": f"{text} (fingerprint {result.dataset_fingerprint[:12]})",
        "recipe": recipe,
        "loss": _score(result.held_out_loss),
        "bits_per_byte": _score(result.bits_per_byte),
        "held_out_tokens": f"{result.held_out_tokens:,}",
    }


def _score(value: float | None) -> str:
    return "no score" if value is None else f"{value:.4f}"


def _study(origin: Origin) -> dict[str, Any] | None:
    """Returns the study of a run, and None if the study.toml two folders above has no such run."""
    file, run = origin.folder.parent.parent / "study.toml", origin.config
    if not file.is_file():
        return None
    try:
        study = checked(read_toml(file), StudyKeys, str(file), "")
    except InputError:  # another kind of file
        return None
    arm = study.arms.get(run.arm)
    ours = arm is not None and arm.interface == run.interface and run.seed in study.study.seeds
    return {"arms": list(study.arms), "seeds": list(study.study.seeds)} if ours else None


def _evaluation(evaluation: EvaluationKeys) -> dict[str, Any]:
    """Returns the results of an evaluation together with its audit."""
    who, audit, rows = evaluation.identity, {entry.name: entry for entry in evaluation.audit}, []
    for name, metrics in evaluation.results.items():
        values = {key: value for key, value in metrics.items() if key not in NOT_METRICS}
        shown = ", ".join(
            f"{key} {OVERFLOW if value is None else f'{value:.4g}'}"
            for key, value in values.items()
        )
        if name in audit:
            rows.append(
                [
                    name,
                    shown,
                    *(
                        f"{getattr(audit[name], key):,}"
                        for key in ("documents", "requests", "truncated")
                    ),
                ]
            )
    drawn = "All documents of each benchmark."
    if who.documents:
        drawn = f"At most {who.documents:,} documents of each benchmark, drawn by seed {who.seed}."
    return {
        "documents": drawn,
        "unsure": "embedded" in evaluation.results and who.embedded_held_out is not True,
        "accuracies": any("acc" in metrics for metrics in evaluation.results.values()),
        "lm_eval_version": who.lm_eval_version,
        "context_length": f"{who.context_length:,}",
        "prefix": who.prefix,
        "checked": evaluation.second_opinion.checked,
        "largest": f"{evaluation.second_opinion.largest:.1e}",
        "requests": evaluation.requests_sha256,
        "rows": rows,
    }


class _Markdown(str):
    """Text that is Markdown already."""


def _literal(value: Any) -> str:
    """Returns what the template prints for a value. All text is escaped except our own Markdown."""
    return value if isinstance(value, _Markdown) else markdown(str(value))


def _word(name: str) -> str:
    """Returns the name of a file as a word of a shell command, in a code block."""
    return shlex.quote(printable(name))


def write_card(facts: CardFacts, made: "Export", folder: Path) -> None:
    """Writes README.md of an export."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_literal
    )
    environment.filters |= {
        "code": lambda text: _Markdown(markdown_code(text)),
        "word": lambda text: _Markdown(_word(text)),
    }
    template = environment.from_string(
        (files("tokencodes.export") / "card.md.j2").read_text(encoding="utf-8")
    )
    fields = {
        key: getattr(facts, key)
        for key in ("name", "shape", "run", "study", "evaluation", "limits")
    }
    runtimes = [runtime.cells() for runtime in made.runtimes]
    file = next((path.name for path in folder.glob("*.gguf")), None)
    text = template.render(
        made=made,
        file=file,
        version=tokencodes.__version__,
        unfreezes=UNFREEZES,
        runtimes=runtimes,
        **fields,
    )
    write_text(folder / CARD, text.rstrip() + "\n")
