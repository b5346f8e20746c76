"""A spec settled: what it names by a path or leaves to training text becomes arrays, and hashes in
the spec. And certified.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from tokencodes.codes import Codebook, InterfaceSpec, build_codebook
from tokencodes.codes.assign import clustered, order_hash, ranked
from tokencodes.codes.certificate import CodeCertificate, certify_code
from tokencodes.codes.codebook import Given, matrix_hash, read_matrix
from tokencodes.codes.leak import Leak, order_leak, token_properties
from tokencodes.codes.spec import WIDTH_BOUND
from tokencodes.data.dataset import Corpus
from tokencodes.data.distribution import neighbour_vectors, token_counts
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError

HASHED = "sha256-"


def resolve(interface: str, dataset: Corpus | None) -> tuple[InterfaceSpec, Given]:
    """The spec that a model stores, and the arrays that it names by hash.

    InputError: a matrix file that does not fit, an assignment that is read off text where there is
    no dataset.
    """
    spec, given = InterfaceSpec.parse(interface), Given()
    if spec.matrix is not None:
        if spec.matrix.startswith(HASHED):
            raise InputError(
                f"interface {interface!r}: matrix= must name a file here; a hash stands for one"
                " that was read"
            )
        given |= read_matrix(Path(spec.matrix))
        spec = replace(spec, matrix=matrix_hash(given))
    if spec.informed:
        if dataset is None:
            raise InputError(
                f"interface {interface!r}: ids={spec.ids} is read off training text, and there is"
                " none here"
            )
        counts_V = token_counts(dataset)
        if spec.ids == "ranked":
            order = ranked(counts_V)
        else:
            order = clustered(neighbour_vectors(dataset, counts_V, spec.ids_seed), spec.ids_seed)
        if spec.order not in (None, order_hash(order)):
            raise InputError(
                f"interface {interface!r}: here text gives the order {order_hash(order)}, not"
                f" {spec.order}; leave order= out"
            )
        spec, given = replace(spec, order=order_hash(order)), {**given, "order": order}
    return spec, given


def settle_without_text(interface: str) -> tuple[InterfaceSpec, Given]:
    """`resolve` where no text is at hand: an assignment that is read off text is replaced by the
    natural order, whose words are the same. Counts, sizes and what can be built do not depend on
    the assignment.
    """
    spec = InterfaceSpec.parse(interface)
    return resolve(str(replace(spec, ids="natural", order=None) if spec.informed else spec), None)


@dataclass(frozen=True)
class Certified:
    """A code with its certificate, and the leaks where tokens are known."""

    book: Codebook
    certificate: CodeCertificate
    leaks: list[Leak]


def certificate_of(
    interface: str,
    vocab_size: int,
    hidden_size: int,
    tokenizer: Path | None = None,
    dataset: Corpus | None = None,
) -> Certified:
    """Certifies a spec for V tokens and width d; with a tokenizer or a dataset also the order leak.

    InputError: a spec that does not fit, a trainable one, a tokenizer or dataset of another
    vocabulary.
    """
    if not 1 <= hidden_size <= WIDTH_BOUND:
        raise InputError(
            f"width {hidden_size:,}: a model has 1 to {WIDTH_BOUND:,} channels; change --width"
        )
    if dataset is not None:
        dataset.require(vocab_size)
    spec, given = resolve(interface, dataset)
    if not spec.fixed:
        raise InputError(
            f"interface {interface!r}: trained, so it has no certificate; its vectors may move"
        )
    file = TokenizerFile(tokenizer) if tokenizer else dataset.tokenizer if dataset else None
    if file is not None and file.vocab_size != vocab_size:
        raise InputError(
            f"{file.path}: {file.vocab_size:,} entries, not {vocab_size:,}; make --vocab-size and"
            " the tokenizer agree"
        )
    book = build_codebook(spec, vocab_size, given)
    if hidden_size < book.width:
        raise InputError(
            f"interface {interface!r}: width {hidden_size} is below the code width {book.width};"
            " raise --width"
        )
    leaks = []
    if file is not None:
        counts_V = token_counts(dataset) if dataset is not None else None
        leaks = order_leak(book, token_properties(file.token_bytes, counts_V), hidden_size)
    return Certified(book, certify_code(book, hidden_size), leaks)
