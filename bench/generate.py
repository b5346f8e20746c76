"""Compares greedy generation by our model with transformers' own Llama of the same shape and
weights, in tokens per second. The two models run in turn.

    OMP_WAIT_POLICY=PASSIVE python bench/generate.py [--interface binary] [--shape nano 135m]
    [--rounds 9] [--new 64]

Both use transformers' `generate` with its cache. The weights of body and head are the same tensors.
The input stage is timed separately, in microseconds: for one token, and for a prompt.
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
    """Returns our model, and a plain Llama with the same tensors and our input as a table."""
    values = {**SHAPES[shape], "max_position_embeddings": 2048}
    ours = TokenCodeForCausalLM(TokenCodeConfig(**values, interface=interface))
    initialise(ours, 1)
    with torch.device("meta"):
        llama = LlamaForCausalLM(
            LlamaConfig(
                **values,
                rms_norm_eps=1e-5,
                tie_word_embeddings=False,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    weights = {
        name: value
        for name, value in ours.state_dict().items()
        if not name.startswith("model.embed_tokens.")
    }
    llama.load_state_dict(
        {**weights, "model.embed_tokens.weight": ours.input_interface.materialize()}, assign=True
    )
    llama.model.rotary_emb = ours.model.rotary_emb
    return ours.eval(), llama.eval()


def microseconds(module: torch.nn.Module, ids: torch.Tensor, calls: int = 200) -> float:
    """Returns the microseconds of one call of an input stage: the median of nine measurements."""
    with torch.no_grad():
        return 1e6 * statistics.median(
            seconds(lambda: [module(ids) for _ in range(calls)]) / calls for _ in range(9)
        )


def main() -> None:
    """Prints one line for each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interface", default="binary")
    parser.add_argument("--shape", nargs="*", default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new", type=int, default=64)
    options = parser.parse_args()
    print(
        f"{options.interface}, {options.new} tokens after {PROMPT}, float32,"
        f" {torch.get_num_threads()} threads"
    )
    for shape in options.shape:
        print(line(shape, options.interface, options.rounds, options.new))


def line(shape: str, interface: str, rounds: int, new: int) -> str:
    """Measures one shape. Returns its line of results."""
    ours, llama = both(shape, interface)
    ids = torch.randint(
        1, SHAPES[shape]["vocab_size"], (1, PROMPT), generator=torch.Generator().manual_seed(0)
    )
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.ones_like(ids)
    assert torch.equal(ours.generate(ids, **options), llama.generate(ids, **options))
    times = paired(
        lambda: llama.generate(ids, **options), lambda: ours.generate(ids, **options), rounds
    )
    token_us = [microseconds(model.model.embed_tokens, ids[:, :1]) for model in (ours, llama)]
    prompt_us = [
        microseconds(model.model.embed_tokens, ids.repeat(1, 16)) for model in (ours, llama)
    ]
    return (
        f"{shape:6} ours {new / times.b:8.1f} tokens/s, Llama {new / times.a:8.1f}; ratio"
        f" {times.ratio:.3f} ({times.low:.3f} to {times.high:.3f}); input stage {token_us[0]:.0f}"
        f" against {token_us[1]:.0f} us a token, {prompt_us[0]:.0f} against"
        f" {prompt_us[1]:.0f} us for {PROMPT * 16}"
    )


if __name__ == "__main__":
    main()
