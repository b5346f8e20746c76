"""Each configuration key has a line of documentation."""

import pytest

from tokencodes.train import config
from tokencodes.train.settings import descriptions, flatten, preset_names, read_study

SECTIONS = [
    value
    for value in vars(config).values()
    if isinstance(value, type) and issubclass(value, config.Section) and value.model_fields
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_each_field_has_a_sentence(section):
    nested = {"data", "model", "optimizer", "batch", "budget", "heldout", "checkpoint", "engine"}
    nested |= {"study", "evaluation", "arms"}
    for name, field in section.model_fields.items():
        if name not in nested or section.__name__ not in ("Recipe", "RunConfig", "StudyConfig"):
            assert field.description and field.description.endswith("."), name


@pytest.mark.parametrize("preset", preset_names())
def test_each_key_of_a_preset_has_one_meaning(preset):
    study, _ = read_study(preset, ["arms.learned.overrides.peak_lr=0.001"])
    meanings = descriptions(type(study), study)
    assert meanings.keys() == flatten(study.model_dump(mode="json")).keys()
    assert all(meanings.values())
    assert meanings["arms.learned.interface"].startswith("Spec of the input interface")
    assert meanings["arms.learned.overrides.peak_lr"].startswith("Optimizer keys")
