"""A whole tiny study, trained once."""

import pytest

from tokencodes.study import compare
from tokencodes.train.metrics import Silent


@pytest.fixture(scope="session")
def trained(study, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained-study")
    assert compare(study, out, Silent())
    return out
