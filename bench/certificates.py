"""Measures time and peak memory of code certificates. Each certificate has its own process.

python bench/certificates.py
"""

import json
import subprocess
import sys

CASES = (
    ("gf2", 49_152, 2_048),
    ("ecc:width=64", 49_152, 2_048),
    ("random:width=64", 49_152, 2_048),
    ("gaussian:width=64", 49_152, 2_048),
    ("random:width=2048,values=pm1", 49_152, 2_048),
    ("gaussian:width=2048", 49_152, 2_048),
    ("binary", 262_144, 2_048),
    ("random", 262_144, 2_048),
)
CHILD = """
import json, resource, sys, time
from tokencodes.codes import InterfaceSpec, build_codebook
from tokencodes.codes.certificate import certify_code
began = time.perf_counter()
book = build_codebook(InterfaceSpec.parse(sys.argv[1]), int(sys.argv[2]))
certificate = certify_code(book, int(sys.argv[3]))
seconds = time.perf_counter() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, memory, certificate.minimum_distance, certificate.rank_real]))
"""


def main() -> None:
    """Prints one line for each case: seconds, peak MB, least distance and rank."""
    print(f"{'spec':30} {'V':>8} {'seconds':>8} {'peak MB':>8} {'least distance':>15} {'rank':>6}")
    for spec, vocab, width in CASES:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, spec, str(vocab), str(width)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, memory, distance, rank = json.loads(done.stdout)
        print(
            f"{spec:30} {vocab:8,} {seconds:8.1f} {memory:8,.0f} {distance:15.3f} {rank:6}",
            flush=True,
        )


if __name__ == "__main__":
    main()
