"""Configurations: presets, overrides with their origins, and one line for what is wrong."""

import pytest

from tests.conftest import tiny_study
from tokencodes.errors import InputError
from tokencodes.train.settings import difference, preset_names, read_run, read_study, write_run


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name):
    study, _ = read_study(name, [])
    assert study.study.baseline in study.arms


def test_the_papers_numbers():
    study, _ = read_study("paper", [])
    assert study.tokens_per_step == 262_144
    assert study.steps == 381_470
    assert (study.optimizer.beta1, study.optimizer.beta2, study.optimizer.eps) == (0.9, 0.95, 1e-8)
    assert (study.optimizer.weight_decay, study.optimizer.max_grad_norm) == (0.01, 1.0)
    assert (study.model.rope_theta, study.model.rms_norm_eps, study.model.init_std) == (
        10_000,
        1e-5,
        0.02,
    )


def test_the_predecessor_preset_has_the_shape_of_its_model_cards():
    study, _ = read_study("predecessor", [])
    model = study.model
    shape = (
        model.hidden_size,
        model.num_hidden_layers,
        model.num_attention_heads,
        model.context_length,
    )
    assert (study.data.vocab_size, *shape) == (65_536, 1024, 32, 32, 1024)
    assert study.budget.tokens == 17_000_000_000
    assert study.tokens_per_step == 262_144
    # SwiGLU has three matrices of d x m. A GELU part of width 4 d has two of d x 4 d.
    swiglu, gelu = 3 * 1024 * model.intermediate_size, 2 * 1024 * 4096
    assert gelu <= swiglu <= 1.002 * gelu


def test_every_value_has_an_origin():
    study, origins = read_study(
        "quickstart", ["optimizer.peak_lr=1e-3", "arms.wide.interface=binary:width=14"]
    )
    assert study.optimizer.peak_lr == 1e-3
    assert study.arms["wide"].interface == "binary:width=14"
    assert origins["optimizer.peak_lr"] == "--set optimizer.peak_lr=1e-3"
    assert origins["model.hidden_size"] == "preset quickstart"
    assert origins["optimizer.eps"] == "default"


def test_a_section_that_is_set_whole_is_the_origin_of_its_values():
    _, origins = read_study("quickstart", ['arms.gf2={interface="gf2:seed=1"}'])
    assert (
        origins["arms.gf2.interface"]
        == origins["arms.gf2.overrides"]
        == """--set arms.gf2={interface="gf2:seed=1"}"""
    )
    assert origins["arms.learned.interface"] == "preset quickstart"


@pytest.mark.parametrize(
    ("sets", "complaint"),
    [
        (
            ["model.hidden_size=[96,128]"],
            "--set model.hidden_size=[96,128]: model.hidden_size = [96, 128]: Input should be",
        ),
        (["optimizer.peak_rl=1"], "--set optimizer.peak_rl=1: unknown key"),
        (["model=3"], "--set model=3: model = 3: must be a table"),
        (["arms.x={interface=3}"], "--set arms.x={interface=3}: arms.x.interface = 3"),
        (
            ["model.hidden_size=8"],
            "preset quickstart with --set model.hidden_size=8: model: hidden_size 8 over 3 heads",
        ),
        (
            ["model.context_length=32", "study.baseline=lerned"],
            "preset quickstart with --set model.context_length=32, --set study.base",
        ),
    ],
)
def test_the_error_names_the_set_option_that_is_wrong_and_not_the_preset(sets, complaint):
    with pytest.raises(InputError) as caught:
        read_study("quickstart", sets)
    assert str(caught.value).startswith(complaint)


def test_what_is_wrong_in_a_file_names_the_file(tmp_path):
    (tmp_path / "preset.toml").write_text("[model]\nhidden_size = [96]\n")
    with pytest.raises(InputError, match=rf"^{tmp_path}/preset\.toml: "):
        read_study(str(tmp_path / "preset.toml"), ["model.context_length=16"])


