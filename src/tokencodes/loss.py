"""Head and cross entropy, fused so that the logits (targets × V) never exist whole: one interface,
several kernels.

| kernel    | what it is                                    | runs on | matmul dtypes              |
|-----------|-----------------------------------------------|---------|----------------------------|
| `chunked` | ours, below                                   | any     | any                        |
| `torch`   | `torch.nn.functional`'s, in chunks (`_torch`) | any     | float32, float64           |
| `liger`   | liger-kernel                                  | CUDA    | float32, bfloat16, float16 |
| `cce`     | Apple's cut-cross-entropy                     | CUDA    | bfloat16, float16          |

Whatever the kernel: the matmul runs in the dtype of autocast (else of the hidden states); softmax,
logsumexp and the sum over targets in float32 or wider; the head's gradient is added up over targets
in float32 or wider. A kernel that cannot promise this for a dtype is refused for it: `torch` keeps
the sum and the head's gradient in the inputs' dtype (opened in 2.13: the loss of 16,384 targets
would have eight bits), and the release 25.1.1 of cut-cross-entropy adds up the head's gradient in
bfloat16. What a kernel hands over at the end is rounded once more to the dtype of the matmul by
`liger` and `cce`, as any matrix's gradient is under autocast; `chunked` hands it over in the head's
own dtype.

Nothing here was run or measured on a GPU.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tokencodes.errors import InputError, nearest

IGNORE = -100
# Logits that exist at a time. Every chunk reads the head and reads and writes its gradient, so few
# targets a chunk cost more than logits that leave the inner caches.
CHUNK_ENTRIES = 1 << 24  # 64 MiB in float32
# Targets of a chunk are a multiple of this, and its logits lie V × R: the matmul library is fastest
# at both. Head and loss of 2,048 targets (V = 49,152, d = 256, two cores) took 1.01 s with R × V
# logits and R = 341, 1.04 s with V × R, 0.87 s with V × R and R = 320.
ALIGNED = 64
# A GPU has no such cache to fit, and wants matmuls that fill it: 1,365 rows with V = 49,152, 256
# MiB of logits in float32 and half as much twice more in bfloat16. Reasoned, not measured on a GPU.
CUDA_CHUNK_ENTRIES = 1 << 26

REDUCED = (torch.bfloat16, torch.float16)
PACKAGES = {"liger": "liger_kernel", "cce": "cut_cross_entropy"}
PIP = {
    "liger": "pip install 'liger-kernel>=0.8.5'",
    "cce": "pip install 'cut-cross-entropy @ git+https://github.com/apple/ml-cross-entropy'",
}


def inputs_and_targets(ids_NT1: Tensor) -> tuple[Tensor, Tensor]:
    """Windows int64[N, T + 1] -> inputs and targets, int64[N, T] each.

    Where a window ends early it is filled with IGNORE: a target that counts for nothing, and no id,
    so that as an input it becomes 0; no position before it sees that.
    """
    return ids_NT1[:, :-1].clamp(min=0), ids_NT1[:, 1:]


def chunk_rows(h_ND: Tensor, head_VD: Tensor) -> int:
    """Targets of a chunk."""
    entries = CUDA_CHUNK_ENTRIES if h_ND.device.type == "cuda" else CHUNK_ENTRIES
    rows = entries // head_VD.shape[0]
    return max(1, rows - rows % ALIGNED if rows > ALIGNED else rows)


class _HeadCrossEntropy(torch.autograd.Function):
    """The gradient of cross entropy is known as soon as its logits are, so each chunk's gradients
    are computed in the forward pass and its logits are dropped. Nothing is recomputed; one gradient
    of the hidden states and one of the head are kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h_ND: Tensor,
        head_VD: Tensor,
        cast_VD: Tensor,
        targets_N: Tensor,
        rows: int,
        wants_gradient: bool,
    ) -> Tensor:
        """head_VD gets the gradient; cast_VD is the same in the dtype of h_ND, and is what is
        multiplied.
        """
        total = torch.zeros(
            (), dtype=torch.promote_types(h_ND.dtype, torch.float32), device=h_ND.device
        )
        grad_h_ND = torch.empty_like(h_ND) if wants_gradient else None
        grad_head_VD = torch.zeros_like(head_VD, dtype=total.dtype) if wants_gradient else None
        # One array of logits for all chunks: a new one for each would be new memory, which costs as
        # much as what is done in it.
        memory = torch.empty(
            min(rows, len(h_ND)) * len(head_VD), dtype=total.dtype, device=h_ND.device
        )
        for start in range(0, len(h_ND), rows):
            targets = targets_N[start : start + rows]
            ignored = targets == IGNORE
            # A target that does not count becomes zero before it is multiplied: D numbers to write,
            # not V; no NaN gets further.
            h = h_ND[start : start + rows].masked_fill(ignored[:, None], 0.0)
            picked = targets.masked_fill(ignored, 0)[None]
            logits_VR = memory[: len(head_VD) * len(h)].view(len(head_VD), len(h))
            if h.dtype == total.dtype:
                torch.mm(cast_VD, h.T, out=logits_VR)
            else:
                logits_VR.copy_(cast_VD @ h.T)
            of_target = logits_VR.gather(0, picked)
            top = logits_VR.amax(0, keepdim=True)
            # In place: the logits become exp(logits - top), then the gradient. Only one array of
            # this size exists.
            z = logits_VR.sub_(top).exp_().sum(0, keepdim=True)
            total += (z.log() + top - of_target).masked_fill_(ignored, 0.0).sum()
            if grad_h_ND is None or grad_head_VD is None:
                continue
            counts = (~ignored[None]).to(total.dtype)
            gradient_VR = logits_VR.mul_(counts / z).scatter_add_(0, picked, -counts).to(h.dtype)
            grad_h_ND[start : start + rows] = gradient_VR.T @ cast_VD
            if grad_head_VD.dtype == h.dtype:
                grad_head_VD.addmm_(gradient_VR, h)
            else:
                grad_head_VD += gradient_VR @ h
        if wants_gradient:
            ctx.save_for_backward(grad_h_ND, grad_head_VD)
            ctx.head_dtype, ctx.used = head_VD.dtype, False
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.used:
            raise RuntimeError(
                "a second backward pass through the same loss: compute it again, its gradients are"
                " used up"
            )
        grad_h_ND, grad_head_VD = ctx.saved_tensors
        ctx.used = True
        # In place: the head's gradient is as large as the head, and would exist twice while all
        # activations still do.
        return (
            grad_h_ND.mul_(grads[0]),
            grad_head_VD.mul_(grads[0]).to(ctx.head_dtype),
            None,
            None,
            None,
            None,
        )


