"""The outputs of our own model, computed before it leaves memory: logits of a few texts, greedy
continuations, and the rounding error of float32.

The texts are token ids from a fixed seed, with ids 0 and V-1 among them. If the checkpoint stores
its last step, windows of that step are added. So the texts include known and unknown ones.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokencodes.checkpoint import read_replay
from tokencodes.export.runtimes import Ids, Logits, Transformers
from tokencodes.model import TokenCodeForCausalLM
from tokencodes.verify import reference
from tokencodes.verify.check import drawn_ids
from tokencodes.verify.forward import logit_bound, shape_of, weights_of

STEPS = 64
PROMPT = 8
TRAINED = 2  # windows of the last step


@dataclass(frozen=True)
class Expected:
    """texts int64[N, T] and their logits float32[N, T, V]; the distance of the logits from the
    float64 reference, and the bound of that distance in float32.

    prompts int64[P, t]. tokens[p][s]: the most probable continuation. leads[p][s]: its logit minus
    the next logit.
    """

    texts: Ids
    logits: Logits
    from_reference: float
    bound: float
    prompts: Ids
    tokens: list[list[int]]
    leads: list[list[float]]

    @property
    def steps(self) -> int:
        """Number of tokens of each continuation."""
        return len(self.tokens[0])

    @property
    def longest(self) -> int:
        """Number of tokens that a runtime must hold at once."""
        return max(self.texts.shape[1], self.prompts.shape[1] + self.steps)


def expect(model: TokenCodeForCausalLM, place: Path) -> Expected:
    """Returns the outputs of a checkpoint's model, in float32 on the CPU."""
    runtime, texts = Transformers(model), _texts(model, place)
    logits = np.stack([runtime.logits(ids) for ids in texts])
    weights, shape = weights_of(model), shape_of(model)
    apart = largest = 0.0
    for ids, text_logits in zip(texts, logits, strict=True):
        exact = reference.forward(weights, shape, ids)
        apart = float(np.maximum(apart, np.abs(text_logits - exact).max()))  # NaN stays NaN
        largest = float(np.maximum(largest, np.abs(exact).max()))
    context = model.config.max_position_embeddings
    prompts = texts[[1, -1], : min(PROMPT, context // 2)]
    steps = min(STEPS, context - prompts.shape[1])
    decoded = [runtime.decoded(prompt, steps) for prompt in prompts]
    return Expected(
        texts,
        logits,
        apart,
        logit_bound(model, largest),
        prompts,
        [tokens for tokens, _ in decoded],
        [leads for _, leads in decoded],
    )


def _texts(model: TokenCodeForCausalLM, place: Path) -> Ids:
    drawn: NDArray[np.int64] = drawn_ids(model).numpy()
    replay = read_replay(place)
    if replay is None:
        return drawn
    rows = replay.ids[:, : drawn.shape[1]]
    # a packed window may end early, with no tokens after its end
    trained = rows[(rows >= 0).all(1)][:TRAINED]
    return np.concatenate([drawn, trained]) if trained.shape[1] == drawn.shape[1] else drawn
