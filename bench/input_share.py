"""Measures what the input costs in a training step: forward, backward, clipping and optimizer,
learned against fixed, in milliseconds.

    python bench/input_share.py [--preset quickstart] [--runs 9] [--set model.hidden_size=256 ...]

The whole step is timed as the trainer does it. The parts of the input are timed on tensors of its
own shapes: the lookup (for a learned table also the sum of its gradient), its part of the gradient
norm and scaling, and its AdamW step.
"""

import argparse
import statistics

import torch
from timing import seconds

from tokencodes.init import initialise
from tokencodes.train.build import build_model
from tokencodes.train.interface import resolve
from tokencodes.train.optimizer import build_optimizer
from tokencodes.train.settings import read_study


def median_ms(work, runs: int) -> float:
    """Returns the median milliseconds of the runs after one warm-up."""
    work()
    return 1e3 * statistics.median(seconds(work) for _ in range(runs))


def parts(model, config, ids: torch.Tensor, runs: int) -> dict[str, float]:
    """Returns the milliseconds of each part of the input."""
    interface = model.input_interface
    table = list(interface.parameters())
    milliseconds = {"forward": 0.0, "backward": 0.0, "clipping": 0.0, "optimizer": 0.0}
    with torch.no_grad():
        milliseconds["forward"] = median_ms(lambda: interface(ids), runs)
    if not table:
        return milliseconds
    out = interface(ids)
    upstream = torch.randn_like(out)

    def backward() -> None:
        table[0].grad = None
        out.backward(upstream, retain_graph=True)

    milliseconds["backward"] = median_ms(backward, runs)
    milliseconds["clipping"] = median_ms(
        lambda: torch.nn.utils.clip_grad_norm_(table, config.max_grad_norm), runs
    )
    optimizer = torch.optim.AdamW(table, lr=1e-6, fused=True)
    milliseconds["optimizer"] = median_ms(optimizer.step, runs)
    return milliseconds


def step_ms(model, config, ids: torch.Tensor, tokens: torch.Tensor, runs: int) -> float:
    """Returns the milliseconds of a whole step of one micro batch."""
    optimizer = build_optimizer(model, config)

    def step() -> None:
        model.loss(ids, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return median_ms(step, runs)


def main() -> None:
    """Prints one line for each arm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    study, _ = read_study(options.preset, options.set)
    shape = (study.batch.micro_batch_size, study.model.context_length + 1)
    ids = torch.randint(0, study.data.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    shown = study.model
    size = f"V {study.data.vocab_size:,}, d {shown.hidden_size}, {shown.num_hidden_layers} blocks"
    print(f"{size}, {shape[0]} x {shape[1] - 1} tokens, {torch.get_num_threads()} threads")
    print("arm          step ms   forward  backward  clipping  optimizer  input share")
    for arm in study.arms:
        run = study.run(arm, 1)
        spec, given = resolve(run.interface, None)
        model = build_model(run, spec, given)
        initialise(model, 1)
        milliseconds = parts(model, run.optimizer, ids[:, :-1], options.runs)
        whole = step_ms(model, run.optimizer, ids[:, :-1], ids[:, 1:], options.runs)
        cells = " ".join(
            f"{milliseconds[key]:{9 if key != 'optimizer' else 10}.2f}" for key in milliseconds
        )
        print(
            f"{arm:10} {whole:9.1f} {cells} {100 * sum(milliseconds.values()) / whole:11.1f} %",
            flush=True,
        )


if __name__ == "__main__":
    main()
