"""What a study and a run are: frozen, typed, written as one TOML.

A study is arms × seeds; a run is one arm and one seed with every number resolved. Only the
interface, the seed and an arm's declared optimizer overrides may differ between the runs of a
study: that is what makes the arms matched.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.spec import VOCABULARY_BOUND, WIDTH_BOUND
from tokencodes.data.mixture import Sampling
from tokencodes.errors import InputError
from tokencodes.records import first_complaint

# The bounds are far beyond every use, and they keep every count, counter and size inside 64 bits.
MOST = 1 << 40
MOST_ENTRIES = 1 << 42  # of one activation of a micro_batch: 17 TB
Positive = Annotated[int, Field(gt=0, le=MOST)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
Tokens = Annotated[int, Field(gt=0, le=1 << 60)]
Vocabulary = Annotated[int, Field(gt=0, le=VOCABULARY_BOUND)]
Width = Annotated[int, Field(gt=0, le=WIDTH_BOUND)]
Depth = Annotated[int, Field(gt=0, le=4096)]
Length = Annotated[int, Field(gt=0, le=1 << 24)]
Windows = Annotated[int, Field(gt=0, le=1 << 20)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=1e12)]
Seconds = Annotated[float, Field(gt=0, le=1e7)]
Share = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


class Section(BaseModel):
    """A frozen group of values; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, use_attribute_docstrings=True
    )


class MixturePart(Section):
    """A prepared folder, and its weight among the others."""

    dataset: str
    """Folder of a prepared dataset."""
    weight: Weight
    """Weight of this dataset. Its share is its weight over the sum of all weights."""


class DataConfig(Section):
    """Either prepared text (`dataset`, or several with weights as `mixture`), or `inputs`, which
    are prepared first.
    """

    dataset: str | None = None
    """Folder of a prepared dataset. Give this, or `mixture`, or `inputs`."""
    mixture: tuple[MixturePart, ...] = ()
    """Several prepared datasets, each with a weight."""
    inputs: tuple[str, ...] = ()
    """Files, folders, globs or `hf:OWNER/NAME/FOLDER` to prepare first; `embedded:NAME` is a text
    in the package."""
    tokenizer: str = "train"
    """Path of a tokenizer.json. "train" trains a byte-level BPE on the training documents."""
    tokenizer_sha256: str | None = None
    """SHA-256 that the tokenizer must have. Without it, any tokenizer is accepted."""
    vocab_size: Vocabulary
    """V, the number of token ids."""
    validation_fraction: Share = 0.001
    """Expected fraction of documents that are held out."""
    split_seed: Seed = 0
    """Seed of the hash that decides which documents are held out."""
    text_column: str = "text"
    """Name of the column or key that holds the text."""
    id_column: str = "id"
    """Name of the column or key that holds the document id."""
    source_column: str | None = None
    """Name of the column or key that holds the source. Without it, the source is the file."""
    end_of_text: Literal["append", "none"] = "append"
    """"append" adds the end-of-text token to each document; "none" adds nothing."""
    min_document_tokens: NotNegative = 0
    """Shorter documents are dropped and counted."""
    on_error: Literal["stop", "skip"] = "stop"
    """What happens to a row that cannot be a document: "stop" ends the work, "skip" drops and
    counts it."""
    shard_tokens: Positive = 100_000_000
    """Largest number of tokens in one shard of an input file."""


