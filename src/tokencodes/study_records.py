"""Records of the files in a study's folder, as the report and the model card read them.

Training writes these files, and the report reads them. Neither imports the other, so the records
are here. Fields that the report does not show are ignored.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from tokencodes.errors import InputError
from tokencodes.files import read_json_lines, read_toml
from tokencodes.records import Known, checked, checked_lines, read_record

# in a study's folder
STUDY, FACTS, NGRAM_BASELINES = "study.toml", "dataset_facts.json", "ngram_baselines.json"
METRICS, SAMPLE = "metrics.jsonl", "sample.json"  # in a run's folder
NEW_COPY = "take a new copy of it"
COMPARE_AGAIN = (
    "repeat the `tokencodes compare` command that made the folder: it writes this file anew"
)
REMOVE_FIRST = (
    "remove it, and repeat the `tokencodes compare` command that made the folder: it writes the"
    " file anew"
)
TRAIN_AGAIN = "take a new copy, or remove the run's folder and train it again"
ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]  # it names a folder
Size = Annotated[int, Field(gt=0, lt=1 << 40)]


class Shown(Known):
    """A record of which the report shows some fields. A number is not accepted as text."""

    model_config = ConfigDict(strict=True)


class Body(Shown):
    """The model of a study. `context_length` is T."""

    num_hidden_layers: Size
    hidden_size: Size
    num_attention_heads: Size
    intermediate_size: Size
    context_length: Size
    init_std: float


class Batch(Shown):
    """The number of windows in a step, and their sampling."""

    global_batch_size: Size
    sampling: Literal["paper", "token-uniform", "packed"]


class Optimizer(Shown):
    """AdamW and its schedule. Lengths are in steps."""

    peak_lr: float
    min_lr: float
    warmup_steps: NonNegativeInt
    schedule_steps: Size
    weight_decay: float
    max_grad_norm: float


class Arm(Shown):
    """One interface, and its changes to the recipe."""

    interface: str
    overrides: dict[str, float | int] = Field(default_factory=dict)


class Runs(Shown):
    """Seeds of the runs, the baseline arm, and further pairs of arms to compare."""

    seeds: Annotated[list[NonNegativeInt], Field(min_length=1)]
    baseline: str
    contrasts: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list
    )


class Study(Shown):
    """study.toml."""

    model: Body
    batch: Batch
    optimizer: Optimizer
    study: Runs
    arms: Annotated[dict[ArmName, Arm], Field(min_length=1)]


class ArmFacts(Shown):
    """Costs of an arm: entries, bytes, FLOPs per token. None: the value changes in training."""

    input_parameters: NonNegativeInt
    body_parameters: NonNegativeInt
    head_parameters: NonNegativeInt
    total_parameters: NonNegativeInt
    buffer_entries: NonNegativeInt
    buffer_bytes: NonNegativeInt
    optimizer_bytes: NonNegativeInt
    flops_per_token: NonNegativeInt
    rank: NonNegativeInt | None
    squared_norm_mean: float | None


class Side(Shown):
    """One side of the split of a dataset."""

    documents: NonNegativeInt
    tokens: PositiveInt


class TrainSide(Side):
    """The training side. eligible: number of documents that are long enough for a window."""

    eligible: NonNegativeInt


class DatasetFacts(Shown):
    """The dataset of a study."""

    fingerprint: str
    tokenizer_sha256: str
    vocab_size: Annotated[int, Field(gt=0, lt=1 << 24)]
    inputs: list[str]
    least_tokens: PositiveInt  # of a document that is seen
    shares: list[str]  # of the parts of a mixture
    train: TrainSide
    validation: Side


class Facts(Shown):
    """dataset_facts.json: the facts that the report needs besides results."""

    costs: dict[str, ArmFacts]
    dataset: DatasetFacts


class NgramBaselines(Shown):
    """ngram_baselines.json: losses of n-gram models (nats per token), and hashes of the text and
    the dataset that they were computed on.
    """

    unigram: float
    bigram: float
    held_out_sha256: str
    dataset_fingerprint: str


class Sample(Shown):
    """sample.json: text that a model generated after a prompt."""

    prompt: str
    continuation: str
    temperature: float
    top_k: PositiveInt
    seed: NonNegativeInt


class MetricsLine(Shown):
    """A line of metrics.jsonl. A held-out line has tokens and a loss, in nats per token."""

    kind: Literal["start", "step", "heldout", "scales"]
    step: NonNegativeInt
    tokens: NonNegativeInt = 0
    loss: float | None = None

    @model_validator(mode="after")
    def _held_out(self) -> Self:
        if self.kind == "heldout" and (self.loss is None or "tokens" not in self.model_fields_set):
            raise ValueError("a line of kind 'heldout' needs tokens and loss")
        return self


class HeldOut(Shown):
    """A held-out loss (nats per token) and the number of tokens before it."""

    tokens: NonNegativeInt
    loss: float


def read_facts(path: Path, arms: Iterable[str]) -> Facts:
    """Returns dataset_facts.json. Raises InputError, which names the file and its first wrong
    field, or an arm that it does not have.
    """
    facts = read_record(path, Facts, COMPARE_AGAIN)
    for arm in arms:
        if arm not in facts.costs:
            raise InputError(f"{path}: costs.{arm}: is missing; {COMPARE_AGAIN}")
    return facts


def read_study(path: Path) -> Study:
    """Returns study.toml. Raises InputError, which names the file and its first wrong field."""
    return checked(read_toml(path), Study, str(path), NEW_COPY)


def read_held_out(path: Path) -> list[HeldOut]:
    """Returns the held-out losses in metrics.jsonl. Raises InputError, which names the line that is
    not a valid record.
    """
    losses = []
    for line in checked_lines(read_json_lines(path), MetricsLine, path, TRAIN_AGAIN):
        if line.loss is not None and line.kind == "heldout":
            losses.append(HeldOut(tokens=line.tokens, loss=line.loss))
    return losses
