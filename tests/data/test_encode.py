"""The cached encoder against the library:
the same ids for every text, or else the library itself."""

import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel

from tokencodes.data import encode, wordcache
from tokencodes.data.encode import CachedEncoder, ReferenceEncoder, engine_for
from tokencodes.data.pretokens import BLANK, CODE_POINTS, LETTER, NUMBER, OTHER, SPACE, Pretokenizer
from tokencodes.data.text import read_documents
from tokencodes.data.tokenizer import END_OF_TEXT, TokenizerFile, train_tokenizer

# Every rule tells at most these apart; the white space, the letters, numbers and other signs with
# one to four bytes.
NEIGHBOURS = ["a", "s", "'", "1", " ", "\n", "!", "\u3000", "é", "𝟘"]
BLANKS = [
    *"\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680",
    *map(chr, range(0x2000, 0x200B)),
    *"\u2028\u2029\u202f\u205f\u3000",
]
LETTERS = [*"abstmdrevlSTLzéøİıſ\u212aªºαЖאا中가𝐀𠀀𞤀\u02b0\u01c5"]
NUMBERS = [*"0179²½٠०Ⅰ①𝟘𐄇"]
SIGNS = [
    *"'’!.,<>|_-&#\"\\^$+©€—😀",
    "👩‍👩‍👧",
    "👍🏽",
    "🇩🇪",
    "☃️",
    *"\0\x01\x7f\x80\xad\u0301\u0903\u200b\u200d\u180e\ufeff\uffff\ue000\U0010ffff",
]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "''", "'r", "'v", "'l", "'s'd"]
LITERALS = [
    END_OF_TEXT,
    "<|im_start|>",
    "<file_sep>",
    "<|endoftext|",
    "|endoftext|>",
    "<<|endoftext|>",
    "<file",
]
PARTS = [
    BLANKS,
    LETTERS,
    NUMBERS,
    SIGNS,
    CONTRACTIONS,
    LITERALS,
    [" the", "unhappiness", " a b c"],
    [" "],
    ["'"],
]


def hazards(seed: int, count: int) -> list[str]:
    """Texts of a few parts each, some of them repeated to the lengths at which the cache changes
    its ways.
    """
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        weights = [draw.random() ** 2 for _ in PARTS]
        parts = [
            draw.choice(pool)
            for pool in draw.choices(PARTS, weights, k=draw.choice([0, 2, 5, 20, 80]))
        ]
        times = draw.choices([1, 2, 5, 8, 16, 65], [80, 8, 4, 4, 4, 1], k=len(parts))
        texts.append("".join(part * n for part, n in zip(parts, times, strict=True)))
    return texts


def assert_same(ours: CachedEncoder, texts: list[str]) -> None:
    """Of ids and counts, all texts together; a difference is shown for one text."""
    (ids, counts), (library_ids, library_counts) = (
        ours.encode(texts),
        ReferenceEncoder(ours.tokenizer).encode(texts),
    )
    assert ids.dtype == library_ids.dtype and counts.dtype == library_counts.dtype
    if not (np.array_equal(ids, library_ids) and np.array_equal(counts, library_counts)):
        for text in texts:
            assert ours.encode([text])[0].tolist() == ours.tokenizer.encode([text])[0], ascii(text)
        pytest.fail("the texts differ only together")


def assert_same_cuts(cuts: Pretokenizer, tokenizer: Tokenizer, texts: list[str]) -> None:
    """Of texts that stand end to end but are not joined."""
    expected, pieces, place = [], [], 0
    for text in texts:
        pieces.append(place)
        expected += [
            place + len(text[:start].encode())
            for _, (start, _) in tokenizer.pre_tokenizer.pre_tokenize_str(text)
        ]
        place += len(text.encode())
    assert cuts.starts("".join(texts).encode(), np.array(pieces)).tolist() == expected


