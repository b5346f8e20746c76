"""The programs that an export is for, each behind two questions: the logits of a text, and the
greedy continuation of a prompt.

A runtime that is not installed is no failure: the certificate then says "not run", and why.
"""

import json
import mmap
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
NODE_SECONDS = 3600


class NotInstalled(RuntimeError):
    """The runtime is not on this machine; the message says what would bring it."""


@contextmanager
def letting_pages_go() -> Iterator[None]:
    """Within it, a GGUF file's pages leave memory once their tensor was read: transformers maps the
    whole file and copies it tensor by tensor, so at the end it would be there twice.
    """
    import gguf

    whole = gguf.GGUFReader

    class Tensors(list[Any]):
        def __init__(self, reader: Any) -> None:
            super().__init__(reader.tensors)
            self._pages = reader.data._mmap

        def __iter__(self) -> Iterator[Any]:
            for one in super().__iter__():
                yield one
                self._pages.madvise(mmap.MADV_DONTNEED)

    class Reader(whole):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **told: Any) -> None:
            super().__init__(*args, **told)
            if hasattr(mmap, "MADV_DONTNEED"):  # Linux
                self.tensors = Tensors(self)

    gguf.GGUFReader = Reader
    try:
        yield
    finally:
        gguf.GGUFReader = whole


class Runtime(ABC):
    """An exported model as a program sees it."""

    name: str
    version: str
    # whether it computes what our model does in the same order, so that bits can be compared
    exact = False

    @abstractmethod
    def logits(self, ids_T: Ids) -> Logits:
        """float32[T, V] of a text, in one pass without a cache."""

    @abstractmethod
    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        """The likeliest token, `steps` times, with the runtime's own cache: one token a pass after
        the prompt.
        """


class Transformers(Runtime):
    """A causal language model of transformers on the CPU, as it is loaded by anyone: no code of
    ours in it.
    """

    name = "transformers"
    version = transformers.__version__
    exact = True

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()

    @classmethod
    def open(cls, folder: Path, dtype: torch.dtype, **told: Any) -> "Transformers":
        """The model of a folder. RuntimeError where a weight does not come from the file, or the
        head is tied to the table.
        """
        paged = letting_pages_go() if "gguf_file" in told else nullcontext()
        with redirect_stderr(StringIO()), paged:  # bars of a GGUF file's tensors go there
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, output_loading_info=True, trust_remote_code=False, **told
            )
        wrong = [
            *info["missing_keys"],
            *info["unexpected_keys"],
            *map(str, info["mismatched_keys"]),
        ]
        if wrong:
            raise RuntimeError(
                f"transformers misses or does not know {', '.join(sorted(wrong)[:3])}"
            )
        if (
            model.get_output_embeddings().weight.data_ptr()
            == model.get_input_embeddings().weight.data_ptr()
        ):
            raise RuntimeError("transformers tied the head to the input table")
        return cls(model)

    @torch.no_grad()
    def logits(self, ids_T: Ids) -> Logits:
        found: Logits = (
            self.model(torch.from_numpy(ids_T)[None], use_cache=False).logits[0].float().numpy()
        )
        return found

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        return self.decoded(ids_T, steps)[0]

    @torch.no_grad()
    def decoded(self, ids_T: Ids, steps: int) -> tuple[list[int], list[float]]:
        """As `greedy`; and by how much the likeliest token's logit leads the next one's,
        each time."""
        cache, given = DynamicCache(config=self.model.config), torch.from_numpy(ids_T)[None]
        tokens, leads = [], []
        for _ in range(steps):
            last_V = self.model(given, cache=cache, use_cache=True).logits[0, -1].float()
            best = last_V.topk(2)
            tokens.append(int(best.indices[0]))
            leads.append(float(best.values[0] - best.values[1]))
            given = best.indices[:1][None]
        return tokens, leads


