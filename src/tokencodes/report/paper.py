"""The paper's Table 3 (arXiv 2610.04002): its numbers, and which of ours stand beside them.

Accuracies in percent with the evaluation's standard error, which is no spread of runs; LAMBADA
perplexity with the same; the rest without. Byte perplexity is bits per byte again and is left out.
"""

MODELS = ("Learned", "Binary16", "GF2", "SmolLM2-135M", "SmolLM2-360M", "SmolLM2-1.7B")

Cell = tuple[float, float | None]


def _row(text: str) -> tuple[Cell, ...]:
    cells = []
    for cell in text.split():
        value, _, error = cell.partition("±")
        cells.append((float(value), float(error) if error else None))
    return tuple(cells)


# (benchmark, metric) of ours -> a cell for each of MODELS.
TABLE_3: dict[tuple[str, str], tuple[Cell, ...]] = {
    ("hellaswag", "acc"): _row("44.21±.50 40.70±.49 40.24±.49 35.36±.48 43.05±.49 53.38±.50"),
    ("hellaswag", "acc_norm"): _row("57.79±.49 52.40±.50 51.44±.50 43.02±.49 56.28±.50 71.43±.45"),
    ("arc_easy", "acc"): _row("71.63±.92 67.59±.96 66.84±.97 64.44±.98 70.24±.94 77.86±.85"),
    ("arc_easy", "acc_norm"): _row(
        "66.04±.97 61.53±1.00 60.73±1.00 58.75±1.01 68.18±.96 73.36±.91"
    ),
    ("arc_challenge", "acc"): _row(
        "35.92±1.40 32.34±1.37 30.55±1.35 28.07±1.31 36.26±1.40 44.37±1.45"
    ),
    ("arc_challenge", "acc_norm"): _row(
        "37.63±1.42 34.04±1.38 34.22±1.39 29.61±1.33 38.05±1.42 47.27±1.46"
    ),
    ("piqa", "acc"): _row("72.69±1.04 70.51±1.06 71.16±1.06 68.44±1.08 71.38±1.05 76.99±.98"),
    ("piqa", "acc_norm"): _row("72.14±1.05 71.11±1.06 72.14±1.05 68.39±1.08 71.82±1.05 77.20±.98"),
    ("winogrande", "acc"): _row(
        "58.56±1.38 55.33±1.40 55.01±1.40 52.57±1.40 59.35±1.38 65.98±1.33"
    ),
    ("openbookqa", "acc"): _row(
        "27.60±2.00 28.20±2.01 25.20±1.94 22.00±1.85 24.80±1.93 32.20±2.09"
    ),
    ("openbookqa", "acc_norm"): _row(
        "37.80±2.17 38.00±2.17 36.80±2.16 32.60±2.10 37.80±2.17 44.40±2.22"
    ),
    ("commonsense_qa", "acc"): _row(
        "19.82±1.14 20.56±1.16 19.74±1.14 19.90±1.14 21.05±1.17 41.69±1.41"
    ),
    ("mmlu_0", "acc"): _row("25.32±.37 25.88±.37 26.11±.37 24.25±.36 25.47±.37 48.40±.41"),
    ("mmlu_5", "acc"): _row("25.48±.37 25.57±.37 24.66±.36 25.15±.36 25.03±.37 50.06±.41"),
    ("lambada", "acc"): _row("47.72±.70 42.75±.69 42.29±.69 42.97±.69 53.31±.70 67.51±.65"),
    ("lambada", "perplexity"): _row("12.88±.42 17.91±.62 18.47±.63 19.06±.63 9.38±.27 4.44±.10"),
    ("wikitext", "word_perplexity"): _row("16.50 18.58 19.03 23.14 17.12 11.62"),
    ("wikitext", "bits_per_byte"): _row("0.76 0.79 0.79 0.85 0.77 0.66"),
}
