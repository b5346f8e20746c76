"""The peers of `trainers.py`. Each peer runs in its own process, which does not import tokencodes:
python trainer_peers.py NAME FOLDER OUT.

FOLDER holds the shared files: plan.json (shape, recipe, learning rates, settings), windows.npy (the
ids int64[steps, G, T + 1] that our sampler drew), weights.safetensors (our initial weights, by
transformers' names). The peer may write into OUT. At the end OUT/watched.json has the losses, the
end of each step and the peak memory.
"""

import json
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset

Plan = dict[str, Any]
VERSIONS = ("torch", "transformers", "accelerate", "litgpt", "lightning", "tokencodes")


class Watch:
    """Records the end of each step, with a hook that torch calls after each optimizer's step. It
    works the same way in each trainer.
    """

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.losses: list[Tensor] = []
        self.trained = 0.0  # peak so far after the last step, before anything is saved
        register_optimizer_step_post_hook(self._note)

    def _note(self, *_: Any) -> None:
        self.stamps.append(time.perf_counter())
        self.trained = peak()

    def write(self, out: Path, **more: Any) -> None:
        """Writes watched.json: losses in nats per token, ends of steps in seconds, peak RSS in MB
        at the last step and now.
        """
        record = {
            "losses": [float(loss) for loss in self.losses],
            "stamps": self.stamps,
            "trained_mb": self.trained,
            "peak_mb": peak(),
            "threads": torch.get_num_threads(),
            "versions": {name: version(name) for name in VERSIONS if name in sys.modules},
        }
        (out / "watched.json").write_text(json.dumps({**record, **more}))


def peak() -> float:
    """Returns the peak RSS of this process in MB. The value of getrusage could be that of the
    parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


class Windows(Dataset):
    """One item is one window: its T + 1 ids."""

    def __init__(self, ids_NT1: np.ndarray) -> None:
        self.ids_NT1 = torch.from_numpy(ids_NT1)

    def __len__(self) -> int:
        return len(self.ids_NT1)

    def __getitem__(self, index: int) -> Tensor:
        return self.ids_NT1[index]


class LabelledWindows(Windows):
    """The same windows in the format of transformers: the first T ids are inputs, the last T are
    targets, already shifted.
    """

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.ids_NT1[index, 1:]
        return {"input_ids": self.ids_NT1[index, :-1], "labels": tokens, "shift_labels": tokens}


def transformers_trainer(
    plan: Plan, ids_UGT1: np.ndarray, weights: dict[str, Tensor], out: Path, watch: Watch
) -> None:
    """Trains LlamaForCausalLM with transformers' Trainer."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Watched(Trainer):
        """Uses our learning rates, and keeps the losses unchanged."""

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            rates = [rate / plan["peak_lr"] for rate in plan["rates"]]
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: rates[step]
            )
            return self.lr_scheduler

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            loss = super().training_step(*args, **kwargs)
            watch.losses.append(loss.clone())
            return loss

    settings, (beta1, beta2) = plan["settings"], plan["betas"]
    model = LlamaForCausalLM._from_config(
        LlamaConfig(**plan["shape"]), attn_implementation=settings["attention"]
    )
    model.load_state_dict(weights)
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=len(ids_UGT1),
        per_device_train_batch_size=ids_UGT1.shape[1],
        gradient_accumulation_steps=1,
        learning_rate=plan["peak_lr"],
        adam_beta1=beta1,
        adam_beta2=beta2,
        adam_epsilon=plan["eps"],
        weight_decay=plan["weight_decay"],
        max_grad_norm=plan["max_grad_norm"],
        optim=settings["optimizer"],
        torch_compile=settings["compile"],
        dataloader_num_workers=settings["workers"],
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Watched(
        model, arguments, train_dataset=LabelledWindows(ids_UGT1.reshape(-1, ids_UGT1.shape[-1]))
    )
    trainer.train()
    trainer.save_model(str(out / "model"))


