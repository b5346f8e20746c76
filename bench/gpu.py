"""Measures tokens/s, MFU and peak memory of the 1.7B arms on one GPU in minutes, against
transformers' own Llama. It also measures the head kernels.

    python bench/gpu.py [--dataset FOLDER] [--recompute 1] [--compile] [--peak-tflops TFLOPS] [--out
    runs/gpu.json] [--markdown FILE]
    python bench/gpu.py --device cpu --shape tiny        # the same code on any
        machine, in a minute; its figures mean nothing

No result exists yet: no GPU was available. The code was only tried on a CPU, where peak memory is
that of the process.

The recipe is the paper's: BF16 autocast over float32 parameters, micro batches of 8 windows of
2,048 tokens, gradient accumulation over 64 windows, fused AdamW, gradients clipped to 1. If a micro
batch does not fit, it is halved, and the table notes it. Our arms use the same functions as the
trainer. `llama` is LlamaForCausalLM of the same shape with its own loss (whole logits); all else is
as in ours. It starts with the weights of `learned`, so the two first losses must agree. The table
shows both.

Each arm runs in its own process, for at most --limit seconds. An arm that did not run is "not
measured", with the reason. Tokens per second: the median over the steps after the first, which
warms up and compiles. MFU: FLOPs per token by `flops_per_token` (without recomputation), over
--peak-tflops, or else over the rate of a large bfloat16 matmul in the same run. The ids are real:
windows of --dataset, or of the embedded text (a tokenizer of 3,072 entries). The latter are spread
over the vocabulary, id * V div 3,072, so that frequencies stay.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import seconds
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from tokencodes.data.dataset import Dataset
from tokencodes.data.windows import read_windows
from tokencodes.errors import InputError
from tokencodes.init import generator, standard_deviation
from tokencodes.loss import KERNELS, head_cross_entropy, inputs_and_targets
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.parallel import World
from tokencodes.train.build import autocast, build_model, sampler_of, shard_and_move
from tokencodes.train.config import EngineConfig, RunConfig
from tokencodes.train.corpus import open_dataset
from tokencodes.train.cost import flops_per_token
from tokencodes.train.diagnostics import clip, norms, total_norm
from tokencodes.train.interface import resolve
from tokencodes.train.optimizer import build_optimizer, learning_rate
from tokencodes.train.peak import synchronize
from tokencodes.train.settings import read_study

ARMS = ("learned", "binary", "gf2", "llama")
HEADS = (*KERNELS, "whole logits")
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "context_length": 64,
}
SHAPE = (
    *list(TINY)[:-1],
    "vocab_size",
    "max_position_embeddings",
    "rope_parameters",
    "rms_norm_eps",
    "initializer_range",
)
NOT_MEASURED = "not measured"
SECONDS = 15.0  # limit for the steps of one arm; at least two steps are measured
START = 12  # seconds below which a child is not worth starting
Plan = dict[str, Any]
Rows = list[list[str]]


def run_of(plan: Plan, arm: str) -> RunConfig:
    """Returns the paper's configuration of one arm at the requested shape."""
    tiny = ["data.vocab_size=6144", *(f"model.{key}={value}" for key, value in TINY.items())]
    return read_study("paper", tiny if plan["shape"] == "tiny" else [])[0].run(
        "learned" if arm == "llama" else arm, 1
    )


def real_windows(plan: Plan, folder: Path, count: int) -> np.ndarray:
    """Returns ids int64[count, T + 1] of real text."""
    run = run_of(plan, "learned")
    dataset = (
        Dataset(Path(plan["dataset"]))
        if plan["dataset"]
        else open_dataset(read_study("nano", [])[0].data, folder, tell)
    )
    ids = read_windows(
        dataset.shards("train"), sampler_of(run, dataset), np.arange(count, dtype=np.int64)
    )
    if dataset.vocab_size == run.data.vocab_size:
        return ids
    tell(f"ids of {dataset.vocab_size:,} entries, spread over {run.data.vocab_size:,}")
    return ids * run.data.vocab_size // dataset.vocab_size