@pytest.mark.parametrize(
    "text", ["", "arm = 3", "[model]\nhidden_size = 'wide'", "seed = -1", "interface = 'gf3'"]
)
def test_a_saved_configuration_with_wrong_contents_is_one_line(text, tmp_path):
    write_run(tmp_path / "config.toml", tiny_study("somewhere").run("gf2", 1))
    kept = (tmp_path / "config.toml").read_text() if text.startswith(("seed", "interface")) else ""
    key = text.partition(" ")[0]
    lines = [line for line in kept.splitlines() if not line.startswith(f"{key} ")]
    (tmp_path / "config.toml").write_text("\n".join([text, *lines]) + "\n")
    with pytest.raises(InputError, match=r"config\.toml: ") as caught:
        read_run(tmp_path / "config.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "complaint"),
    [
        (["optimizer.peak_rl=1"], "unknown key 'optimizer.peak_rl'; did you mean 'peak_lr'?"),
        (["optimiser.peak_lr=1"], "unknown key 'optimiser'; did you mean 'optimizer'?"),
        (
            ["arms.gf2.interfaces=gf2"],
            "unknown key 'arms.gf2.interfaces'; did you mean 'interface'?",
        ),
        (["model.hidden_size=8"], "model: hidden_size 8 over 3 heads"),
        (
            ["model.hidden_size=6", "model.num_attention_heads=3"],
            "hidden_size 6 is below the code width 12 of 'binary'",
        ),
        (["model.num_attention_heads=5"], "hidden_size 192 over 5 heads"),
        (["model.num_attention_heads=64"], "heads of an even whole width"),
        (["model.tie_word_embeddings=true"], "would make the input trainable; set it to false"),
        (["optimizer.peak_lr=fast"], "optimizer.peak_lr = 'fast'"),
        (["model.init_std=2"], "model.init_std = 2"),
        (["model.rope_theta=1e-300"], "model.rope_theta = 1e-300"),
        (["optimizer.peak_lr=nan"], "optimizer.peak_lr"),
        (["optimizer.min_lr=1"], "min_lr 1 is above peak_lr"),
        (["optimizer.warmup_steps=100000"], "must be below schedule_steps"),
        (["budget.tokens=0"], "budget.tokens = 0"),
        (["data.validation_fraction=1.5"], "data.validation_fraction = 1.5"),
        (["arms.gf2.interface=gf3"], "unknown words 'gf3'; did you mean 'gf2'?"),
        (["arms.gf2.overrides.peak_rl=1"], "only optimizer keys may differ between arms"),
        (["study.baseline=lerned"], "study.baseline 'lerned' is not among the arms"),
        (["study.seeds=[1, 1]"], "has a seed twice"),
        (["model=3"], "model"),
        (["model.hidden_size.x=3"], "'hidden_size' is a value, not a section"),
        (["hidden_size=64"], "did you mean 'model.hidden_size'?"),
        (["data.inputs=my/folder"], "data.inputs = 'my/folder': must be a list"),
        (["study.seeds=4"], "study.seeds = 4: must be a list"),
        (["arms.x=learned"], "arms.x = 'learned': must be a table of keys"),
        (['study.contrasts=[["gf2", "gf3"]]'], "'gf3' is not among the arms"),
        (["nothing"], "write it as section.key=value"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(sets, complaint):
    with pytest.raises(InputError) as caught:
        read_study("quickstart", sets)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_presets_that_are_none(tmp_path):
    with pytest.raises(InputError, match="did you mean 'quickstart'"):
        read_study("quickstrat", [])
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(InputError, match=r"bad.toml: not TOML"):
        read_study(str(tmp_path / "bad.toml"), [])


def test_a_run_survives_being_saved_and_differences_are_named(tmp_path):
    study = tiny_study("somewhere")
    run = study.run("gf2", 1)
    write_run(tmp_path / "config.toml", run)
    assert read_run(tmp_path / "config.toml") == run
    assert difference(run, run) is None
    assert difference(run, study.run("gf2", 2)) == "seed is 1 there, 2 asked for"


def test_an_arms_overrides_reach_its_run_alone():
    arms = {
        "learned": {"interface": "learned"},
        "gf2": {"interface": "gf2", "overrides": {"peak_lr": 1e-3}},
    }
    study = tiny_study("somewhere", arms=arms)
    assert study.run("gf2", 1).optimizer.peak_lr == 1e-3
    assert study.run("learned", 1).optimizer.peak_lr == 3e-3
