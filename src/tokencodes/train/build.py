"""The model and the sampler of a run, the hash that says that two runs began alike, and the model
as its engine wants it.
"""

import hashlib
from contextlib import AbstractContextManager, nullcontext

import torch

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.data.dataset import Corpus
from tokencodes.data.mixture import build_sampler
from tokencodes.data.sampler import Sampler
from tokencodes.model import TokenCodeConfig, TokenCodeForCausalLM
from tokencodes.parallel import World, mesh_of, shard
from tokencodes.train.config import EngineConfig, RunConfig


def build_model(run: RunConfig, spec: InterfaceSpec, given: Given) -> TokenCodeForCausalLM:
    """The model of a run and its settled spec, not yet drawn; under `torch.device("meta")` it takes
    no memory.
    """
    values = run.model.model_dump(exclude={"context_length", "rope_theta", "init_std"})
    config = TokenCodeConfig(
        **values,
        vocab_size=run.data.vocab_size,
        max_position_embeddings=run.model.context_length,
        rope_parameters={"rope_type": "default", "rope_theta": run.model.rope_theta},
        initializer_range=run.model.init_std,
        interface=str(spec),
    )
    return TokenCodeForCausalLM(config, given)


def shard_and_move(model: TokenCodeForCausalLM, engine: EngineConfig, world: World) -> None:
    """Brings a drawn model onto its device and cuts it up as the engine says, in place. Before
    that, every rank holds it whole in the host's memory.
    """
    model.loss_kernel = engine.loss_kernel
    blocks = model.model.layers
    if engine.activation_checkpoint_every:
        model.activation_checkpointing_enable(
            {"use_reentrant": False}, every_n_layers=engine.activation_checkpoint_every
        )
    if engine.compile:
        for block in blocks:
            block.compile()
    low = engine.precision == "bf16-parameters"
    if world.ranks > 1 or low:
        # onto its device part by part
        shard(model, blocks, ("loss", "token_losses"), mesh_of(world, engine.sharding), low)
    model.to(world.device)


def autocast(engine: EngineConfig, world: World) -> AbstractContextManager[object]:
    """In which a loss is computed."""
    low = engine.precision == "bf16-autocast"
    return torch.autocast(world.device.type, dtype=torch.bfloat16) if low else nullcontext()


def matmul_dtype(engine: EngineConfig) -> torch.dtype:
    """In which matrices are multiplied."""
    return torch.float32 if engine.precision == "float32" else torch.bfloat16


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
    return build_sampler(
        corpus,
        batch.sampling,
        run.model.context_length,
        run.seed,
        batch.streams,
        batch.windows_per_visit,
    )
