"""Compares the forward of the paper's input interfaces with `nn.Embedding`: V 49,152, d 2,048,
8 x 2,048 ids.

python bench/input_forward.py [--runs 15]
"""

import argparse
import resource

import torch
from timing import paired
from torch import nn

from tokencodes import InterfaceSpec, build_interface

VOCAB, WIDTH, BATCH, CONTEXT = 49_152, 2_048, 8, 2_048
SPECS = (
    "binary",
    "gf2",
    "binary:values=pm1",
    "gf2:lift=interleave",
    "random:width=64,values=pm1",
    "gf2:storage=computed",
    "gaussian",
)


def main() -> None:
    """Prints milliseconds and the ratio for each dtype and interface, then the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    ids = torch.randint(0, VOCAB, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(0))
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; ratio = interface /"
        f" nn.Embedding, paired, {runs} pairs"
    )
    print(f"{'dtype':10} {'interface':28} {'ms':>8} {'Embedding ms':>13} {'ratio':>7}  range")
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            table = nn.Embedding(VOCAB, WIDTH).to(dtype)
            for spec in SPECS:
                code = build_interface(InterfaceSpec.parse(spec), VOCAB, WIDTH).to(dtype)
                times = paired(lambda: code(ids), lambda: table(ids), runs)  # noqa: B023 (used at once)
                print(
                    f"{str(dtype)[6:]:10} {spec:28} {1e3 * times.a:8.1f} {1e3 * times.b:13.1f}"
                    f" {times.ratio:7.3f}  {times.low:.3f} to {times.high:.3f}",
                    flush=True,
                )
    print(
        f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB"
    )


if __name__ == "__main__":
    main()
