"""Which benchmarks a suite has, and the rows that they are scored on, by hash.

`paper` is the paper's evaluation: seven multiple-choice benchmarks and MMLU without examples, MMLU
with five, LAMBADA, WikiText-2. `cloze` asks MMLU and CommonsenseQA for the answers themselves
instead of letters, which small models can do. `embedded` is text that comes with this package, held
out by every preset that trains on the rest of it. Tasks, prompts and metrics are lm-eval's, by its
own files.
"""

from dataclasses import dataclass
from typing import Literal

from tokencodes.errors import InputError, nearest

PAPER_CONTEXT = 2048  # tokens that the paper's models read
# what the results of a benchmark hold besides its metrics
NOT_METRICS = ("documents", "lost_bytes", "ties")


@dataclass(frozen=True)
class Benchmark:
    """rows, examples: files of rows (`SHA256`), or `embedded`. recipe: lm-eval's file, below its
    tasks folder; {subject} stands for each of the 57. endpoint: the metric of pre-declared tests.
    cluster: what rows may share, so that they are no independent draws. letters: whether letters
    are asked for, not answers. changes: of the recipe, or all of it.
    """

    name: str
    title: str
    recipe: str
    rows: str
    split: str
    endpoint: str
    shots: int = 0
    examples: str | None = None
    by_subject: bool = False
    letters: bool = False
    cluster: Literal["subject", "source", "goal", "twins", "work"] | None = None
    changes: tuple[tuple[str, object], ...] = ()  # of the recipe