def tell(line: str) -> None:
    """Prints progress on standard error."""
    print(line, file=sys.stderr, flush=True)


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """Draws the recipe's initial weights on the model's own device. The draw depends on the
    parameter's name only, so it is the same in each arm.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        seeded = torch.Generator(parameter.device).manual_seed(generator(1, name).initial_seed())
        parameter.normal_(0.0, standard_deviation(name, model), generator=seeded)


def build(run: RunConfig, arm: str, device: torch.device) -> nn.Module:
    """Returns the arm's model on its device, with drawn weights."""
    with device:
        model = build_model(run, *resolve(run.interface, None))
        if arm == "llama":
            shape = {name: getattr(model.config, name) for name in SHAPE}
            model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
    draw(model.to(device).train())
    return model


def loss_of(model: nn.Module, ids: Tensor, targets: Tensor, count: int) -> Tensor:
    """Returns the contribution of a micro batch to the mean loss. The labels for transformers' own
    loss are already shifted.
    """
    if isinstance(model, TokenCodeForCausalLM):
        return model.loss(ids, targets, num_targets=count)
    labels = targets.contiguous()
    return model(
        input_ids=ids, use_cache=False, labels=labels, shift_labels=labels, num_items_in_batch=count
    ).loss


class Arm:
    """Holds one model with its optimizer. `step` does what the trainer does."""

    def __init__(self, plan: Plan, name: str, device: torch.device) -> None:
        self.run, self.world = run_of(plan, name), World(device=device)
        precision = {
            "precision": "bf16-autocast",
            "activation_checkpoint_every": plan["recompute"],
            "compile": plan["compile"],
        }
        self.engine = EngineConfig(device=device.type, loss_kernel=plan["head"], **precision)
        self.model = build(self.run, name, device)
        shard_and_move(self.model, self.engine, self.world)
        self.optimizer = build_optimizer(self.model, self.run.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(0, self.run.optimizer)

    def step(self, windows: Tensor, micro_batch: int) -> float:
        """Does one training step. Returns its loss. Raises RuntimeError if loss or norm is not
        finite.
        """
        losses, count = [], windows[:, 1:].numel()
        for part in windows.split(micro_batch):
            with autocast(self.engine, self.world):
                loss = loss_of(self.model, *inputs_and_targets(part), count)
            loss.backward()
            losses.append(loss.detach())
        total = total_norm(
            norms({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})
        )
        clip(self.model, self.run.optimizer.max_grad_norm, total)
        value, norm = float(torch.stack(losses).sum()), float(total)
        if not np.isfinite([value, norm]).all():
            raise RuntimeError(
                f"loss {value}, gradient norm {norm}: a step that is not finite is no measurement"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value


def measure_arm(plan: Plan, name: str, device: torch.device) -> dict[str, Any]:
    """Returns tokens per second and the other figures, with the largest micro batch that fits."""
    windows = torch.from_numpy(np.load(plan["ids"])).to(device)
    micro_batch = plan["micro_batch"]
    while True:
        try:
            return measure_steps(plan, Arm(plan, name, device), windows, micro_batch)
        except torch.OutOfMemoryError:
            if micro_batch == 1:
                raise
        micro_batch //= 2  # outside of `except`, whose traceback holds what was allocated
        gc.collect()
        torch.cuda.empty_cache()


def measure_steps(plan: Plan, arm: Arm, windows: Tensor, micro_batch: int) -> dict[str, Any]:
    """Does one step of warm-up, then measures steps until the time or the number of steps is
    reached.
    """
    device, size, times = arm.world.device, plan["windows"], []
    first = arm.step(windows[:size], micro_batch)
    synchronize(device)
    while len(times) < plan["steps"] and (len(times) < 2 or sum(times) < SECONDS):
        start = (len(times) + 1) * size % len(windows)
        # The time includes all kernels of the step: its loss and norm are read back, and
        # synchronize waits for the optimizer.
        times.append(
            seconds(
                lambda: (
                    arm.step(windows[start : start + size], micro_batch),  # noqa: B023
                    synchronize(device),
                )
            )
        )
    return {
        "tokens_per_second": size * (windows.shape[1] - 1) / statistics.median(times),
        "seconds": times,
        "flops_per_token": flops_per_token(arm.model),
        "parameters": sum(p.numel() for p in arm.model.parameters()),
        "peak_bytes": peak_bytes(device),
        "micro_batch": micro_batch,
        "first_loss": first,
    }


def peak_bytes(device: torch.device) -> int:
    """Returns the peak of allocated bytes on the GPU. On a CPU it returns the peak resident bytes
    of this process, libraries included.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def time_work(work: Callable[[], object], device: torch.device, runs: int) -> float:
    """Returns the median seconds after one warm-up."""

    work(), synchronize(device)
    return statistics.median(seconds(lambda: (work(), synchronize(device))) for _ in range(runs))


def measure_peak(device: torch.device) -> dict[str, Any]:
    """Returns the FLOP/s of a large bfloat16 matmul, and the name of the device."""
    side = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * side**3 / time_work(lambda: a @ b, device, 20)
    return {
        "matmul_flops": rate,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def measure_heads(plan: Plan, device: torch.device, out: Path) -> None:
    """Measures forward and backward of the head of one micro batch under autocast, with each
    kernel. The results are written after each kernel.
    """
    run, results, on_gpu = run_of(plan, "learned"), {}, device.type == "cuda"
    tokens = torch.from_numpy(np.load(plan["ids"]))[: plan["micro_batch"], 1:].flatten().to(device)
    h = torch.randn(len(tokens), run.model.hidden_size, device=device, requires_grad=True)
    head = (
        0.02 * torch.randn(run.data.vocab_size, run.model.hidden_size, device=device)
    ).requires_grad_()

    def work(kernel: str) -> float:
        h.grad = head.grad = None
        with torch.autocast(device.type, torch.bfloat16):
            if kernel == "whole logits":
                value = F.cross_entropy(F.linear(h, head).float(), tokens, reduction="sum")
            else:
                value = head_cross_entropy(h, head, tokens, kernel)
        value.backward()
        return float(value.detach()) / len(tokens)

    for kernel in HEADS:
        try:
            loss = work(kernel)
            before = torch.cuda.memory_allocated(device) if on_gpu else 0
            torch.cuda.reset_peak_memory_stats(device) if on_gpu else None
            took = time_work(lambda: work(kernel), device, 10 if on_gpu else 3)  # noqa: B023
            extra = peak_bytes(device) - before if on_gpu else None
            results[kernel] = {"milliseconds": 1e3 * took, "extra_bytes": extra, "loss": loss}
        except (InputError, torch.OutOfMemoryError, RuntimeError) as error:
            results[kernel] = {"reason": " ".join(str(error).split())[:160]}
        h.grad = head.grad = None
        out.write_text(json.dumps(results))


def child(what: str, plan: Plan, out: Path) -> None:
    """Does one measurement in this process, and writes it as JSON."""
    device = torch.device("cuda", 0) if plan["device"] == "cuda" else torch.device("cpu")
    if what == "heads":
        measure_heads(plan, device, out)
    else:
        out.write_text(
            json.dumps(measure_peak(device) if what == "peak" else measure_arm(plan, what, device))
        )


def in_a_child(what: str, plan: Plan, folder: Path, limit: float) -> dict[str, Any]:
    """Returns what a child process wrote, and `reason` if the child failed."""
    if limit < START:
        return {"reason": "no time left"}
    (folder / "plan.json").write_text(json.dumps(plan))
    out, reason = folder / f"{what}.json", None
    command = [sys.executable, __file__, "--child", what, str(folder / "plan.json"), str(out)]
    try:
        done = subprocess.run(command, timeout=limit, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:160]
    except subprocess.TimeoutExpired:
        reason = f"took longer than {limit:.0f} s"
    return {**(json.loads(out.read_text()) if out.is_file() else {}), "reason": reason}


def measure_all(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Measures everything within the time limit."""
    began, results = time.perf_counter(), {"plan": plan, "arms": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan["ids"] = str(folder / "ids.npy")
        np.save(plan["ids"], real_windows(plan, folder, 2 * plan["windows"]))
        for what in ("peak", *ARMS, "heads"):
            tell(f"{time.perf_counter() - began:4.0f} s  {what}")
            left = options.total - (time.perf_counter() - began)
            (results["arms"] if what in ARMS else results)[what] = in_a_child(
                what, plan, folder, min(options.limit, left)
            )
    return {**results, "seconds": time.perf_counter() - began}


def table(columns: list[str], rows: Rows) -> str:
    """Returns a Markdown table."""
    return "\n".join(
        "| " + " | ".join(cells) + " |"
        for cells in [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    )


def page(results: dict[str, Any]) -> str:
    """Returns both tables and a line about the machine. A missing value is "not measured"."""
    plan, peak = results["plan"], results.get("peak", {})
    flops = plan["peak"] * 1e12 if plan["peak"] else peak.get("matmul_flops")

    def arm(record: dict[str, Any]) -> list[str]:
        rate, fits = record["tokens_per_second"], record["micro_batch"] == plan["micro_batch"]
        mfu = f"{rate * record['flops_per_token'] / flops:.3f}" if flops else NOT_MEASURED
        cells = [
            f"{rate:,.0f}",
            mfu,
            f"{record['peak_bytes'] / 2**30:.2f}",
            str(record["micro_batch"]),
            f"{record['first_loss']:.4f}",
        ]
        return [*cells, "" if fits else f"a micro batch of {plan['micro_batch']} did not fit"]

    def head(record: dict[str, Any]) -> list[str]:
        extra = (
            NOT_MEASURED
            if record["extra_bytes"] is None
            else f"{record['extra_bytes'] / 2**30:.2f}"
        )
        return [f"{record['milliseconds']:.1f}", extra, f"{record['loss']:.5f}", ""]

    def rows(
        names: tuple[str, ...],
        records: dict[str, Any],
        key: str,
        cells: Callable[..., list[str]],
        count: int,
    ) -> Rows:
        of = {name: records.get(name, {}) for name in names}
        why = {
            name: record.get("reason") or records.get("reason") or "" for name, record in of.items()
        }
        return [
            [name, *(cells(record) if key in record else [*[NOT_MEASURED] * count, why[name]])]
            for name, record in of.items()
        ]

    arms = rows(ARMS, results["arms"], "tokens_per_second", arm, 5)
    heads = rows(HEADS, results.get("heads", {}), "milliseconds", head, 3)
    rate = (
        f"{flops / 1e12:.3g} TFLOP/s ({'given' if plan['peak'] else 'bfloat16 matmul'})"
        if flops
        else NOT_MEASURED
    )
    said = (
        f"Shape {plan['shape']}; device {peak.get('device', NOT_MEASURED)}; torch"
        f" {torch.__version__}; peak {rate}; {plan['windows']} windows a step; recompute"
        f" {plan['recompute']}; compile {plan['compile']}; head {plan['head']}."
    )
    columns = ["arm", "tokens/s", "MFU", "peak memory, GiB", "micro_batch", "first loss", "note"]
    kernels = ["head kernel", "ms", "memory above its inputs, GiB", "loss", "note"]
    title = (
        "# The three arms on one GPU\n\nMade by `bench/gpu.py --markdown FILE`, whose head says"
        " what is measured."
    )
    return f"{title}\n\n{said}\n\n{table(columns, arms)}\n\n{table(kernels, heads)}\n"


def main() -> None:
    """Measures, then prints the page, and writes it as JSON and Markdown if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--device", choices=["cuda", "cpu"], default="cuda")
    option("--shape", choices=["paper", "tiny"], default="paper")
    option("--dataset", help="prepared text, if possible with SmolLM2's tokenizer (49,152 entries)")
    option("--peak-tflops", type=float, help="TFLOP/s that MFU is counted against")
    option("--recompute", type=int, default=1, help="recompute each n-th block; 0: none")
    option("--compile", action="store_true", help="torch.compile, a block at a time")
    option("--head", default="auto", choices=["auto", *KERNELS])
    option("--micro_batch", type=int, default=8, help="windows")
    option(
        "--windows", type=int, default=64, help="windows per step; one GPU has 8 x 8 in the paper"
    )
    option("--steps", type=int, default=5, help="largest number of steps after the first")
    option("--limit", type=float, default=90, help="seconds for each arm")
    option("--total", type=float, default=460, help="seconds in all")
    option("--out", type=Path, help="JSON")
    option("--markdown", type=Path)
    options = parser.parse_args()
    plan: Plan = {
        name: value
        for name, value in vars(options).items()
        if name not in ("limit", "total", "out", "markdown")
    }
    if options.device == "cuda" and not torch.cuda.is_available():
        tell(
            "PyTorch sees no GPU here, so nothing is measured; --device cpu --shape tiny tries the"
            " code"
        )
        results: dict[str, Any] = {"plan": plan, "arms": {}}
    else:
        results = measure_all(plan, options)
    text = page(results)
    for path, content in (
        (options.out, json.dumps(results, indent=1) + "\n"),
        (options.markdown, text),
    ):
        if path:
            path.write_text(content)
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], json.loads(Path(sys.argv[3]).read_text()), Path(sys.argv[4]))
    else:
        main()
