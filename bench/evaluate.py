"""Compares our scorer with lm-eval's HFLM: the same requests, the same model, the same cores. Whole
processes run in turn.

    OMP_WAIT_POLICY=PASSIVE python bench/evaluate.py MODEL --data FOLDER --out FOLDER [--documents
    200] [--benchmarks ...]

MODEL is a transformers folder. --data holds the rows of the benchmarks. The timed part is
`loglikelihood` (or `loglikelihood_rolling`) of lm-eval's own Instances, with tokenising. Building
prompts and loading the model are not timed. For each benchmark, HFLM gets the batch size of
--batches that was fastest on 24 documents. Both use float32. Speed is requests per second, so a
ratio of speeds is a ratio of times. Log-probabilities are compared too: the largest difference per
token, and the greedy flags and choices that differ.

MMLU is scored on 8 whole subjects (seeded) and WikiText on 16 pages, because more of them cost most
and would not change the figures. "suite" weighs each benchmark's time by its full size. With
--every N, HFLM answers only each N-th document, and its time is multiplied by the ratio of tokens
read. This is valid because HFLM shares nothing between documents. The results of each benchmark are
kept in --out, so an interrupted bench continues.

--agree compares answers instead of speeds: HFLM at batch 1, the whole of PIQA, and --documents
documents of each other benchmark. The MMLU documents come from all subjects.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tokencodes.evaluate.suites import SUITES, Benchmark

HERE = Path(__file__)
SUITE = {benchmark.name: benchmark for benchmark in SUITES["paper"]}
SUBJECTS, PAGES, PILOT, LIMIT = 8, 16, 24, 2048


def tasks_and_documents(
    benchmark: Benchmark, data: Path, documents: int, seed: int, agree: bool
) -> tuple[Any, dict[str, list[int]], int]:
    """Returns the tasks, the numbers of their scored documents, and the number of all documents."""
    from tokencodes.evaluate.tasks import make_tasks

    tasks = make_tasks([benchmark], data)
    whole = sum(len(task.task.eval_docs) for task in tasks)
    draw = random.Random(seed)
    if benchmark.by_subject and agree:
        places = [
            (task.name, number) for task in tasks for number in range(len(task.task.eval_docs))
        ]
        chosen: dict[str, list[int]] = {}
        for name, number in sorted(draw.sample(places, documents)):
            chosen.setdefault(name, []).append(number)
        return [task for task in tasks if task.name in chosen], chosen, whole
    if benchmark.by_subject:
        tasks = draw.sample(tasks, SUBJECTS)
        return tasks, {task.name: list(range(len(task.task.eval_docs))) for task in tasks}, whole
    size = (
        PAGES
        if benchmark.name == "wikitext" and documents > 3
        else whole
        if agree and benchmark.name == "piqa"
        else documents
    )
    return tasks, {benchmark.name: sorted(draw.sample(range(whole), min(size, whole)))}, whole


def child(options: argparse.Namespace) -> None:
    """Runs one scorer on one benchmark, and writes its record to --out as JSON."""
    from tokencodes.evaluate.subject import open_evaluated

    tasks, chosen, whole = tasks_and_documents(
        SUITE[options.child[1]], options.data, options.documents, options.seed, options.agree
    )
    if options.pilot:
        draw = random.Random(options.seed)
        size = 2 if options.child[1] == "wikitext" else max(1, PILOT // len(chosen))
        chosen = {
            name: sorted(draw.sample(numbers, min(len(numbers), size)))
            for name, numbers in chosen.items()
        }
    elif options.child[0] == "hflm":
        chosen = {name: numbers[:: options.every] for name, numbers in chosen.items()}
    instances = []
    for task in tasks:
        task.task.build_all_requests(samples=chosen[task.name], rank=0, world_size=1)
        instances += task.task.instances
    if options.child[0] == "ours":
        from tokencodes.evaluate.language_model import LanguageModel
        from tokencodes.evaluate.scorer import Scorer

        evaluated = open_evaluated(options.model, None, "cpu", "float32")
        lm: Any = LanguageModel(
            Scorer(evaluated.model, options.batch_tokens),
            evaluated.texts,
            LIMIT,
            evaluated.texts.prefix,
        )
    else:
        from lm_eval.models.huggingface import HFLM

        lm = HFLM(
            pretrained=options.model,
            device="cpu",
            dtype="float32",
            batch_size=options.batch_tokens,
            max_length=LIMIT,
        )
    before, began = peak_mb(), time.perf_counter()
    method = (
        "loglikelihood_rolling"
        if instances[0].request_type == "loglikelihood_rolling"
        else "loglikelihood"
    )
    answers = getattr(lm, method)(instances)
    seconds = time.perf_counter() - began
    # doc_id is an index into the chosen documents.
    keys = [
        f"{instance.task_name} {chosen[instance.task_name][instance.doc_id]} {instance.idx}"
        for instance in instances
    ]
    tokens = [len(lm.tok_encode(instance.args[-1])) for instance in instances]
    read = [
        min(LIMIT, len(lm.tok_encode(text)))
        for text in dict.fromkeys(instance.args[0] for instance in instances)
    ]
    record = {
        "seconds": seconds,
        "before_mb": before,
        "peak_mb": peak_mb(),
        "answers": answers,
        "keys": keys,
        "tokens": tokens,
    }
    record["read"] = sum(read)
    record |= {
        "documents": sum(map(len, chosen.values())),
        "whole": whole,
        "batch": options.batch_tokens or lm.scorer.batch_tokens,
    }
    options.out.write_text(json.dumps(record))


def peak_mb() -> float:
    """Returns the peak RSS of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def measured(
    options: argparse.Namespace, who: str, name: str, batch: int | None, pilot: bool = False
) -> dict[str, Any]:
    """Runs one scorer on one benchmark in a new process. Returns its record."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [
            sys.executable,
            str(HERE),
            options.model,
            "--data",
            str(options.data),
            "--out",
            str(out),
            "--child",
            who,
            name,
        ]
        command += [
            "--documents",
            str(options.documents),
            "--seed",
            str(options.seed),
            "--every",
            str(options.every),
        ]
        command += (["--batch-tokens", str(batch)] if batch else []) + (
            ["--pilot"] if pilot else []
        )
        command += ["--agree"] if options.agree else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"failed: {' '.join(command)}\n{done.stderr[-3000:]}")
        record: dict[str, Any] = json.loads(out.read_text())
    return record


def compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Compares both scorers on one benchmark. HFLM has its best batch size."""
    batches = [1] if options.agree else options.batches
    pilots = (
        {batch: measured(options, "hflm", name, batch, pilot=True)["seconds"] for batch in batches}
        if len(batches) > 1
        else {}
    )
    best = min(pilots, key=lambda batch: pilots[batch], default=batches[0])
    rounds = [
        (
            measured(options, "ours", name, options.batch_tokens),
            measured(options, "hflm", name, best),
        )
        for _ in range(options.rounds)
    ]
    our_record, hflm_record = rounds[0]
    times = our_record["read"] / hflm_record["read"]  # 1 where HFLM answered all
    ours = dict(
        zip(
            our_record["keys"],
            zip(our_record["answers"], our_record["tokens"], strict=True),
            strict=True,
        )
    )
    pairs = [
        (ours[key][0], answer)
        for key, answer in zip(hflm_record["keys"], hflm_record["answers"], strict=True)
    ]
    rolling = not isinstance(pairs[0][0], list)
    apart = [
        abs((a if rolling else a[0]) - (b if rolling else b[0])) / size
        for (a, b), size in zip(pairs, hflm_record["tokens"], strict=True)
    ]
    return {
        "documents": our_record["documents"],
        "whole": our_record["whole"],
        "requests": len(pairs),
        "ours": [record["seconds"] for record, _ in rounds],
        "hflm": [record["seconds"] * times for _, record in rounds],
        "hflm_times": times,
        "hflm_batch": best,
        "pilots": pilots,
        "ours_mb": max(record["peak_mb"] for record, _ in rounds),
        "hflm_mb": max(record["peak_mb"] for _, record in rounds),
        "apart": max(apart),
        "flags": 0 if rolling else sum(a[1] != b[1] for a, b in pairs),
        "choices": (
            0
            if rolling
            else sum(
                taken(our_record)[document] != choice
                for document, choice in taken(hflm_record).items()
            )
        ),
    }


