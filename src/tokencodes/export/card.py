"""The model card: what is known of a model from its run's own records, and which programs were really tried."""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

import tokencodes
from tokencodes import checkpoint
from tokencodes.export.source import UNFREEZES, Source
from tokencodes.files import CARD, read_json, read_toml, write_text
from tokencodes.measured import OVERFLOW
from tokencodes.result import ResultRecord, read_result

if TYPE_CHECKING:
    from tokencodes.export.exporting import Export

SAMPLING = {
    "paper": "document, then by place in it",
    "token-uniform": "place, each with equal chance",
    "packed": "place in documents packed one behind the other",
}
NOT_METRICS = ("documents", "lost_bytes", "byte_perplexity")


@dataclass(frozen=True)
class Record:
    """What is known of a model: its name and shape; its run, study and evaluation where they lie beside it."""

    name: str
    shape: str
    run: dict[str, Any] | None = None
    study: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    limits: list[str] = field(default_factory=list)


def read_record(source: Source) -> Record:
    """Reads what the run of a checkpoint has left."""
    config, place = source.model.config, source.place
    trained = sum(one.numel() for one in source.model.parameters())
    shape = (
        f"{trained:,} trained parameters: {config.num_hidden_layers} blocks of width {config.hidden_size:,}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size:,}, {config.vocab_size:,} tokens, "
        f"context {config.max_position_embeddings:,}"
    )
    limits = []
    if config.interface != "learned" and config.bos_token_id == 0 and not source.model.input_interface(_zero())[0].any():
        limits.append(
            "Token 0 begins and ends texts and has the zero code: after it alone every next token is equally likely, so the "
            f"first token of a text that begins with it costs ln {config.vocab_size:,} nats."
        )
    folder = place.parent.parent if place.parent.name == "checkpoints" else place.parent if place.name == "model" else None
    result = None if folder is None else read_result(folder)
    if folder is None or result is None:
        return Record(source.name, shape, limits=limits)
    limits.insert(0, "One run is one draw: another seed, recipe or text may do otherwise.")
    if place.name not in ("model", f"update-{result.updates:08d}"):
        limits.append(f"This is {place.name} of a run of {result.updates:,} updates; its figures above are of the run's end.")
    if result.divergence is not None:
        limits.append(f"The run diverged in update {result.divergence.update}, so it has no score: {result.divergence.reason}.")
    told = _run(result, read_toml(folder / "config.toml"))
    return Record(
        source.name,
        shape,
        told,
        _study(folder.parent.parent / "study.toml"),
        _evaluation_of(source, folder / "evaluation" / "evaluation.json"),
        limits,
    )


def _zero() -> Any:
    import torch

    return torch.zeros(1, 1, dtype=torch.int64)


def _evaluation_of(source: Source, file: Path) -> dict[str, Any] | None:
    """What an evaluation beside a run says; None where there is none of these very weights."""
    told = read_json(file) if file.is_file() else None
    if told is None or told["identity"]["weights_sha256"] != checkpoint.weights_sha256(source.model):
        return None
    return _evaluation(told)


def _run(result: ResultRecord, config: dict[str, Any]) -> dict[str, Any]:
    optimizer, batch, data = config["optimizer"], config["batch"], config["data"]
    several = data.get("inputs") or [one["dataset"] for one in data.get("mixture", ())]
    text = ", ".join(Path(one).name for one in ([data["dataset"]] if data.get("dataset") else several))  # no path: it travels
    windows = batch["windows_per_update"]
    recipe = (
        f"AdamW ({optimizer['beta1']}, {optimizer['beta2']}), learning rate {optimizer['peak_lr']:g} to "
        f"{optimizer['min_lr']:g} over {optimizer['schedule_updates']:,} updates, of which "
        f"{optimizer['warmup_updates']:,} warm up, weight decay {optimizer['weight_decay']:g}, gradients clipped at "
        f"{optimizer['clip']:g}, {windows:,} windows of {config['model']['context']:,} targets an update, drawn by "
        f"{SAMPLING[batch['sampling']]}, {result.environment['dtype']}"
    )
    return {
        "arm": result.arm,
        "seed": result.seed,
        "updates": f"{result.updates:,}",
        "targets": f"{result.targets:,}",
        "data": f"{text} (fingerprint {result.dataset_fingerprint[:12]})",
        "recipe": recipe,
        "loss": _score(result.held_out_loss),
        "bits_per_byte": _score(result.bits_per_byte),
        "held_out_targets": f"{result.held_out_targets:,}",
    }


def _score(value: float | None) -> str:
    return "no score" if value is None else f"{value:.4f}"


def _study(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    told = read_toml(file)
    return {"arms": list(told["arms"]), "seeds": told["study"]["seeds"]}


def _evaluation(told: dict[str, Any]) -> dict[str, Any]:
    """Its results beside its audit."""
    who, audit, rows = told["identity"], {one["name"]: one for one in told["audit"]}, []
    for name, metrics in told["results"].items():
        values = {key: value for key, value in metrics.items() if key not in NOT_METRICS}
        shown = ", ".join(f"{key} {OVERFLOW if value is None else f'{value:.4g}'}" for key, value in values.items())
        counts = (f"{audit[name][key]:,}" for key in ("documents", "requests", "truncated"))
        rows.append([name, shown, *counts])
    drawn = "All documents of each benchmark."
    if who["documents"]:
        drawn = f"At most {who['documents']:,} documents of each benchmark, drawn by seed {who['seed']}."
    return {
        "documents": drawn,
        "unsure": "embedded" in told["results"] and who.get("embedded_held_out") is not True,
        "accuracies": any("acc" in metrics for metrics in told["results"].values()),
        "harness": who["harness"],
        "context": f"{who['context']:,}",
        "prefix": who["prefix"],
        "checked": told["second_opinion"]["checked"],
        "largest": f"{told['second_opinion']['largest']:.1e}",
        "requests": told["requests_sha256"],
        "rows": rows,
    }


def write_card(record: Record, made: "Export", folder: Path) -> None:
    """README.md of an export."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("tokencodes.export") / "card.md.j2").read_text(encoding="utf-8"))
    told = {key: getattr(record, key) for key in ("name", "shape", "run", "study", "evaluation", "limits")}
    runtimes = [one.cells() for one in made.runtimes]
    file = next((path.name for path in folder.glob("*.gguf")), None)
    text = template.render(made=made, file=file, version=tokencodes.__version__, unfreezes=UNFREEZES, runtimes=runtimes, **told)
    write_text(folder / CARD, text.rstrip() + "\n")
