"""The model as lm-eval sees it. Every answer is kept with its request, for the audit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM

from tokencodes.errors import InputError
from tokencodes.evaluate.requests import (
    CHOICE,
    ROLLING,
    Request,
    RequestSource,
    pair_requests,
    rolling_requests,
)
from tokencodes.evaluate.scorer import Score, Scorer
from tokencodes.evaluate.texts import Texts


class LanguageModel(TemplateLM):
    """Answers log-likelihood requests by a `Scorer`; nothing is generated.

    limit: tokens that are read at once. prefix: the token that stands for an empty context, None
    for none. chosen: where only some documents of a task are scored, their numbers, by task;
    lm-eval counts anew from 0.
    """

    def __init__(
        self,
        scorer: Scorer,
        texts: Texts,
        limit: int,
        prefix: int | None,
        chosen: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        self.scorer, self.texts, self.limit, self.prefix = scorer, texts, limit, prefix
        self.chosen = chosen or {}
        self.answered: list[tuple[Request, Score]] = []

    @property
    def eot_token_id(self) -> int:
        """lm-eval's prefix token."""
        return -1 if self.prefix is None else self.prefix

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of one text."""
        ids = (
            self.texts.plain(string)
            if add_special_tokens is False
            else self.texts.encode([string])[0]
        )
        return [int(id) for id in ids]

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """See lm-eval. `requests` are its Instances."""
        sources = [self._source(request, request.idx, CHOICE) for request in requests]
        pairs = [request.args for request in requests]
        return [
            (score.total, score.greedy)
            for score in self._answer(
                pair_requests(pairs, sources, self.texts, self.limit, self.prefix)
            )
        ]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """See lm-eval."""
        sources = [self._source(request, 0, ROLLING) for request in requests]
        texts = [request.args[0] for request in requests]
        windows = rolling_requests(texts, sources, self.texts, self.limit, self.prefix)
        totals: dict[tuple[str, int], float] = {}
        for window, score in zip(windows, self._answer(windows), strict=True):
            key = (window.source.task, window.source.document)
            totals[key] = totals.get(key, 0.0) + score.total
        return [totals[source.task, source.document] for source in sources]

    def _source(self, instance: Any, part: int, kind: str) -> RequestSource:
        task, number = instance.task_name or "", instance.doc_id or 0
        return RequestSource(
            task, self.chosen[task][number] if task in self.chosen else number, part, kind
        )

    def _answer(self, requests: list[Request]) -> list[Score]:
        scores = self.scorer.score(requests)
        self.answered.extend(zip(requests, scores, strict=True))
        return scores

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """The same from ids, for callers of lm-eval's own methods."""
        token_requests = []
        for number, (_, context, scored) in enumerate(requests):
            if len(scored) > self.limit:
                raise InputError(
                    f"request {number}: {len(scored)} tokens to score, and the model reads"
                    f" {self.limit}"
                )
            dropped = max(0, len(context) + len(scored) - (self.limit + 1))
            ids = [np.array(tokens, dtype=np.uint32) for tokens in (context[dropped:], scored)]
            token_requests.append(
                Request(
                    RequestSource("", number, 0),
                    ids[0],
                    ids[1],
                    dropped,
                    None,
                    None,
                    "",
                    "",
                    ("", ""),
                )
            )
        return [(score.total, score.greedy) for score in self._answer(token_requests)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Refused."""
        raise InputError(
            "this evaluation scores continuations and generates none; leave out tasks that generate"
        )