class ModelConfig(Section):
    """The body. Names are transformers' Llama's; `context_length` is T."""

    hidden_size: Width
    """d, the width of the model."""
    intermediate_size: Annotated[int, Field(gt=0, le=8 * WIDTH_BOUND)]
    """Width inside the MLP of each block."""
    num_hidden_layers: Depth
    """Number of blocks."""
    num_attention_heads: Width
    """Number of attention heads of a block."""
    context_length: Length
    """T, the number of tokens of a window."""
    rope_theta: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    """Base of the rotary positions."""
    rms_norm_eps: PositiveFloat = 1e-5
    """Epsilon of RMSNorm."""
    init_std: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of the initial matrices of body and head; 0.02 is the paper's, at width
    2048."""
    tie_word_embeddings: bool = False
    """Must be false: a head tied to the input would make the input trainable."""

    @model_validator(mode="after")
    def _shapes(self) -> Self:
        if self.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings = true would make the input trainable; set it to false"
            )
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} over {self.num_attention_heads} heads: rotary"
                " positions need heads of an even whole width"
            )
        return self


class OptimizerConfig(Section):
    """AdamW, linear warm-up, cosine over a configured length, then the minimum. Defaults are the
    paper's.
    """

    peak_lr: PositiveFloat = 1.5e-4
    """Learning rate at the end of the warm-up."""
    min_lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    """Learning rate at the end of the cosine, and after it."""
    warmup_steps: NotNegative = 2_000
    """Steps of the linear warm-up."""
    schedule_steps: Positive = 382_500
    """Steps of warm-up and cosine together. It does not end the run; `budget.tokens` does."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment of AdamW."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the second moment of AdamW."""
    eps: PositiveFloat = 1e-8
    """Epsilon of AdamW."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Decoupled weight decay of matrices. Vectors have none."""
    max_grad_norm: PositiveFloat = 1.0
    """The gradient is scaled down to this norm where it is longer."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.min_lr > self.peak_lr:
            raise ValueError(f"min_lr {self.min_lr:g} is above peak_lr {self.peak_lr:g}")
        if self.warmup_steps >= self.schedule_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps} must be below schedule_steps"
                f" {self.schedule_steps}"
            )
        return self


class BatchConfig(Section):
    """One step sees `global_batch_size` windows, cut into micro batches; streams and visits are the
    sampler's.
    """

    global_batch_size: Windows = 128
    """Windows of one step over all ranks; the paper: 2 GPUs x 8 windows x 8 accumulations."""
    micro_batch_size: Windows = 8
    """Windows that one rank computes at once."""
    sampling: Sampling = "paper"
    """How windows are drawn: "paper", "token-uniform" or "packed"."""
    streams: Positive = 2
    """Number of streams of windows; the paper has one for each of its two ranks."""
    windows_per_visit: Positive = 8_192
    """Windows that a stream draws from one shard before it moves on; the paper: 1,024 micro
    batches of 8."""


class BudgetConfig(Section):
    """Training ends at the first step boundary at which the counter has reached `tokens`; repeats
    count.
    """

    tokens: Tokens
    """Training ends at the first step at which this many tokens were predicted. Repeated tokens
    count."""


class HeldOutConfig(Section):
    """Held-out loss on one frozen set of windows: every `interval_steps` steps (0: only at the
    end), and at the end.
    """

    windows: Positive = 256
    """Number of held-out windows. They are the same at each measurement."""
    interval_steps: NotNegative = 0
    """Steps between two measurements; 0 measures only at the end."""


class CheckpointConfig(Section):
    """A checkpoint every `interval_steps` steps (0: only at the end) and at the end. The newest
    `keep_latest` stay, and for later studies those at multiples of `keep_interval_steps` and, with
    `log_spaced`, at steps 1, 2, 3, 4, 6, 8, 12, ... (which are saved too).
    """

    interval_steps: NotNegative = 0
    """Steps between two checkpoints; 0 saves only at the end."""
    keep_latest: Positive = 2
    """Number of newest checkpoints that are kept."""
    keep_interval_steps: NotNegative = 0
    """Checkpoints at multiples of this are kept for good; 0: none."""
    log_spaced: bool = False
    """Also save and keep the steps 1, 2, 3, 4, 6, 8, 12, ..."""
    export_hf: bool = False
    """Write a Hugging Face folder, models/step-N, beside each checkpoint that is kept for good."""
    async_save: Literal["auto", "yes", "no"] = "auto"
    """Write checkpoints while training continues, from a copy in host memory; "auto": on a GPU
    only."""

    @model_validator(mode="after")
    def _multiples(self) -> Self:
        if self.keep_interval_steps and (
            not self.interval_steps or self.keep_interval_steps % self.interval_steps
        ):
            raise ValueError(
                f"keep_interval_steps {self.keep_interval_steps} is no multiple of interval_steps"
                f" {self.interval_steps}, so nothing is saved there"
            )
        return self

    def due(self, step: int) -> bool:
        """Whether a checkpoint is written after this step."""
        return bool(self.interval_steps and step % self.interval_steps == 0) or (
            self.log_spaced and log_spaced(step)
        )

    def aside(self, on_gpu: bool) -> bool:
        """Whether it is written while training goes on."""
        return self.async_save == "yes" or (self.async_save == "auto" and on_gpu)

    def stays(self, step: int) -> bool:
        """Whether that checkpoint is kept for good."""
        return bool(self.keep_interval_steps and step % self.keep_interval_steps == 0) or (
            self.log_spaced and log_spaced(step)
        )


class EngineConfig(Section):
    """How a run is computed. All but `precision` changes results by rounding only, and may change
    when a run goes on.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """"auto" takes a GPU if there is one."""
    precision: Literal["float32", "bf16-autocast", "bf16-parameters"] = "float32"
    """"float32"; "bf16-autocast" (matrix products in BF16, as in the paper); "bf16-parameters"
    (FSDP2 mixed precision)."""
    sharding: Literal["full", "hybrid", "replicate"] = "full"
    """Parameters are cut over all ranks ("full"), over those of a node ("hybrid"), or copied
    ("replicate")."""
    activation_checkpoint_every: NotNegative = 0
    """Every n-th block is computed again in the backward pass and not kept in memory; 0: none."""
    compile: bool = False
    """Compile each block with torch.compile."""
    loss_kernel: Literal["auto", "chunked", "torch", "liger", "cce"] = "auto"
    """Implementation of head and cross entropy."""
    timeout_seconds: Seconds = 60.0
    """After the first step, a rank that is silent for so long ends the others."""


# What may differ when a run goes on: where and how, not what.
FREE = frozenset(f"engine.{name}" for name in EngineConfig.model_fields if name != "precision")


