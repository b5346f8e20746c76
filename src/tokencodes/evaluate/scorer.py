"""Requests -> log-probabilities, by any transformers causal LM: planned, packed, resumable.

Scores are a function of the model, the set of requests and the recorded batch size: order,
interruption and what else was asked before change no bit on one machine. Log-softmax in float32,
whatever the model computes in.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from tokencodes.errors import CheckFailed
from tokencodes.evaluate.journal import Answer, Journal, noted_batch
from tokencodes.evaluate.packed import Packed, Rows, Unsupported
from tokencodes.evaluate.plan import Pass, Plan, make_plan
from tokencodes.evaluate.requests import Request

CPU_BATCH, CUDA_BATCH = 1024, 32768  # tokens of a pass: the first, and the largest that is tried
AGREE, AGREE_REDUCED = 1e-3, 0.25  # logits of packed and own forward, by dtype: float32, or less

# requests done, of how many, requests a second, seconds left
Progress = Callable[[int, int, float, float], None]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Score:
    """The log-probability of each scored token in nats, float32[scored]; and whether each was the
    most likely one (the first of those that are equally likely).
    """

    log_probs: Floats
    greedy: bool

    @property
    def total(self) -> float:
        """Log-probability of all scored tokens together."""
        return float(self.log_probs.sum(dtype=np.float64))


def no_progress(done: int, of: int, rate: float, left: float) -> None:
    """Tells nobody."""


class Scorer:
    """A model that answers requests.

    batch_tokens: tokens of a pass; by default what suits the device. journal: a folder where passes
    are noted as they are done, so that a killed evaluation goes on. fingerprint: what tells this
    model from others there.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        batch_tokens: int | None = None,
        journal: Path | None = None,
        fingerprint: str = "",
        progress: Progress = no_progress,
    ) -> None:
        self.model = model.eval()
        self.shared, self.how = self._can_be_packed()
        self.journal, self.progress = journal, progress
        # As an evaluation was begun, whatever memory is free now: another batch size would be
        # another plan.
        self.batch_tokens = batch_tokens or noted_batch(journal) or self._fitting()
        kind = (
            f"{model.device.type} {model.dtype} {torch.__version__} {torch.get_num_threads()}"
            f" {fingerprint}"
        )
        self._kind = hashlib.sha256(kind.encode()).hexdigest()
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.computed = 0  # tokens so far

    def score(self, requests: Sequence[Request]) -> list[Score]:
        """The score of each request. CheckFailed where a log-probability is not finite, or a token
        was not scored.
        """
        plan, item_of = make_plan(
            [(request.tokens, request.scored) for request in requests],
            self.batch_tokens,
            self.shared,
        )

        def fail(item: int, what: str) -> CheckFailed:
            source = requests[int(np.flatnonzero(item_of == item)[0])].source
            return CheckFailed(
                f"{source.task}, document {source.document}, part {source.part}: {what}"
            )

        log_probs = [np.full(scored, np.nan, dtype=np.float32) for _, scored in plan.items]
        greedy = np.ones(len(plan.items), dtype=bool)
        name, sizes = (
            f"{self._kind[:16]}-{plan.sha256[:16]}",
            [len(plan_pass.items) for plan_pass in plan.passes],
        )
        with Journal(self.journal, name, self.batch_tokens, sizes) as journal:
            for number, (pass_log_probs, best) in enumerate(
                self._passes(plan, journal, np.bincount(item_of))
            ):
                plan_pass = plan.passes[number]
                if not np.isfinite(pass_log_probs).all():
                    raise fail(
                        self._culprit(plan, plan_pass.items[~np.isfinite(pass_log_probs)]),
                        "a log-probability is not finite; this model's logits are NaN or infinite"
                        " there, so no score of it can be believed",
                    )
                for item, place, value in zip(
                    plan_pass.items, plan_pass.places, pass_log_probs, strict=True
                ):
                    log_probs[item][place] = value
                np.logical_and.at(greedy, plan_pass.items, best)
        for item, values in enumerate(log_probs):
            if np.isnan(values).any():
                raise fail(
                    item,
                    "a token has no log-probability after all passes; this is a fault of the plan",
                )
        return [Score(log_probs[item], bool(greedy[item])) for item in item_of]

    def _passes(
        self, plan: Plan, journal: Journal, request_counts: NDArray[np.int64]
    ) -> Iterator[Answer]:
        """Log-probabilities and whether they are the best, float32[A] and bool[A], of each pass:
        noted ones, or computed.
        """
        needed = _needed(plan, journal.done)
        forward = Packed(self.model) if self.shared else Rows(self.model)
        finished = _finished(plan, request_counts)
        began, computed, ahead = (
            time.monotonic(),
            0,
            sum(plan.passes[number].size for number in needed),
        )
        answered, done, of = 0, 0, int(finished.sum())
        for number, plan_pass in enumerate(plan.passes):
            done += int(finished[number])
            if number not in needed:
                yield journal.done[number]
                continue
            answer = self._answers(forward, plan_pass)
            computed, self.computed = computed + plan_pass.size, self.computed + plan_pass.size
            if number not in journal.done:
                answered += int(finished[number])
                if np.isfinite(answer[0]).all():
                    journal.note(number, answer)
            took = time.monotonic() - began
            self.progress(done, of, answered / took, took / computed * (ahead - computed))
            yield journal.done.get(number, answer)

    @torch.no_grad()
    def _answers(self, forward: Packed | Rows, plan_pass: Pass) -> Answer:
        """CheckFailed if the model gave no logits for a row that is asked for."""
        rows, place = np.unique(plan_pass.rows, return_inverse=True)
        device = self.model.device
        log_probs, best = (
            np.full(len(place), np.nan, dtype=np.float32),
            np.zeros(len(place), dtype=bool),
        )
        begin = 0
        for logits_RV in forward.logits(plan_pass, torch.from_numpy(rows).to(device)):
            here = np.flatnonzero((place >= begin) & (place < begin + len(logits_RV)))
            row = torch.from_numpy(place[here] - begin).to(device)
            target = torch.from_numpy(plan_pass.targets[here]).to(device)
            log_probs[here], best[here] = (
                tensor.cpu().numpy() for tensor in _judge(logits_RV, row, target)
            )
            begin += len(logits_RV)
        if begin != len(rows):
            raise CheckFailed(
                f"the model gave logits after {begin:,} tokens of a pass, and {len(rows):,} were"
                " asked for"
            )
        return log_probs, best

    @torch.no_grad()
    def _culprit(self, plan: Plan, items: NDArray[np.int64]) -> int:
        """The first of some items that is not finite by itself: where pieces are packed, a NaN
        spreads to its neighbours.
        """
        for item in np.unique(items):
            ids = torch.from_numpy(plan.items[item][0][:-1].astype("int64"))[None].to(
                self.model.device
            )
            if not torch.isfinite(self.model(input_ids=ids, use_cache=False).logits).all():
                return int(item)
        return int(items[0])

    def _can_be_packed(self) -> tuple[bool, str]:
        """Whether attention of this model can be packed: branches are computed so, and by its own
        forward.
        """
        vocab = int(self.model.config.get_text_config().vocab_size)
        trunk = np.arange(7, 40) % vocab
        tails = ([1, 2, 3], [1, 2, 4, 5], [2, 6], [3, 9, 10, 11, 12], [4, 1], [5, 1, 1])
        sequences = [
            (np.concatenate([trunk, np.array(tail) % vocab]).astype(np.uint32), 1) for tail in tails
        ]
        plan, _ = make_plan(sequences, 32)  # too few for all, so that the trunk is kept
        worst, packed = 0.0, Packed(self.model)
        try:
            with torch.no_grad():
                for plan_pass in plan.passes:
                    rows = torch.from_numpy(plan_pass.rows).to(self.model.device)
                    for item, logits_V in zip(
                        plan_pass.items,
                        [row for part in packed.logits(plan_pass, rows) for row in part],
                        strict=True,
                    ):
                        ids = torch.from_numpy(plan.items[item][0][:-1].astype("int64"))[None].to(
                            self.model.device
                        )
                        own_V = self.model(input_ids=ids, use_cache=False).logits[0, -1].float()
                        apart = float((own_V - logits_V).abs().max())
                        # max() passes over NaN
                        worst = max(worst, apart if np.isfinite(apart) else np.inf)
        except (Unsupported, AttributeError, IndexError, TypeError) as error:
            return False, f"a row for each request, nothing shared ({error})"
        if not worst <= (AGREE if self.model.dtype == torch.float32 else AGREE_REDUCED):
            return (
                False,
                (
                    "a row for each request, nothing shared (packed logits would differ by"
                    f" {worst:.2g})"
                ),
            )
        return True, "packed, common beginnings computed once"

    def _fitting(self) -> int:
        """Tokens of a pass: on a GPU the most that fit, of powers of two."""
        if self.model.device.type != "cuda":
            return CPU_BATCH
        batch = CUDA_BATCH
        while batch > 1024:
            try:
                # no two parts alike
                ids = np.random.default_rng(0).integers(0, 100, batch, dtype=np.uint32)
                plan, _ = make_plan(
                    [(part, len(part) - 1) for part in np.array_split(ids, batch // 512)],
                    batch,
                    False,
                )
                with torch.no_grad():
                    for plan_pass in plan.passes:
                        self._answers(
                            Packed(self.model) if self.shared else Rows(self.model), plan_pass
                        )
                return batch
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                batch //= 2
        return batch


def _judge(logits_RV: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of targets[A] after rows[A], and whether each is the first of the most
    likely. Overwrites the logits.
    """
    top_R = logits_RV.amax(-1)
    of_target = logits_RV[rows, targets]
    best = of_target == top_R[rows]
    for number in best.nonzero()[:, 0].tolist():  # of equals the first counts, as argmax has it
        row, target = rows[number], int(targets[number])
        best[number] = target == 0 or bool((logits_RV[row, :target] < top_R[row]).all())
    total_R = logits_RV.sub_(top_R[:, None]).exp_().sum(-1)
    return of_target - top_R[rows] - total_R[rows].log(), best


def _needed(plan: Plan, done: dict[int, Any]) -> set[int]:
    """Passes to compute: those not done, and those whose kept keys and values they continue."""
    needed = set(range(len(plan.passes))) - done.keys()
    for number in sorted(needed, reverse=True):
        for piece in plan.passes[number].pieces:
            above = piece.continues
            while above is not None:
                needed.add(above.number)
                above = above.continues
    return needed


def _finished(plan: Plan, request_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many requests get the last of their answer in each pass."""
    last = np.zeros(len(plan.items), dtype=np.int64)
    for number, plan_pass in enumerate(plan.passes):
        last[plan_pass.items] = number
    return np.bincount(last, weights=request_counts, minlength=len(plan.passes)).astype(np.int64)