def taken(record: dict[str, Any]) -> dict[str, str]:
    """Returns the most likely choice of each document."""
    best: dict[str, tuple[float, str]] = {}
    for key, (total, _) in zip(record["keys"], record["answers"], strict=True):
        document, _, choice = key.rpartition(" ")
        if document not in best or total > best[document][0]:
            best[document] = total, choice
    return {document: choice for document, (_, choice) in best.items()}


def show(results: dict[str, dict[str, Any]]) -> None:
    """Prints the table, and the ratio of the suite weighted by full size."""
    heads = (
        ("documents", 14),
        ("ours, s", 10),
        ("HFLM, s", 10),
        ("batch", 7),
        ("ratio", 19),
        ("peak MB", 14),
        ("apart", 12),
    )
    print(
        " " * 16
        + "".join(f"{head:>{width}}" for head, width in heads)
        + "  flags, choices that differ"
    )
    ours = hflm = 0.0
    for name, result in results.items():
        ratios = sorted(b / a for a, b in zip(result["ours"], result["hflm"], strict=True))
        our_seconds, hflm_seconds = min(result["ours"]), min(result["hflm"])
        ours, hflm = (
            ours + our_seconds * result["whole"] / result["documents"],
            hflm + hflm_seconds * result["whole"] / result["documents"],
        )
        print(
            f"{name:16}{result['documents']:>6,} of"
            f" {result['whole']:>5,}{our_seconds:10.1f}{hflm_seconds:10.1f}{result['hflm_batch']:7}"
            f"{ratios[len(ratios) // 2]:7.2f}"
            f" ({ratios[0]:.2f}-{ratios[-1]:.2f}){result['ours_mb']:8,.0f}/{result['hflm_mb']:,.0f}"
            f"{result['apart']:12.1e}{result['flags']:7}{result['choices']:5}"
        )
    print(
        f"suite, each benchmark at its full size: {hflm / ours:.2f} ({ours / 60:,.0f} against"
        f" {hflm / 60:,.0f} minutes)"
    )


def main() -> None:
    """Runs the benchmarks that are not in --out yet, then prints all results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--benchmarks", nargs="*", default=list(SUITE))
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--pilot", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in options.benchmarks:
        kept = options.out / f"{name}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(compare(options, name)))
        results[name] = json.loads(kept.read_text())
        print(f"{name} done", file=sys.stderr)
    print(
        f"{options.model}, float32, {torch.get_num_threads()} threads,"
        f" {os.environ.get('OMP_WAIT_POLICY', '')}"
    )
    show(results)


if __name__ == "__main__":
    main()