def log_spaced(step: int) -> bool:
    """Steps 1, 2, 3, 4, 6, 8, 12, 16, ...: two an octave."""
    return any(
        step == odd * 2 ** max(0, (step // odd).bit_length() - 1) for odd in (1, 3) if step >= odd
    )


class Recipe(Section):
    """All that the arms of a study share."""

    data: DataConfig
    model: ModelConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    budget: BudgetConfig
    heldout: HeldOutConfig = HeldOutConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _micro_batch(self) -> Self:
        """One activation of a micro batch must be a size that can be counted."""
        model, windows = self.model, self.micro_batch
        entries = windows * model.context_length * max(model.hidden_size, model.intermediate_size)
        if entries > MOST_ENTRIES:
            raise ValueError(
                f"a micro batch of {windows:,} windows of {model.context_length:,} tokens: one"
                f" activation of it alone takes {4 * entries / 1e12:,.1f} TB; lower"
                " batch.micro_batch_size or model.context_length"
            )
        return self

    @property
    def micro_batch(self) -> int:
        """Windows of a micro batch on one rank."""
        return min(self.batch.micro_batch_size, self.batch.global_batch_size)

    @property
    def tokens_per_step(self) -> int:
        """G × T."""
        return self.batch.global_batch_size * self.model.context_length

    @property
    def steps(self) -> int:
        """Step boundaries until the budget is reached."""
        return -(-self.budget.tokens // self.tokens_per_step)


class RunConfig(Recipe):
    """One run."""

    arm: str
    """Name of the arm."""
    interface: str
    """Spec of the input interface, such as "gf2" or "binary:values=pm1"."""
    seed: Seed
    """Run seed: initial body, order of data."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        spec = InterfaceSpec.parse(self.interface)
        if not spec.learned and self.model.hidden_size < spec.code_width(self.data.vocab_size):
            raise ValueError(
                f"model.hidden_size {self.model.hidden_size} is below the code width "
                f"{spec.code_width(self.data.vocab_size)} of {self.interface!r}"
            )
        return self


class ArmConfig(Section):
    """One interface, and what its recipe changes (optimizer keys only, shown in the report)."""

    interface: str
    """Spec of the input interface."""
    overrides: dict[str, float | int] = {}
    """Optimizer keys that this arm changes. The report shows them."""


class StudyKeys(Section):
    """Run seeds, and the arm that the others are compared with."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (1,)
    """Run seeds."""
    baseline: str = "learned"
    """The arm that every other arm is compared with."""
    contrasts: tuple[tuple[str, str], ...] = ()
    """Further pairs of arms that the report compares."""


class EvaluationConfig(Section):
    """The benchmarks that `compare` scores every finished run on; none where no suite is named. It
    may change at any time.
    """

    suite: str = ""
    """Names of benchmarks or suites, joined by commas; empty: no evaluation."""
    data: str | None = None
    """Folder of the rows of the benchmarks. Without it they come from the Hugging Face hub."""
    documents: Positive | None = None
    """Number of documents of each benchmark, drawn by seed 0. Without it, all."""
    context_length: Positive | None = None
    """Tokens that the model reads at once. Without it, the context length of training."""


class StudyConfig(Recipe):
    """Arms × seeds."""

    study: StudyKeys = StudyKeys()
    evaluation: EvaluationConfig = EvaluationConfig()
    arms: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")], ArmConfig],
        Field(min_length=1),
    ]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.study.seeds)) != len(self.study.seeds):
            raise ValueError(f"study.seeds {list(self.study.seeds)} has a seed twice")
        if self.study.baseline not in self.arms:
            raise ValueError(
                f"study.baseline {self.study.baseline!r} is not among the arms:"
                f" {', '.join(self.arms)}"
            )
        for pair in self.study.contrasts:
            for arm in pair:
                if arm not in self.arms:
                    raise ValueError(
                        f"study.contrasts: {arm!r} is not among the arms: {', '.join(self.arms)}"
                    )
        for arm in self.arms:
            self.run(arm, self.study.seeds[0])
        return self

    def chosen_run(self, arm: str | None, seed: int | None) -> RunConfig:
        """The run of one arm, or of the baseline, and of one seed, or of the first."""
        return self.run(arm or self.study.baseline, self.study.seeds[0] if seed is None else seed)

    def run(self, arm: str, seed: int) -> RunConfig:
        """The run of one arm and one seed."""
        if arm not in self.arms:
            raise InputError(f"arm {arm!r} is not in this preset; it has {', '.join(self.arms)}")
        values: dict[str, Any] = {name: getattr(self, name) for name in Recipe.model_fields}
        chosen = self.arms[arm]
        for key in chosen.overrides:
            if key not in OptimizerConfig.model_fields:
                raise InputError(
                    f"arms.{arm}.overrides.{key}: only optimizer keys may differ between arms, or"
                    f" they are not matched: {', '.join(OptimizerConfig.model_fields)}"
                )
        try:
            values["optimizer"] = OptimizerConfig(
                **{**self.optimizer.model_dump(), **chosen.overrides}
            )
            return RunConfig(arm=arm, interface=chosen.interface, seed=seed, **values)
        except ValidationError as error:
            raise InputError(f"arm {arm!r}: {first_complaint(error)}") from None
