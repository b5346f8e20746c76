"""Our scorer against lm-eval's HFLM: the same requests of the same model on the same cores, whole
processes in turn.

    OMP_WAIT_POLICY=PASSIVE python bench/evaluate.py MODEL --data FOLDER --out FOLDER [--documents
    200] [--benchmarks ...]

MODEL: a transformers folder. --data: the benchmarks' rows. Timed is `loglikelihood` (or
`loglikelihood_rolling`) of lm-eval's own Instances, tokenising included; building prompts and
loading the model are not. HFLM gets, for each benchmark, the batch size of --batches that was
fastest on 24 documents. Float32, both. A speed is requests a second, so a ratio of times;
log-probabilities are compared too: the largest difference a token, and greedy flags and choices
that differ.

MMLU is scored whole for 8 subjects (seeded), WikiText on 16 pages: what costs most is where the
figures would not move. "suite" weighs each benchmark's time by its full size. --every N lets HFLM
answer each N-th document only, and multiplies its time by what all would have read: it shares
nothing between documents, so its time is a sum over them. Results of a benchmark are kept in --out,
so a stopped bench goes on.

--agree compares answers instead of speeds: HFLM at batch 1, PIQA whole, of the others so many
documents, MMLU's from all
subjects.
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
SUITE = {one.name: one for one in SUITES["paper"]}
SUBJECTS, PAGES, PILOT, LIMIT = 8, 16, 24, 2048


def tasks_and_documents(
    one: Benchmark, data: Path, documents: int, seed: int, agree: bool
) -> tuple[Any, dict[str, list[int]], int]:
    """Tasks, the numbers of their scored documents, and how many documents there are in all."""
    from tokencodes.evaluate.tasks import make_tasks

    tasks = make_tasks([one], data)
    whole = sum(len(task.task.eval_docs) for task in tasks)
    draw = random.Random(seed)
    if one.by_subject and agree:
        places = [
            (task.name, number) for task in tasks for number in range(len(task.task.eval_docs))
        ]
        chosen: dict[str, list[int]] = {}
        for name, number in sorted(draw.sample(places, documents)):
            chosen.setdefault(name, []).append(number)
        return [task for task in tasks if task.name in chosen], chosen, whole
    if one.by_subject:
        tasks = draw.sample(tasks, SUBJECTS)
        return tasks, {task.name: list(range(len(task.task.eval_docs))) for task in tasks}, whole
    size = (
        PAGES
        if one.name == "wikitext" and documents > 3
        else whole
        if agree and one.name == "piqa"
        else documents
    )
    return tasks, {one.name: sorted(draw.sample(range(whole), min(size, whole)))}, whole


def child(asked: argparse.Namespace) -> None:
    """One scorer on one benchmark."""
    from tokencodes.evaluate.subject import open_evaluated

    tasks, chosen, whole = tasks_and_documents(
        SUITE[asked.child[1]], asked.data, asked.documents, asked.seed, asked.agree
    )
    if asked.pilot:
        draw = random.Random(asked.seed)
        size = 2 if asked.child[1] == "wikitext" else max(1, PILOT // len(chosen))
        chosen = {
            name: sorted(draw.sample(some, min(len(some), size))) for name, some in chosen.items()
        }
    elif asked.child[0] == "hflm":
        chosen = {name: some[:: asked.every] for name, some in chosen.items()}
    instances = []
    for task in tasks:
        task.task.build_all_requests(samples=chosen[task.name], rank=0, world_size=1)
        instances += task.task.instances
    if asked.child[0] == "ours":
        from tokencodes.evaluate.language_model import LanguageModel
        from tokencodes.evaluate.scorer import Scorer

        evaluated = open_evaluated(asked.model, None, "cpu", "float32")
        lm: Any = LanguageModel(
            Scorer(evaluated.model, asked.batch_tokens),
            evaluated.texts,
            LIMIT,
            evaluated.texts.prefix,
        )
    else:
        from lm_eval.models.huggingface import HFLM

        lm = HFLM(
            pretrained=asked.model,
            device="cpu",
            dtype="float32",
            batch_size=asked.batch_tokens,
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
    # it numbers the chosen
    keys = [f"{one.task_name} {chosen[one.task_name][one.doc_id]} {one.idx}" for one in instances]
    tokens = [len(lm.tok_encode(one.args[-1])) for one in instances]
    read = [
        min(LIMIT, len(lm.tok_encode(text)))
        for text in dict.fromkeys(one.args[0] for one in instances)
    ]
    told = {
        "seconds": seconds,
        "before_mb": before,
        "peak_mb": peak_mb(),
        "answers": answers,
        "keys": keys,
        "tokens": tokens,
    }
    told["read"] = sum(read)
    told |= {
        "documents": sum(map(len, chosen.values())),
        "whole": whole,
        "batch": asked.batch_tokens or lm.scorer.batch_tokens,
    }
    asked.out.write_text(json.dumps(told))


def peak_mb() -> float:
    """Peak RSS of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def measured(
    asked: argparse.Namespace, who: str, name: str, batch: int | None, pilot: bool = False
) -> dict[str, Any]:
    """One process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        command = [
            sys.executable,
            str(HERE),
            asked.model,
            "--data",
            str(asked.data),
            "--out",
            str(out),
            "--child",
            who,
            name,
        ]
        command += [
            "--documents",
            str(asked.documents),
            "--seed",
            str(asked.seed),
            "--every",
            str(asked.every),
        ]
        command += (["--batch-tokens", str(batch)] if batch else []) + (
            ["--pilot"] if pilot else []
        )
        command += ["--agree"] if asked.agree else []
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"failed: {' '.join(command)}\n{done.stderr[-3000:]}")
        told: dict[str, Any] = json.loads(out.read_text())
    return told


def compare(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """Both scorers on one benchmark, HFLM at its best batch size."""
    batches = [1] if asked.agree else asked.batches
    pilots = (
        {batch: measured(asked, "hflm", name, batch, pilot=True)["seconds"] for batch in batches}
        if len(batches) > 1
        else {}
    )
    best = min(pilots, key=lambda batch: pilots[batch], default=batches[0])
    rounds = [
        (measured(asked, "ours", name, asked.batch_tokens), measured(asked, "hflm", name, best))
        for _ in range(asked.rounds)
    ]
    mine, theirs = rounds[0]
    times = mine["read"] / theirs["read"]  # 1 where HFLM answered all
    ours = dict(zip(mine["keys"], zip(mine["answers"], mine["tokens"], strict=True), strict=True))
    pairs = [
        (ours[key][0], answer)
        for key, answer in zip(theirs["keys"], theirs["answers"], strict=True)
    ]
    rolling = not isinstance(pairs[0][0], list)
    apart = [
        abs((a if rolling else a[0]) - (b if rolling else b[0])) / size
        for (a, b), size in zip(pairs, theirs["tokens"], strict=True)
    ]
    return {
        "documents": mine["documents"],
        "whole": mine["whole"],
        "requests": len(pairs),
        "ours": [one["seconds"] for one, _ in rounds],
        "hflm": [one["seconds"] * times for _, one in rounds],
        "hflm_times": times,
        "hflm_batch": best,
        "pilots": pilots,
        "ours_mb": max(one["peak_mb"] for one, _ in rounds),
        "hflm_mb": max(one["peak_mb"] for _, one in rounds),
        "apart": max(apart),
        "flags": 0 if rolling else sum(a[1] != b[1] for a, b in pairs),
        "choices": (
            0
            if rolling
            else sum(taken(mine)[document] != choice for document, choice in taken(theirs).items())
        ),
    }


def taken(told: dict[str, Any]) -> dict[str, str]:
    """The most likely choice of each document."""
    best: dict[str, tuple[float, str]] = {}
    for key, (total, _) in zip(told["keys"], told["answers"], strict=True):
        document, _, choice = key.rpartition(" ")
        if document not in best or total > best[document][0]:
            best[document] = total, choice
    return {document: choice for document, (_, choice) in best.items()}


def show(found: dict[str, dict[str, Any]]) -> None:
    """The table, and the suite by full size."""
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
    for name, one in found.items():
        ratios = sorted(b / a for a, b in zip(one["ours"], one["hflm"], strict=True))
        mine, theirs = min(one["ours"]), min(one["hflm"])
        ours, hflm = (
            ours + mine * one["whole"] / one["documents"],
            hflm + theirs * one["whole"] / one["documents"],
        )
        print(
            f"{name:16}{one['documents']:>6,} of"
            f" {one['whole']:>5,}{mine:10.1f}{theirs:10.1f}{one['hflm_batch']:7}"
            f"{ratios[len(ratios) // 2]:7.2f}"
            f" ({ratios[0]:.2f}-{ratios[-1]:.2f}){one['ours_mb']:8,.0f}/{one['hflm_mb']:,.0f}"
            f"{one['apart']:12.1e}{one['flags']:7}{one['choices']:5}"
        )
    print(
        f"suite, each benchmark at its full size: {hflm / ours:.2f} ({ours / 60:,.0f} against"
        f" {hflm / 60:,.0f} minutes)"
    )


def main() -> None:
    """Runs what is not in --out yet, then prints everything."""
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
    asked = parser.parse_args()
    if asked.child:
        child(asked)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in asked.benchmarks:
        kept = asked.out / f"{name}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(compare(asked, name)))
        found[name] = json.loads(kept.read_text())
        print(f"{name} done", file=sys.stderr)
    print(
        f"{asked.model}, float32, {torch.get_num_threads()} threads,"
        f" {os.environ.get('OMP_WAIT_POLICY', '')}"
    )
    show(found)


if __name__ == "__main__":
    main()