def _chunked(h_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    wants_gradient = torch.is_grad_enabled() and (h_ND.requires_grad or head_VD.requires_grad)
    cast_VD = head_VD.detach().to(h_ND.dtype)
    total: Tensor = _HeadCrossEntropy.apply(
        h_ND, head_VD, cast_VD, targets_N, chunk_rows(h_ND, head_VD), wants_gradient
    )
    return total


def _without_ignored(h_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Hidden states that do not count as zeros: kernels that multiply them by a gradient of zero
    would let a NaN through.
    """
    return h_ND.masked_fill((targets_N == IGNORE)[:, None], 0.0)


def _torch(h_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions(
        batch_chunk_size=chunk_rows(h_ND, head_VD), chunking_method=None, acc_policy="compact"
    )
    if (
        not torch.is_grad_enabled()
    ):  # or it asks the tensors themselves, and computes gradients that nobody wants
        h_ND, head_VD = h_ND.detach(), head_VD.detach()
    h_ND, head_VD = _without_ignored(h_ND, targets_N), head_VD.to(h_ND.dtype)
    return F.linear_cross_entropy(
        h_ND, head_VD, targets_N, reduction="sum", ignore_index=IGNORE, options=options
    )


def _import(kernel: str, module: str) -> Any:
    """An optional package's module; InputError if it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"head kernel {kernel!r}: {error}; install it ({PIP[kernel]}), or use 'chunked' or"
            " 'auto'"
        ) from None


def _liger(h_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    fused = _import(
        "liger", "liger_kernel.transformers.functional"
    ).liger_fused_linear_cross_entropy
    if head_VD.requires_grad and not h_ND.requires_grad and torch.is_grad_enabled():
        # liger computes the head's gradient only where it computes that of the input
        h_ND = h_ND.detach().requires_grad_()
    h_ND, head_VD = _without_ignored(h_ND, targets_N), head_VD.to(h_ND.dtype)
    total: Tensor = fused(
        h_ND, head_VD, targets_N, ignore_index=IGNORE, reduction="sum", accum_dtype=torch.float32
    )
    return total


def _sums_in_float32(cce: Any) -> bool:
    """Whether this release of cut-cross-entropy can add up gradients in float32 (25.1.1, the newest
    on PyPI, cannot).
    """
    return "accum_c_fp32" in inspect.signature(cce.linear_cross_entropy).parameters


def _cce(h_ND: Tensor, head_VD: Tensor, targets_N: Tensor) -> Tensor:
    cce = _import("cce", "cut_cross_entropy")
    if not _sums_in_float32(cce):
        raise InputError(
            "head kernel 'cce': this release of cut-cross-entropy adds up the head's gradient in"
            f" bfloat16; take Apple's own ({PIP['cce']}), or use 'chunked' or 'auto'"
        )
    if not (
        targets_N != IGNORE
    ).any():  # nothing to launch a kernel for; empty sums, so that both gradients are zeros
        return h_ND[:0].float().sum() + head_VD[:0].float().sum()
    # No filter: it drops the gradient wherever a block's probabilities are below 2.4e-4, and at the
    # beginning of training, when all are about 1 / 49,152, that is everywhere but at the targets.
    total: Tensor = cce.linear_cross_entropy(
        h_ND,
        head_VD.to(h_ND.dtype),
        targets_N,
        ignore_index=IGNORE,
        reduction="sum",
        filter_eps=None,
        accum_e_fp32=True,
        accum_c_fp32=True,
    )
    return total


KERNELS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "chunked": _chunked,
    "torch": _torch,
    "liger": _liger,
    "cce": _cce,
}


def installed(kernel: str) -> bool:
    """Whether the package of `liger` or `cce` is there; nothing of it is imported."""
    return importlib.util.find_spec(PACKAGES[kernel]) is not None


def choose_kernel(kernel: str, device: str, dtype: torch.dtype) -> str:
    """The kernel that runs for this device type and dtype of the matmul: the asked one, or what
    `auto` stands for.

    InputError: an unknown name; a kernel that does not run there, or is not installed.
    """
    if kernel == "auto":
        return _automatic(device, dtype)
    if kernel not in KERNELS:
        raise InputError(
            f"head kernel {kernel!r}: no such kernel; {nearest(kernel, [*KERNELS, 'auto'])}"
        )
    if kernel in PACKAGES and device != "cuda":
        raise InputError(
            f"head kernel {kernel!r}: runs on CUDA only, and these tensors are on {device}; use"
            " 'chunked' or 'auto'"
        )
    if kernel in PACKAGES and not installed(kernel):
        raise InputError(
            f"head kernel {kernel!r}: not installed; {PIP[kernel]}, or use 'chunked' or 'auto'"
        )
    if not _promises(kernel, dtype):
        why = (
            "it would add up in that dtype"
            if kernel == "torch"
            else "it does not compute in that dtype"
        )
        name = str(dtype).removeprefix("torch.")
        raise InputError(
            f"head kernel {kernel!r}: not for a matmul in {name}: {why}; use 'chunked' or 'auto'"
        )
    return kernel


def _promises(kernel: str, dtype: torch.dtype) -> bool:
    """Whether a kernel keeps the promise at the top of this file for this dtype of the matmul."""
    refused = {"torch": REDUCED, "liger": (torch.float64,), "cce": (torch.float32, torch.float64)}
    return dtype not in refused.get(kernel, ())


def _automatic(device: str, dtype: torch.dtype) -> str:
    if device != "cuda":
        return "chunked"
    if _promises("liger", dtype) and installed("liger"):
        return "liger"
    if (
        _promises("cce", dtype)
        and installed("cce")
        and _sums_in_float32(_import("cce", "cut_cross_entropy"))
    ):
        return "cce"
    return "torch" if _promises("torch", dtype) else "chunked"


def _matmul_dtype(h_ND: Tensor) -> torch.dtype:
    """The dtype that `h @ head.T` would run in here: autocast's, where it is on (it leaves float64
    alone).
    """
    device = h_ND.device.type
    if h_ND.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return h_ND.dtype
    return torch.get_autocast_dtype(device)


def head_cross_entropy(
    h_ND: Tensor, head_VD: Tensor, targets_N: Tensor, kernel: str = "auto"
) -> Tensor:
    """Sum of the cross entropies (nats) of already shifted targets; targets of -100 do not count.

    h_ND: hidden states, head_VD: head weight, targets_N: int64. Scalar, float32 or wider; divide by
    the global number of targets, not by the micro_batch's. kernel: a name of the table above, or
    `auto`: on a CPU `chunked`; on CUDA the first of liger, cce, torch's own and `chunked` that is
    installed and keeps the promise for the dtype.

    InputError: an unknown kernel, or one that does not run here.
    """
    dtype, device = _matmul_dtype(h_ND), h_ND.device.type
    run = KERNELS[choose_kernel(kernel, device, dtype)]
    # Cast once, here, or autocast would cast the head again for every chunk.
    with torch.autocast(device, enabled=False):
        return run(h_ND.to(dtype), head_VD, targets_N)
