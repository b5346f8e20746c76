"""The model and the sampler of a run, and the hash that says that two runs began alike."""

import hashlib

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.data.dataset import Corpus
from tokencodes.data.mixture import build_sampler
from tokencodes.data.sampler import Sampler
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.train.config import RunConfig


def build_model(run: RunConfig, spec: InterfaceSpec, given: Given) -> TokenCodeForCausalLM:
    """The model of a run and its settled spec, not yet drawn; under `torch.device("meta")` it takes no memory."""
    told = run.model.model_dump(exclude={"context", "rope_theta", "init_std"})
    config = TokenCodeConfig(
        **told,
        vocab_size=run.data.vocab_size,
        max_position_embeddings=run.model.context,
        rope_parameters={"rope_type": "default", "rope_theta": run.model.rope_theta},
        initializer_range=run.model.init_std,
        interface=str(spec),
    )
    return TokenCodeForCausalLM(config, given)


def body_sha256(model: TokenCodeForCausalLM) -> str:
    """SHA-256 of every parameter but the input's, by name."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if not name.startswith("model.embed_tokens."):
            digest.update(name.encode() + parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def sampler_of(run: RunConfig, corpus: Corpus) -> Sampler:
    """Which windows the run sees of this text."""
    batch = run.batch
    return build_sampler(corpus, batch.sampling, run.model.context, run.seed, batch.streams, batch.windows_per_visit)
