"""The order leak: what a linear map of the code alone predicts of a token, before training.

Ids of a BPE follow merge order, so canonical bits carry frequency and length. A probe has
three results: its accuracy on tokens to which it was not fitted, the accuracy of the majority
answer, and the accuracy of the same probe on the same code with permuted ids. The last one shows
what the words can do without the order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokencodes import philox
from tokencodes.codes.codebook import Codebook

FOLDS = 5
RIDGE = 1e-3  # relative to the mean diagonal of the Gram matrix
CONTROL_SEED = 1
LEAST = 20  # tokens that a property must have and lack


@dataclass(frozen=True)
class Leak:
    """One property: held-out accuracy of a linear probe, of the majority answer, and of the probe
    with permuted ids.
    """

    name: str
    accuracy: float
    majority: float
    control: float
    tokens: int


def token_properties(
    tokens: list[bytes], counts_V: NDArray[np.int64] | None
) -> dict[str, NDArray[np.bool_]]:
    """Yes-or-no facts of each token: longer than the median, capital, leading space, digit; and
    frequent, if counted.
    """
    lengths = np.array([len(token) for token in tokens])
    stripped = [token.lstrip(b" ") for token in tokens]
    properties = {
        "longer than the median": lengths > np.median(lengths),
        "begins with a capital": np.array(
            [part[:1].isalpha() and part[:1].isupper() for part in stripped]
        ),
        "leading space": np.array([token.startswith(b" ") for token in tokens]),
        "contains a digit": np.array([any(48 <= byte <= 57 for byte in token) for token in tokens]),
    }
    if counts_V is not None:
        properties = {"more frequent than the median": counts_V > np.median(counts_V), **properties}
    return properties


def order_leak(
    book: Codebook, properties: dict[str, NDArray[np.bool_]], hidden_size: int
) -> list[Leak]:
    """The leak of each property that at least 20 tokens have and 20 lack."""
    z = book.coordinates(hidden_size).astype(np.float64)
    shuffled = 1 + philox.permutation(CONTROL_SEED, "control", len(z) - 1)
    control = z[np.concatenate([[0], shuffled])]
    leaks = []
    for name, label in properties.items():
        if min(label.sum(), (~label).sum()) < LEAST:
            continue
        majority = max(label.mean(), 1 - label.mean())
        leaks.append(
            Leak(name, probe(z, label), float(majority), probe(control, label), len(label))
        )
    return leaks


def probe(z_VK: NDArray[np.float64], label_V: NDArray[np.bool_]) -> float:
    """Accuracy of ridge regression on ±1 labels, each token judged by a fit to the other folds;
    folds are seeded.

    The mean of the labels it was fitted to is its bias, so that a code that knows nothing answers
    with the majority.
    """
    fold_V = philox.permutation(0, "folds", len(z_VK)) % FOLDS
    target_V = np.where(label_V, 1.0, -1.0)
    right = 0
    for fold in range(FOLDS):
        fit = fold_V != fold
        centre, bias = z_VK[fit].mean(0), target_V[fit].mean()
        x = z_VK[fit] - centre
        gram = x.T @ x
        gram[np.diag_indices_from(gram)] += RIDGE * max(np.trace(gram) / len(gram), 1e-12)
        weights = np.linalg.solve(gram, x.T @ (target_V[fit] - bias))
        answer = (z_VK[~fit] - centre) @ weights + bias > 0
        right += int((answer == label_V[~fit]).sum())
    return right / len(z_VK)
