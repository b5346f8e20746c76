"""What is loaded when: text alone must not wait for torch, and transformers must know the model all
the same.
"""

import subprocess
import sys

import pytest


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOADED = "print(sorted({'torch', 'transformers', 'scipy', 'matplotlib'} & set(sys.modules)))"


@pytest.mark.parametrize(
    "code",
    [
        "import tokencodes",
        (
            "import tokencodes.data.prepare, tokencodes.data.cluster, tokencodes.data.loader,"
            " tokencodes.data.inspect"
        ),
        "from tokencodes.cli import run; run(['config', 'show', 'paper', '--json'])",
        (
            "from tokencodes.cli import run; run(['prepare', 'no-such-file', '--tokenizer', 'x',"
            " '--out', 'y'])"
        ),
    ],
)
def test_what_works_on_text_loads_no_torch(code):
    assert python(f"import sys; {code}; {LOADED}").splitlines()[-1] == "[]"


AUTO = (
    "from transformers import AutoConfig; print(type(AutoConfig.for_model('tokencode',"
    " vocab_size=10)).__module__)"
)


@pytest.mark.parametrize(
    "before",
    [
        "import tokencodes",
        "import transformers, tokencodes",
        # as others ask whether it is there
        "import importlib.util, tokencodes; importlib.util.find_spec('transformers')",
        "import tokencodes, transformers.models.llama.modeling_llama",
    ],
)
def test_importing_tokencodes_registers_the_model_in_any_order(before):
    assert python(f"{before}; {AUTO}") == "tokencodes.model"


def test_every_public_name_is_there_and_no_other():
    code = (
        "import tokencodes; print([getattr(tokencodes, name).__name__ for name in"
        " tokencodes.__all__] == tokencodes.__all__)"
    )
    assert python(code) == "True"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        import tokencodes

        _ = tokencodes.nothing
