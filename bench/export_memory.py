"""Measures the peak memory of an export of the paper's 1.7B shapes: resident bytes of all processes
of the export, less those of the interpreter.

    python bench/export_memory.py --work FOLDER [--to llama gguf onnx] [--tokenizer FILE]
    [--interface binary] [--layers 24]

Writes an untrained model into FOLDER (7 GB; kept for the next run) and exports it by the command.
Ten times a second it reads the resident set of the process and its children. Pages of mapped files
count too. The memory of the interpreter is that of the same command on a model of a few hundred
kilobytes. The limit is 1.2 of the plain Llama's float32 bytes. GGUF holds the vocabulary too, so it
needs --tokenizer with 49,152 tokens (SmolLM2's).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from tokencodes.codes import InterfaceSpec
from tokencodes.data.text import read_documents
from tokencodes.data.tokenizer import train_tokenizer
from tokencodes.init import initialise
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.train.corpus import resolve_inputs

SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
}


def make(folder: Path, config: TokenCodeConfig) -> int:
    """Writes an untrained model if none exists. Returns the bytes of the plain Llama."""
    with torch.device("meta"):
        model = TokenCodeForCausalLM(config)
    plain = 4 * (
        sum(parameter.numel() for parameter in model.parameters())
        + config.vocab_size * config.hidden_size
    )
    if (folder / "model.safetensors").is_file():
        return plain
    model.to_empty(device="cpu").input_interface.reset_buffers()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    initialise(model, 1)
    model.save_pretrained(folder)
    return plain


def resident(process: int) -> int:
    """Returns the resident bytes of a process and all its descendants."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total = int(line.split()[1]) * 1024
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(resident(int(child)) for child in (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return total
    return total


def peak(folder: Path, to: str) -> tuple[int, float, dict]:
    """Returns peak bytes, seconds and the JSON report of one export."""
    out = folder.with_name(f"{folder.name}-{to}")
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "tokencodes",
        "export",
        str(folder),
        "--to",
        to,
        "--out",
        str(out),
        "--json",
    ]
    began, most = time.monotonic(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        while process.poll() is None:
            most = max(most, resident(process.pid))
            time.sleep(0.1)
        report = process.stdout.read() if process.stdout else ""
    if process.returncode:
        sys.exit(f"failed: {' '.join(command)}")
    shutil.rmtree(out)
    return most, time.monotonic() - began, json.loads(report)


def main() -> None:
    """Prints one line for each format."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--to", nargs="*", default=["llama", "onnx"])
    parser.add_argument("--interface", default="binary")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--tokenizer", type=Path)
    options = parser.parse_args()
    if "gguf" in options.to and options.tokenizer is None:
        parser.error("--to gguf needs --tokenizer, one of as many tokens as --vocab-size")
    interface, vocab = options.interface, options.vocab_size
    if InterfaceSpec.parse(interface).learned:
        parser.error(
            "--interface learned: its table is among the parameters, so it would count twice"
        )
    config = TokenCodeConfig(
        **SHAPE, vocab_size=vocab, num_hidden_layers=options.layers, interface=interface
    )
    large, small = (
        options.work / f"large-{options.layers}-{vocab}-{interface}",
        options.work / f"tiny-{interface}",
    )
    weights = make(large, config)
    make(small, TokenCodeConfig(**SMALL, interface=interface))
    if options.tokenizer:
        shutil.copyfile(options.tokenizer, large / "tokenizer.json")
        texts = (
            document.text
            for document in read_documents(Path(resolve_inputs(("embedded:austen",))[0]))
        )
        train_tokenizer(texts, SMALL["vocab_size"], small / "tokenizer.json")
    for to in options.to:
        base = peak(small, to)[0]
        most, took, report = peak(large, to)
        above = most - base
        statuses = ", ".join(
            f"{runtime['runtime']} {runtime['status']}" for runtime in report["runtimes"]
        )
        print(
            f"{to:6} {weights / 1e9:.2f} GB of weights; peak {most / 1e9:.2f} GB, {above / 1e9:.2f}"
            f" above the interpreter's {base / 1e9:.2f}: {above / weights:.2f} of the weights;"
            f" {took:.0f} s; {statuses}"
        )


if __name__ == "__main__":
    main()