def litgpt_weights(weights: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Returns our weights with litgpt's names, made by litgpt's own converter."""
    from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama

    converted: dict[str, Tensor] = {}
    copy_weights_hf_llama(config, {}, converted, weights)
    return converted


class Chunked(nn.Module):
    """litgpt's model with its own option of a head in chunks, unused in its pretraining."""

    def __init__(self, model: nn.Module, chunk: int) -> None:
        super().__init__()
        self.inner, self.chunk, self.config, self.max_seq_length = (
            model,
            chunk,
            model.config,
            model.max_seq_length,
        )

    def forward(self, ids_BT: Tensor) -> list[Tensor]:
        return self.inner(ids_BT, lm_head_chunk_size=self.chunk)


def litgpt_trainer(
    plan: Plan, ids_UGT1: np.ndarray, weights: dict[str, Tensor], out: Path, watch: Watch
) -> None:
    """Trains litgpt's GPT with `fit` of its pretraining. The setup follows litgpt's `main`."""
    import lightning
    from litgpt import pretrain
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    settings, shape, windows = plan["settings"], plan["shape"], ids_UGT1.shape[1]
    config = Config(
        name="peer",
        block_size=shape["max_position_embeddings"],
        padded_vocab_size=shape["vocab_size"],
        vocab_size=shape["vocab_size"],
        n_layer=shape["num_hidden_layers"],
        n_head=shape["num_attention_heads"],
        n_embd=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=shape["rms_norm_eps"],
        mlp_class_name="LLaMAMLP",
        rope_base=int(shape["rope_parameters"]["rope_theta"]),
    )

    def loss(logits: Tensor, tokens: Tensor, chunk_size: int = settings["loss_chunk"]) -> Tensor:
        value = chunked_cross_entropy(logits, tokens, chunk_size)
        if value.requires_grad and not value.is_meta:
            watch.losses.append(value.detach())
        return value

    pretrain.chunked_cross_entropy = loss  # the loop has no option for the chunk
    # its own starts at 0, one step behind ours
    pretrain.get_lr = lambda _, step, *rest: plan["rates"][step]
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="32-true")
    fabric.launch()
    with fabric.init_module(empty_init=True):
        model = GPT(config)
    model.load_state_dict(litgpt_weights(weights, config))
    model.reset_parameters()
    model = Chunked(model, settings["head_chunk"]) if settings["head_chunk"] else model
    model = fabric.setup(torch.compile(model) if settings["compile"] else model)
    optimizer = fabric.setup_optimizers(litgpt_optimizer(plan, model))
    loader = DataLoader(
        Windows(ids_UGT1.reshape(-1, ids_UGT1.shape[-1])), windows, num_workers=settings["workers"]
    )
    train, held_out = fabric.setup_dataloaders(loader, DataLoader(Windows(ids_UGT1[0]), windows))
    state = {
        "model": model,
        "optimizer": optimizer,
        "train_dataloader": train,
        "iter_num": 0,
        "step_count": 0,
    }
    never = 1 << 30
    arguments = TrainArgs(
        save_interval=None,
        log_interval=never,
        global_batch_size=windows,
        micro_batch_size=windows,
        max_tokens=len(ids_UGT1) * windows * shape["max_position_embeddings"],
        max_norm=plan["max_grad_norm"],
        lr_warmup_steps=0,
    )
    pretrain.fit(
        fabric,
        1,
        state,
        train,
        held_out,
        out,
        None,
        arguments,
        EvalArgs(never, max_iters=1, final_validation=False),
    )
    fabric.save(out / "lit_model.pth", state)


def litgpt_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    """Returns AdamW with our two groups. litgpt's own call would apply decay to all parameters and
    turn fused off on a CPU.
    """
    parameters = list(model.parameters())
    groups = [
        {
            "params": [parameter for parameter in parameters if parameter.dim() >= 2],
            "weight_decay": plan["weight_decay"],
        },
        {
            "params": [parameter for parameter in parameters if parameter.dim() < 2],
            "weight_decay": 0.0,
        },
    ]
    make = partial(
        torch.optim.AdamW, groups, lr=plan["peak_lr"], betas=tuple(plan["betas"]), eps=plan["eps"]
    )
    return make(**{plan["settings"]["optimizer"]: True})


def main() -> None:
    """Trains one peer and writes watched.json."""
    name, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    plan = json.loads((folder / "plan.json").read_text())
    plan["settings"] = plan["settings"][name]
    watch = Watch()
    ids_UGT1, weights = np.load(folder / "windows.npy"), load_file(folder / "weights.safetensors")
    {"transformers": transformers_trainer, "litgpt": litgpt_trainer}[name](
        plan, ids_UGT1, weights, out, watch
    )
    watch.write(out)


if __name__ == "__main__":
    main()