@pytest.fixture(scope="module")
def files(texts, tmp_path_factory) -> dict[str, Path]:
    """Two tokenizers with merges across all that a wrong cut would part: digits one by one, and
    not.
    """
    folder = tmp_path_factory.mktemp("tokenizers")
    documents = [
        d.text for file in sorted(texts.iterdir()) for d in read_documents(file)
    ] + hazards(0, 2000)
    train_tokenizer(documents, 1500, folder / "digits.json")
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = sorted(ByteLevel.alphabet())
    plain.train_from_iterator(
        documents,
        trainers.BpeTrainer(
            vocab_size=1500,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    plain.save(str(folder / "plain.json"))
    return {kind: folder / f"{kind}.json" for kind in ("digits", "plain")}


@pytest.fixture(scope="module", params=["digits", "plain"])
def file(request, files) -> TokenizerFile:
    return TokenizerFile(files[request.param])


@pytest.fixture(scope="module")
def cached(file) -> CachedEncoder:
    return CachedEncoder(file)


@pytest.fixture(scope="module")
def cuts(file) -> Pretokenizer:
    return Pretokenizer(file.tokenizer, file.rules)


def test_every_code_point_has_the_class_that_the_library_shows_for_it(file, cuts):
    def pre_tokens(text):
        return len(file.tokenizer.pre_tokenizer.pre_tokenize_str(text))

    scalars = np.r_[0:0xD800, 0xE000:CODE_POINTS]
    of = {
        kind: list(map(chr, scalars[cuts.classes[scalars] == kind].tolist())) for kind in range(5)
    }
    assert of[SPACE] == [" "] and sum(map(len, of.values())) == len(scalars)
    # All of a class, and one that is known: what would not belong to them would end the pre-token.
    assert pre_tokens("a" + "".join(of[LETTER])) == pre_tokens("!" + "".join(of[OTHER])) == 1
    assert pre_tokens("\n" + "".join(of[BLANK] + of[SPACE])) == 1
    for number in of[NUMBER]:
        assert [pre_tokens(before + number) for before in "a!\n"] == [2, 2, 2]
    digits_apart = file.rules["pre_tokenizer"]["type"] == "Sequence"
    assert pre_tokens("".join(of[NUMBER])) == (len(of[NUMBER]) if digits_apart else 1)


def test_no_cut_is_wrong_in_any_neighbourhood_of_up_to_five_characters(file, cuts):
    texts = [
        "".join(characters)
        for length in range(1, 6)
        for characters in product(NEIGHBOURS, repeat=length)
    ]
    assert_same_cuts(cuts, file.tokenizer, texts)


def test_no_cut_is_wrong_beside_a_contraction_or_what_looks_like_one(file, cuts):
    around = ["", "a", "s", "1", " ", "\n", "'", "!", "é", "\u3000", "<"]
    texts = [
        a + b + middle + c + d
        for middle in CONTRACTIONS
        for a, b, c, d in product(["", "x"], around, around, around)
    ]
    assert_same_cuts(cuts, file.tokenizer, texts)


def test_any_text_has_the_ids_that_the_library_gives_it(cached):
    part = st.one_of(
        *(st.sampled_from(pool) for pool in PARTS), st.characters(exclude_categories=["Cs"])
    )
    text = st.lists(part, max_size=12).map("".join)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(text, max_size=4))
    def holds(texts):
        assert_same(cached, texts)

    holds()


def test_texts_full_of_hazards_have_the_ids_that_the_library_gives_them(cached):
    assert_same(cached, hazards(1, 6000))


@pytest.mark.parametrize("chunk", [1, 12, 20, 64])
def test_a_text_that_is_cut_into_chunks_has_the_same_ids(cached, chunk, monkeypatch):
    monkeypatch.setattr(encode, "CHUNK", chunk)
    draw = random.Random(chunk)
    spaced = [
        "".join(draw.choices(NEIGHBOURS, k=5000)),
        " a" * 500,
        "a " * 500 + "\n" * 9,
        "\n " * 500,
        "a\n" * 500,
    ]
    # no space at which to cut at sight
    rare = [sign for sign in NEIGHBOURS if sign not in " \n"] + ["\t", "'ll", "'re", "中"]
    unspaced = ["".join(draw.choices(rare, k=draw.randrange(400))) for _ in range(100)]
    words = [
        "中" * 500,
        "a" * 300 + "é!" * 100,
        "a" * 300 + " b" * 100,
        "\u3000" * 200 + "a" * 200,
        "é\t\t" * 200,
    ]
    assert_same(
        cached,
        ["".join(characters) for characters in product(NEIGHBOURS, repeat=3)] + hazards(2, 300),
    )
    assert_same(cached, spaced + unspaced + words)


@pytest.mark.parametrize(
    ("slots", "most", "longest"), [(2, 1, 0), (16, 8, 16), (256, 16, 64), (256, 128, 64)]
)
def test_a_full_or_emptied_cache_gives_the_same_ids(file, slots, most, longest, monkeypatch):
    for name, value in {"SLOTS": slots, "MOST": most, "LONGEST": longest}.items():
        monkeypatch.setattr(wordcache, name, value)
    small = CachedEncoder(file)
    for seed in range(30):
        assert_same(small, hazards(seed % 20, 20))


def test_words_that_differ_in_their_last_byte_or_length_only_are_never_taken_for_each_other(cached):
    texts = []
    for length in (1, 2, 6, 7, 8, 9, 14, 15, 16, 17, 63, 64, 65, 1000):
        stems = [
            "e" * (length - 1),
            "!" * (length - 1),
            "\0" * (length - 1),
            "é" * ((length - 1) // 2),
        ]
        texts += [stem + last for stem in stems for last in ("a", "b", "\0", "!", "\x01", "é", "")]
    for _ in range(2):  # unseen, then seen
        assert_same(cached, texts)
        assert_same(cached, texts[::-1])


def test_empty_texts_have_no_ids_wherever_they_stand(cached):
    for texts in (
        [],
        [""],
        [""] * 5000,
        ["", "a", "", "", END_OF_TEXT, "", "\n", ""],
        ["a", *[""] * 5000, "b"],
    ):
        assert_same(cached, texts)


def changed(path: Path, out: Path, change: Callable[[dict[str, Any]], Any]) -> TokenizerFile:
    """A tokenizer file like the one at `path`, but for one change."""
    rules = json.loads(path.read_text())
    change(rules)
    out.write_text(json.dumps(rules))
    return TokenizerFile(out)


def literals(*contents: str, **flags: bool) -> Callable[[dict[str, Any]], None]:
    """Adds literal tokens that are looked for in a text before anything else."""
    off = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }

    def change(rules):
        first = len(rules["model"]["vocab"])
        rules["added_tokens"] += [
            {"id": first + i, "content": text, **off, **flags} for i, text in enumerate(contents)
        ]

    return change


@pytest.mark.parametrize(
    "contents",
    [
        ["<|im_start|>", "<file_sep>"],
        ["<ab", "<ab>", "b><a", "aab", "ab"],  # the leftmost, and of those the longest
        ["<tool call>", " <tool>", "<tool > "],
        ["  ", "\n\n", "18", "'", "é", "\u3000"],
        ["", "the"],
    ],
)
@pytest.mark.parametrize("special", [True, False])
def test_literal_tokens_are_found_as_the_library_finds_them(files, contents, special, tmp_path):
    file = changed(files["digits"], tmp_path / "t.json", literals(*contents, special=special))
    encoder = engine_for(file)
    assert isinstance(encoder, CachedEncoder)
    draw = random.Random(len(contents))
    parts = [
        *contents,
        *(text[:-1] for text in contents),
        *(text[1:] for text in contents),
        END_OF_TEXT,
        *NEIGHBOURS,
    ]
    assert_same(
        encoder,
        ["".join(draw.choices(parts, k=draw.randrange(12))) for _ in range(2000)] + hazards(3, 200),
    )
    assert_same(encoder, [END_OF_TEXT * 3000, "".join(contents) * 500, ""])


def without_letters(rules, letters="qzk"):
    model = rules["model"]
    model["merges"] = [pair for pair in model["merges"] if not set(letters) & set("".join(pair))]
    model["vocab"] = {
        token: id for token, id in model["vocab"].items() if not set(letters) & set(token)
    }


def of_older_libraries(rules):
    """What GPT-2's own file looks like: fields that were introduced later are absent."""
    del (
        rules["model"]["type"],
        rules["model"]["dropout"],
        rules["model"]["byte_fallback"],
        rules["model"]["ignore_merges"],
    )
    rules["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    rules["model"]["merges"] = [" ".join(pair) for pair in rules["model"]["merges"]]
    del rules["pre_tokenizer"]["pretokenizers"][1]["use_regex"], rules["normalizer"]


def with_a_suffix(rules):
    rules["model"] |= {"end_of_word_suffix": "</w>", "merges": []}
    rules["model"]["vocab"] |= {f"{letter}</w>": 6000 + ord(letter) for letter in "adelost!"}


def with_byte_tokens(rules):
    without_letters(rules)
    rules["model"]["byte_fallback"] = True
    rules["model"]["vocab"] |= {f"<0x{byte:02X}>": 6000 + byte for byte in range(256)}


CUTS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = {"type": "Split", "pattern": {"Regex": LLAMA}, "behavior": "Isolated", "invert": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def set_to(section, value):
    return lambda rules: rules.__setitem__(section, value)


def model_with(**options):
    return lambda rules: rules["model"].update(options)


KNOWN = {
    "fields absent as in older files": of_older_libraries,
    "bytes without a token": without_letters,
    "unknown letters, each": lambda rules: (
        without_letters(rules),
        model_with(unk_token="a")(rules),
    ),
    "unknown letters, fused": lambda rules: (
        without_letters(rules),
        model_with(unk_token="a", fuse_unk=True)(rules),
    ),
    "tokens of bytes": with_byte_tokens,
    "a suffix of words": with_a_suffix,
    "whole words before merges": lambda rules: (
        model_with(ignore_merges=True)(rules),
        rules["model"]["vocab"].update({"zzz": 6000}),
    ),
    "a dropout of 0": model_with(dropout=0.0),
    "truncation": set_to(
        "truncation",
        {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    ),
    "nested sequences": set_to("pre_tokenizer", sequence(sequence(DIGITS), sequence(CUTS))),
    "offsets as they are": set_to("pre_tokenizer", {**CUTS, "trim_offsets": False}),
}
UNKNOWN = {
    "a normalizer": set_to("normalizer", {"type": "NFC"}),
    "a normalizer of no steps": set_to("normalizer", {"type": "Sequence", "normalizers": []}),
    "no pre-tokenizer": set_to("pre_tokenizer", None),
    "a sequence of no steps": set_to("pre_tokenizer", sequence()),
    "a space before a text": set_to("pre_tokenizer", {**CUTS, "add_prefix_space": True}),
    "no expression": set_to("pre_tokenizer", {**CUTS, "use_regex": False}),
    "digits together": set_to(
        "pre_tokenizer", sequence({**DIGITS, "individual_digits": False}, CUTS)
    ),
    "digits afterwards": set_to("pre_tokenizer", sequence(CUTS, DIGITS)),
    "bytes twice": set_to("pre_tokenizer", sequence(CUTS, CUTS)),
    "an expression of its own": set_to(
        "pre_tokenizer", sequence(SPLIT, {**CUTS, "use_regex": False})
    ),
    "literals with the space before": literals("<tool>", lstrip=True),
    "literals with the space after": literals("<tool>", rstrip=True),
    "literals that are words": literals("<tool>", single_word=True),
    "literals in normalized text": literals("<tool>", normalized=True),
    "two literals of one id": lambda rules: (
        literals("<tool>", "zzz")(rules),
        rules["model"]["vocab"].update({"zzz": 1501}),
    ),
    "another model": lambda rules: rules.update(
        model={"vocab": rules["model"]["vocab"], "unk_token": END_OF_TEXT}
    ),
}


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_a_tokenizer_is_encoded_exactly_and_by_the_library_where_its_rules_are_unknown(
    name, files, tmp_path
):
    file = changed(files["digits"], tmp_path / "t.json", (KNOWN | UNKNOWN)[name])
    encoder = engine_for(file)
    assert type(encoder) is (CachedEncoder if name in KNOWN else ReferenceEncoder)
    assert type(engine_for(file, "reference")) is ReferenceEncoder
    texts = [*hazards(4, 300), "q kk<tool>zzz 1865 zzz", " <tool> "]
    expected = file.encode(texts)
    ids, counts = encoder.encode(texts)
    assert counts.tolist() == [len(document_ids) for document_ids in expected]
    assert ids.tolist() == [id for document_ids in expected for id in document_ids]


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.soak)])
def test_documents_of_the_real_texts_have_the_ids_that_the_library_gives_them(
    every, real_data, monkeypatch
):
    """By default each sixteenth document; `make soak` takes all."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    encoder = engine_for(TokenizerFile(real_data / "tokenizer" / "smollm2.json"))
    assert isinstance(encoder, CachedEncoder)
    assert_same(encoder, hazards(5, 3000))
    for path in sorted((real_data / "corpora").glob("*.jsonl.gz")):
        documents = [document.text for document in read_documents(path)][::every]
        for start in range(0, len(documents), 32):
            assert_same(encoder, documents[start : start + 32])
