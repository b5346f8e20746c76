"""The programs that read an export. Each has two methods: the logits of a text, and the greedy
continuation of a prompt.

A runtime that is not installed is not a failure. The certificate then states "not run" and the
reason.
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
    """The runtime is not on this machine. The message names the way to install it."""


@contextmanager
def letting_pages_go() -> Iterator[None]:
    """Within this context, the pages of a GGUF file leave memory after their tensor was read.
    transformers maps the whole file and copies each tensor, so without this the model would be in
    memory twice.
    """
    import gguf

    whole = gguf.GGUFReader

    class Tensors(list[Any]):
        def __init__(self, reader: Any) -> None:
            super().__init__(reader.tensors)
            self._pages = reader.data._mmap

        def __iter__(self) -> Iterator[Any]:
            for tensor in super().__iter__():
                yield tensor
                self._pages.madvise(mmap.MADV_DONTNEED)

    class Reader(whole):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if hasattr(mmap, "MADV_DONTNEED"):  # Linux
                self.tensors = Tensors(self)

    gguf.GGUFReader = Reader
    try:
        yield
    finally:
        gguf.GGUFReader = whole


class Runtime(ABC):
    """An exported model in one program."""

    name: str
    version: str
    # whether it computes what our model does in the same order, so that bits can be compared
    exact = False

    @abstractmethod
    def logits(self, ids_T: Ids) -> Logits:
        """Returns float32[T, V] of a text, in one pass without a cache."""

    @abstractmethod
    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        """Returns the most probable token, `steps` times, with the runtime's own cache: one token
        in each pass after the prompt.
        """


class Transformers(Runtime):
    """A causal language model of transformers on the CPU, loaded in the usual way. No program code
    of this package is in it.
    """

    name = "transformers"
    version = transformers.__version__
    exact = True

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()

    @classmethod
    def open(cls, folder: Path, dtype: torch.dtype, **options: Any) -> "Transformers":
        """Returns the model of a folder. Raises RuntimeError if a weight does not come from the
        file, or if the head is tied to the table.
        """
        paged = letting_pages_go() if "gguf_file" in options else nullcontext()
        with redirect_stderr(StringIO()), paged:  # hides the progress bars of a GGUF file's tensors
            model, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, output_loading_info=True, trust_remote_code=False, **options
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
        logits: Logits = (
            self.model(torch.from_numpy(ids_T)[None], use_cache=False).logits[0].float().numpy()
        )
        return logits

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        return self.decoded(ids_T, steps)[0]

    @torch.no_grad()
    def decoded(self, ids_T: Ids, steps: int) -> tuple[list[int], list[float]]:
        """Returns the tokens of `greedy`, and the lead of each logit over the next one."""
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
        # prepacking would hold every matrix twice
        options.add_session_config_entry("session.disable_prepacking", "1")
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        first = next(
            graph_input
            for graph_input in self._session.get_inputs()
            if graph_input.name == "past_key_values.0.key"
        )
        self._cache_names = [
            graph_input.name
            for graph_input in self._session.get_inputs()
            if graph_input.name.startswith("past_key_values.")
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
        logits: Logits = self._run(ids_T.tolist(), [self._empty] * len(self._cache_names))[0][0]
        return logits

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        given, cache, tokens = ids_T.tolist(), [self._empty] * len(self._cache_names), []
        for _ in range(steps):
            logits, *cache = self._run(given, cache)
            tokens.append(int(logits[0, -1].argmax()))
            given = tokens[-1:]
        return tokens


class LlamaCpp(Runtime):
    """A GGUF file in llama.cpp, through llama-cpp-python. Its cache is float32, because its weights
    may be float32.
    """

    name = "llama.cpp"

    def __init__(self, file: Path, context: int) -> None:
        try:
            import llama_cpp
        except (
            ImportError,
            OSError,
            RuntimeError,
        ) as error:  # llama_cpp raises RuntimeError if its library does not load
            reason = (
                f"llama-cpp-python is not installed ({error}): pip install llama-cpp-python, which"
                " compiles it"
            )
            raise NotInstalled(reason) from None
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
    """An ONNX folder in transformers.js under Node. It needs `npm install
    @huggingface/transformers`, and NODE_PATH with the folder of that installation.
    """

    name = "transformers.js"

    def __init__(self, folder: Path) -> None:
        node = shutil.which("node")
        places = [
            Path(place) / "@huggingface/transformers"
            for place in os.environ.get("NODE_PATH", "").split(os.pathsep)
            if place
        ]
        package = next((place for place in places if place.is_dir()), None)
        if node is None or package is None:
            raise NotInstalled(
                "transformers.js is not installed: npm install @huggingface/transformers, and set"
                " NODE_PATH to its node_modules"
            )
        self.version = json.loads((package / "package.json").read_text())["version"]
        self._command = [node, str(Path(__file__).with_name("transformers_js.mjs")), str(package)]
        self._folder = folder.resolve()

    def _run(self, question: dict[str, Any]) -> Any:
        with TemporaryDirectory() as place:
            here = (
                Path(place) / "model"
            )  # transformers.js refuses a folder whose name begins with a dot
            here.symlink_to(self._folder)
            command = [*self._command, str(here)]
            done = subprocess.run(
                command,
                input=json.dumps(question),
                capture_output=True,
                encoding="utf-8",
                timeout=NODE_SECONDS,
            )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(next((line for line in lines if "Error" in line), "node failed"))
        return json.loads(done.stdout.splitlines()[-1])

    def logits(self, ids_T: Ids) -> Logits:
        answer = self._run({"ids": ids_T.tolist(), "steps": 0})
        return np.array(answer["logits"], dtype=np.float32).reshape(len(ids_T), -1)

    def greedy(self, ids_T: Ids, steps: int) -> list[int]:
        tokens: list[int] = self._run({"ids": ids_T.tolist(), "steps": steps})["tokens"]
        return tokens