MMLU, CONTINUATION = "mmlu/default/mmlu_{subject}.yaml", "mmlu/continuation/mmlu_{subject}.yaml"
HELLASWAG = Benchmark(
    "hellaswag",
    "HellaSwag",
    "hellaswag/hellaswag.yaml",
    "hellaswag_validation",
    "validation",
    "acc_norm",
    cluster="source",
)
ARC_EASY = Benchmark("arc_easy", "ARC-e", "arc/arc_easy.yaml", "arc_easy_test", "test", "acc")
ARC_CHALLENGE = Benchmark(
    "arc_challenge", "ARC-c", "arc/arc_challenge.yaml", "arc_challenge_test", "test", "acc_norm"
)
PIQA = Benchmark(
    "piqa", "PIQA", "piqa/piqa.yaml", "piqa_validation", "validation", "acc", cluster="goal"
)
WINOGRANDE = Benchmark(
    "winogrande",
    "WinoGrande",
    "winogrande/default.yaml",
    "winogrande_xl_validation",
    "validation",
    "acc",
    cluster="twins",
)
OPENBOOKQA = Benchmark(
    "openbookqa", "OpenBookQA", "openbookqa/openbookqa.yaml", "openbookqa_test", "test", "acc_norm"
)
COMMONSENSE = Benchmark(
    "commonsense_qa",
    "CommonsenseQA",
    "commonsense_qa/default.yaml",
    "commonsense_qa_validation",
    "validation",
    "acc",
    letters=True,
)
MMLU_0 = Benchmark(
    "mmlu_0",
    "MMLU 0-shot",
    MMLU,
    "mmlu_test",
    "test",
    "acc",
    0,
    "mmlu_dev",
    by_subject=True,
    letters=True,
    cluster="subject",
)
MMLU_5 = Benchmark(
    "mmlu_5",
    "MMLU 5-shot",
    MMLU,
    "mmlu_test",
    "test",
    "acc",
    5,
    "mmlu_dev",
    by_subject=True,
    letters=True,
    cluster="subject",
)
LAMBADA = Benchmark(
    "lambada", "LAMBADA", "lambada/lambada_openai.yaml", "lambada_openai_test", "test", "acc"
)
WIKITEXT = Benchmark(
    "wikitext",
    "WikiText-2",
    "wikitext/wikitext.yaml",
    "wikitext2_raw_test_pages",
    "test",
    "bits_per_byte",
)
MMLU_CLOZE = Benchmark(
    "mmlu_cloze",
    "MMLU cloze",
    CONTINUATION,
    "mmlu_test",
    "test",
    "acc_norm",
    0,
    "mmlu_dev",
    by_subject=True,
    cluster="subject",
)
COMMONSENSE_CLOZE = Benchmark(
    "commonsense_qa_cloze",
    "CommonsenseQA cloze",
    "commonsense_qa/default.yaml",
    "commonsense_qa_validation",
    "validation",
    "acc_norm",
    # ARC's words, so that the answers themselves follow.
    changes=(
        ("doc_to_text", "Question: {{question.strip()}}\nAnswer:"),
        ("doc_to_choice", "{{choices.text}}"),
        ("doc_to_target", "{{choices.label.index(answerKey)}}"),
        (
            "metric_list",
            [
                {"metric": name, "aggregation": "mean", "higher_is_better": True}
                for name in ("acc", "acc_norm")
            ],
        ),
    ),
)
EMBEDDED = Benchmark(
    "embedded",
    "embedded text",
    "",
    "embedded",
    "test",
    "bits_per_byte",
    cluster="work",
    changes=(
        ("output_type", "loglikelihood_rolling"),
        ("doc_to_text", ""),
        ("doc_to_target", "{{text}}"),
        (
            "metric_list",
            [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        ),
    ),
)
MULTIPLE_CHOICE = (HELLASWAG, ARC_EASY, ARC_CHALLENGE, PIQA, WINOGRANDE, OPENBOOKQA, COMMONSENSE)
SUITES: dict[str, tuple[Benchmark, ...]] = {
    "paper": (*MULTIPLE_CHOICE, MMLU_0, MMLU_5, LAMBADA, WIKITEXT),
    "cloze": (MMLU_CLOZE, COMMONSENSE_CLOZE),
    "embedded": (EMBEDDED,),
}
BENCHMARKS = {benchmark.name: benchmark for suite in SUITES.values() for benchmark in suite}

# SHA-256 of each file's lines, uncompressed: what is scored is bound to it.
SHA256 = {
    "arc_challenge_test": "a03a11a8fee86f6d0607f426e7b3b7a9180a4894170e934da75596e93c4b51f1",
    "arc_easy_test": "6ce8fb7b4baa1a5d6f2f1b92a3055787cf04759819c3f03195cda787822f7f12",
    "commonsense_qa_validation": "4c036e81eec3cb86477bc1b97c21c56aa17d92ab9f8537c855dc0cf724b05fe0",
    "hellaswag_validation": "d5c08c3e5771307e73886dc9d2744df8ca5f372a7857f32fe77df8c58942f950",
    "lambada_openai_test": "196ff558e49bae459a0ad7dac91d765ccdb47ae6c63c0492b8f4cfbca2b4ef0d",
    "mmlu_dev": "0b841f7363db50b453f487870576f828e3b8bb106b6a721db67fa382e4a37ec8",
    "mmlu_test": "903179ca496c3a80683685a3e4bcec761d2826df64682892cde15def955f6e7d",
    "openbookqa_test": "bbaca15e985ba386b2f73e9659fce608cf7722a35343864dbe7115cbbda341ab",
    "piqa_validation": "61533005e22f175534909b1ec8eacb6da03c233933558d1bafb15787453b1f55",
    "wikitext2_raw_test_pages": "6b1e3e286e53d60cd18d6c5447b10f0aacbcfa6153bd35ca669334b1763a321e",
    "winogrande_xl_validation": "69f3d7f3a900d775339b04c7de672609c40fca573e50f594f2ae66d8782505be",
}


# The embedded documents that are asked for: what this split holds out, and so every split of this
# seed with as large a share.
EMBEDDED_SEED, EMBEDDED_SHARE = 0, 0.02


def benchmarks(suite: str) -> tuple[Benchmark, ...]:
    """Of suites and single benchmarks, joined by commas. InputError for a name that is none."""
    selected: dict[str, Benchmark] = {}
    for name in map(str.strip, suite.split(",")):
        named = SUITES.get(name) or ((BENCHMARKS[name],) if name in BENCHMARKS else ())
        if not named:
            raise InputError(
                f"suite {name!r}: no such suite or benchmark;"
                f" {nearest(name, {**SUITES, **BENCHMARKS})}"
            )
        selected |= {benchmark.name: benchmark for benchmark in named}
    return tuple(selected.values())
