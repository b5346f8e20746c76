"""Against lm-eval's own HFLM, request by request, on real rows."""

from types import SimpleNamespace

import pytest
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from tests.evaluate.conftest import tiny
from tokencodes.errors import InputError
from tokencodes.evaluate.language_model import LanguageModel
from tokencodes.evaluate.scorer import Scorer
from tokencodes.evaluate.subject import context_limit
from tokencodes.evaluate.suites import BENCHMARKS, MULTIPLE_CHOICE
from tokencodes.evaluate.tasks import make_tasks
from tokencodes.evaluate.texts import open_texts

LIMIT = 96  # so that some prompts are cut


@pytest.mark.parametrize(
    "name",
    [
        *(benchmark.name for benchmark in MULTIPLE_CHOICE if benchmark.name != "piqa"),
        "mmlu_5",
        "lambada",
        "wikitext",
    ],
)
def test_scores_and_flags_are_those_of_lm_evals_own_model(
    name, real_data, small_texts, tokenizer_path
):
    model, end = tiny("llama"), "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_path), bos_token=end, eos_token=end, pad_token=end
    )
    reference = HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=LIMIT, device="cpu"
    )
    ours = LanguageModel(Scorer(model, 256), small_texts, LIMIT, small_texts.prefix)
    task, *_ = make_tasks([BENCHMARKS[name]], real_data / "eval")
    task.task.build_all_requests(
        samples=[7] if name == "wikitext" else [0, 5, 9], rank=0, world_size=1
    )
    instances = task.task.instances
    if name == "wikitext":
        scores, wanted = (
            ours.loglikelihood_rolling(instances),
            reference.loglikelihood_rolling(instances),
        )
        assert scores == pytest.approx(wanted, rel=1e-6)
        return
    scores, wanted = ours.loglikelihood(instances), reference.loglikelihood(instances)
    assert [total for total, _ in scores] == pytest.approx(
        [total for total, _ in wanted], abs=1e-3, rel=1e-6
    )
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in wanted]
    assert name != "mmlu_5" or all(request.dropped for request, _ in ours.answered)


def test_lm_eval_scores_an_added_begin_token_after_itself_and_this_does_not(beginning_path):
    model, end, texts = tiny("llama"), "<|endoftext|>", open_texts(beginning_path)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(beginning_path), bos_token=end, eos_token=end, pad_token=end
    )
    reference = HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=LIMIT, device="cpu"
    )
    ours, text = (
        LanguageModel(Scorer(model, 256), texts, LIMIT, 0),
        "Emma Woodhouse, handsome, clever, and rich.",
    )
    instance, ids = (
        SimpleNamespace(args=(text,), task_name="t", doc_id=0, idx=0),
        texts.plain(text).tolist(),
    )
    once, twice = (
        reference._loglikelihood_tokens([(("", text), [0], scored)], disable_tqdm=True)[0][0]
        for scored in (ids, [0, *ids])
    )
    assert reference.loglikelihood_rolling([instance]) == [pytest.approx(twice, rel=1e-6)]
    assert ours.loglikelihood_rolling([instance]) == [pytest.approx(once, rel=1e-6)]
    assert ours.answered[0][0].begin == 1 and once != pytest.approx(twice, rel=1e-3)


def test_lm_evals_own_entrance_takes_the_model(small_texts, tokenizer_path):
    plain, end = tiny("llama"), "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_path), bos_token=end, eos_token=end, pad_token=end
    )
    reference = HFLM(
        pretrained=plain, tokenizer=tokenizer, batch_size=1, max_length=LIMIT, device="cpu"
    )
    model = LanguageModel(Scorer(plain, 256), small_texts, LIMIT, 0)
    pairs = [("She was", " happy"), ("", "Emma")]
    ids = [
        (
            (context, text),
            model.tok_encode(context) or [0],
            model.tok_encode(text, add_special_tokens=False),
        )
        for context, text in pairs
    ]
    scores, wanted = (
        model._loglikelihood_tokens(ids),
        reference._loglikelihood_tokens(ids, disable_tqdm=True),
    )
    assert [total for total, _ in scores] == pytest.approx([total for total, _ in wanted], rel=1e-5)
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in wanted]
    with pytest.raises(InputError, match="request 1: 97 tokens to score, and the model reads 96"):
        model._loglikelihood_tokens([ids[0], (("", ""), [1], [2] * (LIMIT + 1))])
    assert len(model._loglikelihood_tokens([(("", ""), [1], [2] * LIMIT)])) == 1
    with pytest.raises(
        InputError, match="document 0, part 0: no token to read before the scored ones"
    ):
        model._loglikelihood_tokens([(("", ""), [], [2])])
    with pytest.raises(InputError, match="generates none"):
        model.generate_until([])


def test_the_context_limit_is_known_or_asked_for():
    config = tiny("llama").config
    assert (context_limit(config, None), context_limit(config, 64)) == (128, 64)
    with pytest.raises(InputError, match="--context 256: this model reads 128 tokens at most"):
        context_limit(config, 256)
    silent = SimpleNamespace(get_text_config=SimpleNamespace)
    assert context_limit(silent, 64) == 64
    with pytest.raises(InputError, match="does not say how many tokens it reads; give --context"):
        context_limit(silent, None)
