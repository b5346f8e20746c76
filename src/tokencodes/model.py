"""transformers' Llama with one module replaced: `model.embed_tokens` is an input interface. Nothing
else differs.

So generation, KV cache, PEFT and every tool for Llama work as they are, and "only the input
interface differs" can be read in this file. Paper: sections "Interfaces", "Body and recipe".
"""

from typing import Any, NoReturn

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tokencodes.codes import InterfaceSpec
from tokencodes.codes.codebook import Given
from tokencodes.errors import InputError
from tokencodes.interfaces import (
    TIED,
    InputInterface,
    build_interface,
    refuse_resize,
    refuse_tied_head,
)
from tokencodes.loss import IGNORE, head_cross_entropy


@strict
class TokenCodeConfig(LlamaConfig):
    """A Llama configuration with `interface`, a SPEC, and the hash of its codebook (None for a
    learned table).
    """

    model_type = "tokencode"

    interface: str = "learned"
    spec_sha256: str | None = None
    codebook_sha256: str | None = None
    tokenizer_sha256: str | None = None  # of the tokenizer.json that made the ids it was trained on
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0

    def __setattr__(self, key: str, value: Any) -> None:
        """The head stays its own, however a configuration is changed: a tied head would train the
        input.
        """
        if key == "tie_word_embeddings" and value:
            raise InputError(TIED)
        super().__setattr__(key, value)

    def __post_init__(self, **kwargs: Any) -> None:
        """The shapes must fit."""
        if (
            self.hidden_size % self.num_attention_heads
            or self.hidden_size // self.num_attention_heads % 2
        ):
            raise InputError(
                f"hidden_size {self.hidden_size} over {self.num_attention_heads} heads gives heads"
                f" of {self.hidden_size / self.num_attention_heads:g}; rotary positions need an"
                " even whole number"
            )
        super().__post_init__(**kwargs)


class TokenCodeForCausalLM(LlamaForCausalLM):
    """Llama with an untied head and an input interface."""

    config_class = TokenCodeConfig
    config: TokenCodeConfig
    _tied_weights_keys: dict[str, str] = {}  # noqa: RUF012 (transformers reads it from the class)
    # how `loss` computes head and cross entropy (see `tokencodes.loss`); no part of what is saved
    loss_kernel: str = "auto"

    def __init__(self, config: TokenCodeConfig, given: Given | None = None) -> None:
        """`given`: the arrays that the spec names by hash, for a new model; a saved one has them in
        its file.
        """
        super().__init__(config)
        spec = InterfaceSpec.parse(config.interface)
        interface = build_interface(
            spec, config.vocab_size, config.hidden_size, config.codebook_sha256, given
        )
        self.model.embed_tokens = interface
        sha256 = spec.sha256(config.vocab_size, config.hidden_size)
        if config.spec_sha256 not in (None, sha256):
            raise InputError(
                f"spec_sha256 {config.spec_sha256[:12]} is not that of {str(spec)!r}"
                f" ({sha256[:12]}): the configuration was changed by hand; take the one that was"
                " saved with the weights"
            )
        config.spec_sha256, config.codebook_sha256 = sha256, interface.sha256

    @property
    def input_interface(self) -> InputInterface:
        """The interface, typed."""
        return self.model.embed_tokens

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: a fixed code belongs to its vocabulary."""
        refuse_resize()

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """Ties nothing. InputError where the head was tied by hand."""
        refuse_tied_head(self)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As transformers'. InputError, and nothing is written, where the head was tied by hand: it
        could not be loaded.
        """
        refuse_tied_head(self)
        super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for what a file did not bring; a table's weight then raises in
        # from_pretrained.
        if isinstance(module, InputInterface):
            module.reset_buffers()
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As transformers', and stricter: every weight must come from the file, and the codebook
        must be the spec's.
        """
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        wrong = [
            *info["missing_keys"],
            *(str(key) for key in info["mismatched_keys"]),
            *info["unexpected_keys"],
        ]
        if wrong:
            raise InputError(
                f"{args[0] if args else 'checkpoint'}: {len(wrong)} weights are missing,"
                f" superfluous or of another shape ({', '.join(sorted(wrong)[:3])}); take a"
                " complete copy of the folder"
            )
        model.input_interface.check()
        return (model, info) if output_loading_info else model

    def loss(self, ids_BT: Tensor, targets_BT: Tensor, num_targets: int | None = None) -> Tensor:
        """Mean cross entropy (nats per token) of targets that are already shifted; -100 does not
        count.

        num_targets: what to divide the sum by, for a batch that comes in parts; by default this
        part's own count.
        """
        h_BTD = self.model(input_ids=ids_BT, use_cache=False).last_hidden_state
        total = head_cross_entropy(
            h_BTD.flatten(0, 1), self.lm_head.weight, targets_BT.flatten(), self.loss_kernel
        )
        return total / (num_targets if num_targets is not None else (targets_BT != IGNORE).sum())

    @torch.no_grad()
    def token_losses(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross entropy of each target token, nats, [B, T]. Logits exist whole here: for few
        tokens, looked at one by one.
        """
        logits_BTV = self(ids_BT, use_cache=False).logits.float()
        return F.cross_entropy(
            logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none"
        ).view(targets_BT.shape)


AutoConfig.register("tokencode", TokenCodeConfig)
AutoModelForCausalLM.register(TokenCodeConfig, TokenCodeForCausalLM)