class OnnxRuntime(Runtime):
    """An ONNX graph in onnxruntime on the CPU."""

    name = "onnxruntime"

    def __init__(self, file: Path) -> None:
        try:
            import onnxruntime
        except (ImportError, OSError) as error:
            raise NotInstalled(
                f"onnxruntime is not installed ({error}): pip install tokencodes[export]"
            ) from None
        self.version = onnxruntime.__version__
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # it would hold every matrix twice
        options.add_session_config_entry("session.disable_prepacking", "1")
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        first = next(
            one for one in self._session.get_inputs() if one.name == "past_key_values.0.key"
        )
        self._cache_names = [
            one.name
            for one in self._session.get_inputs()
            if one.name.startswith("past_key_values.")
        ]
        self._empty = np.zeros((1, first.shape[1], 0, first.shape[3]), dtype=np.float32)

    def _run(self, ids: list[int], cache: list[Any]) -> list[Any]:
        past = cache[0].shape[2]
        given = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, past + len(ids)), dtype=np.int64),
            "position_ids": np.arange(past, past + len(ids), dtype=np.int64)[None],
        }
        answered: list[Any] = self._session.run(
            None, given | dict(zip(self._cache_names, cache, strict=True))
        )
        return answered

    def logits(self, ids_T: Ids) -> Logits:
        found: Logits = self._run(ids_T.tolist(), [self._empty] * len(self._cache_names))[0][0]
        return found

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        given, cache, tokens = ids_T.tolist(), [self._empty] * len(self._cache_names), []
        for _ in range(steps):
            logits, *cache = self._run(given, cache)
            tokens.append(int(logits[0, -1].argmax()))
            given = tokens[-1:]
        return tokens


class LlamaCpp(Runtime):
    """A GGUF file in llama.cpp, by llama-cpp-python;
    its cache in float32, as its weights may be."""

    name = "llama.cpp"

    def __init__(self, file: Path, context: int) -> None:
        try:
            import llama_cpp
        except (
            ImportError,
            OSError,
            RuntimeError,
        ) as error:  # it raises the last where its library does not load
            told = (
                f"llama-cpp-python is not installed ({error}): pip install llama-cpp-python, which"
                " compiles it"
            )
            raise NotInstalled(told) from None
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self._model = llama_cpp.Llama(
            str(file),
            n_ctx=context,
            n_batch=context,
            n_threads=torch.get_num_threads(),
            logits_all=True,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            flash_attn=False,
            verbose=False,
        )

    def logits(self, ids_T: Ids) -> Logits:
        self._model.reset()
        self._model.eval(ids_T.tolist())
        return np.array(self._model.scores[: len(ids_T)], dtype=np.float32)

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        self._model.reset()
        given, tokens = ids_T.tolist(), []
        for _ in range(steps):
            self._model.eval(given)
            tokens.append(int(self._model.scores[self._model.n_tokens - 1].argmax()))
            given = tokens[-1:]
        return tokens


class TransformersJs(Runtime):
    """An ONNX folder in transformers.js, in Node: `npm install @huggingface/transformers`, and
    NODE_PATH where that put it.
    """

    name = "transformers.js"

    def __init__(self, folder: Path) -> None:
        node = shutil.which("node")
        places = [
            Path(place) / "@huggingface/transformers"
            for place in os.environ.get("NODE_PATH", "").split(os.pathsep)
            if place
        ]
        found = next((place for place in places if place.is_dir()), None)
        if node is None or found is None:
            raise NotInstalled(
                "transformers.js is not installed: npm install @huggingface/transformers, and set"
                " NODE_PATH to its node_modules"
            )
        self.version = json.loads((found / "package.json").read_text())["version"]
        self._command = [node, str(Path(__file__).with_name("transformers_js.mjs")), str(found)]
        self._folder = folder.resolve()

    def _run(self, question: dict[str, Any]) -> Any:
        with TemporaryDirectory() as place:
            here = Path(place) / "model"  # it takes no folder with a dot before its name
            here.symlink_to(self._folder)
            asked = [*self._command, str(here)]
            done = subprocess.run(
                asked,
                input=json.dumps(question),
                capture_output=True,
                encoding="utf-8",
                timeout=NODE_SECONDS,
            )
        if done.returncode:
            told = done.stderr.strip().splitlines()
            raise RuntimeError(next((line for line in told if "Error" in line), "node failed"))
        return json.loads(done.stdout.splitlines()[-1])

    def logits(self, ids_T: Ids) -> Logits:
        found = self._run({"ids": ids_T.tolist(), "steps": 0})
        return np.array(found["logits"], dtype=np.float32).reshape(len(ids_T), -1)

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        tokens: list[int] = self._run({"ids": ids_T.tolist(), "steps": steps})["tokens"]
        return tokens
