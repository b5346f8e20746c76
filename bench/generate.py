"""Greedy generation by our model against transformers' own Llama of the same shape and weights,
tokens a second, in turn.

    OMP_WAIT_POLICY=PASSIVE python bench/generate.py [--interface binary] [--shape nano 135m]
    [--rounds 9] [--new 64]

Both go through transformers' `generate` with its cache; the weights of body and head are the same
tensors. The input stage is timed apart: one token, and a prompt, in microseconds.
"""

import argparse
import statistics

import torch
from timing import paired, seconds
from transformers import LlamaConfig, LlamaForCausalLM

from tokencodes.init import initialise
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM

SHAPES = {
    "nano": {
        "vocab_size": 3072,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
    },
    "135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
    },
}
PROMPT = 16


def both(shape: str, interface: str) -> tuple[TokenCodeForCausalLM, LlamaForCausalLM]:
    """Our model, and a plain Llama on the same tensors with the input written out."""
    told = {**SHAPES[shape], "max_position_embeddings": 2048}
    ours = TokenCodeForCausalLM(TokenCodeConfig(**told, interface=interface))
    initialise(ours, 1)
    with torch.device("meta"):
        theirs = LlamaForCausalLM(
            LlamaConfig(
                **told, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0
            )
        )
    weights = {
        name: value
        for name, value in ours.state_dict().items()
        if not name.startswith("model.embed_tokens.")
    }
    theirs.load_state_dict(
        {**weights, "model.embed_tokens.weight": ours.input_interface.materialize()}, assign=True
    )
    theirs.model.rotary_emb = ours.model.rotary_emb
    return ours.eval(), theirs.eval()


def microseconds(module: torch.nn.Module, ids: torch.Tensor, calls: int = 200) -> float:
    """One call of an input stage, a median of nine."""
    with torch.no_grad():
        return 1e6 * statistics.median(
            seconds(lambda: [module(ids) for _ in range(calls)]) / calls for _ in range(9)
        )


def main() -> None:
    """Prints a line a shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interface", default="binary")
    parser.add_argument("--shape", nargs="*", default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new", type=int, default=64)
    asked = parser.parse_args()
    print(
        f"{asked.interface}, {asked.new} tokens after {PROMPT}, float32, {torch.get_num_threads()}"
        " threads"
    )
    for shape in asked.shape:
        print(line(shape, asked.interface, asked.rounds, asked.new))


def line(shape: str, interface: str, rounds: int, new: int) -> str:
    """What one shape gives."""
    ours, theirs = both(shape, interface)
    ids = torch.randint(
        1, SHAPES[shape]["vocab_size"], (1, PROMPT), generator=torch.Generator().manual_seed(0)
    )
    told = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    told["attention_mask"] = torch.ones_like(ids)
    assert torch.equal(ours.generate(ids, **told), theirs.generate(ids, **told))
    found = paired(lambda: theirs.generate(ids, **told), lambda: ours.generate(ids, **told), rounds)
    one = [microseconds(model.model.embed_tokens, ids[:, :1]) for model in (ours, theirs)]
    many = [microseconds(model.model.embed_tokens, ids.repeat(1, 16)) for model in (ours, theirs)]
    return (
        f"{shape:6} ours {new / found.b:8.1f} tokens/s, Llama {new / found.a:8.1f}; ratio"
        f" {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}); input stage {one[0]:.0f}"
        f" against {one[1]:.0f} us a token, {many[0]:.0f} against {many[1]:.0f} us for"
        f" {PROMPT * 16}"
    )


if __name__ == "__main__":
    main()
