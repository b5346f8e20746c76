"""Head and loss of every kernel against the plain formula in float64. Those that need a GPU skip
where there is none.
"""

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import fresh_model, tiny_study
from tokencodes import loss
from tokencodes.errors import InputError

FLOATS = {
    "chunked": torch.float64,
    "torch": torch.float64,
    "liger": torch.float32,
    "cce": torch.bfloat16,
}
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}  # of the largest entry
CPU_KERNELS = ["chunked", "torch", "auto"]


@pytest.fixture(params=["chunked", "torch", "liger", "cce"])
def kernel(request) -> str:
    """Every kernel that can run here."""
    name = request.param
    if name in loss.PACKAGES and not torch.cuda.is_available():
        pytest.skip(f"{name} needs a CUDA GPU, and PyTorch sees none")
    if name in loss.PACKAGES and not loss.installed(name):
        pytest.skip(f"{name} is not installed: {loss.PIP[name]}")
    return name


def draw(
    targets: int,
    ignored: list[int],
    dtype: torch.dtype = torch.float64,
    width: int = 8,
    device: str = "cpu",
):
    generator = torch.Generator().manual_seed(targets)
    h = torch.randn(targets, width, generator=generator, dtype=torch.float64)
    head = torch.randn(50, width, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 50, (targets,), generator=generator)
    ids[ignored] = loss.IGNORE
    h, head = (tensor.to(device, dtype).requires_grad_() for tensor in (h, head))
    return h, head, ids.to(device)


def plain(h, head, ids, divisor: float = 1.0):
    """Value and both gradients by the formula, in float64."""
    h, head = (tensor.detach().double().requires_grad_() for tensor in (h, head))
    value = F.cross_entropy(h @ head.T, ids, ignore_index=loss.IGNORE, reduction="sum") / divisor
    value.backward()
    return value.detach(), h.grad, head.grad


def fused(h, head, ids, kernel: str, divisor: float = 1.0):
    """The same by a kernel."""
    value = loss.head_cross_entropy(h, head, ids, kernel) / divisor
    value.backward()
    return value.detach(), h.grad, head.grad


def assert_close(computed, expected, tolerance: float) -> None:
    for value, reference in zip(computed, expected, strict=True):
        scale = max(1.0, float(reference.abs().max()))
        assert float((value.double() - reference).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("ignored", ["none", "some", "all"])
@pytest.mark.parametrize("targets", [1, 7, 64])
@pytest.mark.parametrize("chunk_entries", [1, 150, 1 << 23])
def test_value_and_gradients_are_those_of_the_plain_formula(
    kernel, targets, ignored, chunk_entries, monkeypatch
):
    for name in ("CHUNK_ENTRIES", "CUDA_CHUNK_ENTRIES"):
        # 150: three rows of 50, which divide neither 7 nor 64
        monkeypatch.setattr(loss, name, chunk_entries)
    which = {"none": [], "some": [0, targets - 1], "all": list(range(targets))}[ignored]
    width, device = (64, "cuda") if kernel in loss.PACKAGES else (8, "cpu")
    h, head, ids = draw(targets, which, FLOATS[kernel], width, device)
    assert_close(fused(h, head, ids, kernel, 3), plain(h, head, ids, 3), EXACT[FLOATS[kernel]])


def test_without_gradients_it_is_the_same_number(kernel):
    device = "cuda" if kernel in loss.PACKAGES else "cpu"
    h, head, ids = draw(9, [2], torch.bfloat16 if kernel == "cce" else torch.float32, 64, device)
    with torch.no_grad():
        bare = loss.head_cross_entropy(h, head, ids, kernel)
    assert not bare.requires_grad
    assert torch.equal(bare, loss.head_cross_entropy(h, head, ids, kernel).detach())


def test_a_head_alone_can_be_trained(kernel):
    width, device = (64, "cuda") if kernel in loss.PACKAGES else (8, "cpu")
    h, head, ids = draw(9, [2], FLOATS[kernel], width, device)
    loss.head_cross_entropy(h.detach(), head, ids, kernel).backward()
    expected = plain(h, head, ids)[2]
    assert float((head.grad.double() - expected).abs().max()) <= EXACT[FLOATS[kernel]] * float(
        expected.abs().max()
    )


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_float32_is_within_rounding_of_float64(kernel):
    h, head, ids = draw(200, [], torch.float32)
    value, grad_h, grad_head = plain(h, head, ids)
    computed = fused(h, head, ids, kernel)
    assert computed[0].item() == pytest.approx(value.item(), rel=1e-6)
    for gradient, reference in zip(computed[1:], (grad_h, grad_head), strict=True):
        assert (gradient.double() - reference).norm() / reference.norm() < 1e-6


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_large_logits_do_not_overflow(kernel):
    h, head, ids = draw(5, [], torch.float32)
    assert torch.isfinite(loss.head_cross_entropy(h * 1e4, head, ids, kernel))


def test_what_does_not_count_cannot_spoil_what_does(kernel):
    device = "cuda" if kernel in loss.PACKAGES else "cpu"
    h, head, ids = draw(5, [2], torch.bfloat16 if kernel == "cce" else torch.float32, 64, device)
    with torch.no_grad():
        h[2] = float("nan")
    value = loss.head_cross_entropy(h, head, ids, kernel)
    value.backward()
    assert torch.isfinite(value)
    assert not h.grad[2].any()
    assert torch.isfinite(h.grad).all() and torch.isfinite(head.grad).all()


def test_a_bfloat16_heads_gradient_is_summed_in_float32(monkeypatch):
    h, head, ids = draw(4000, [], torch.bfloat16)
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", 500)
    computed, expected = fused(h, head, ids, "chunked"), plain(h, head, ids)
    assert (computed[2].double() - expected[2]).norm() / expected[2].norm() < 0.01


@pytest.mark.parametrize("kernel", ["chunked", "liger", "cce"], indirect=True)
def test_under_autocast_the_matmul_is_bfloat16_and_the_rest_is_not(kernel, monkeypatch):
    """The paper's setting: float32 parameters, bfloat16 matmul; the sum over targets and chunks
    must not be bfloat16.
    """
    device = "cuda" if kernel in loss.PACKAGES else "cpu"
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", 500)  # 400 chunks
    h, head, ids = draw(4000, [7], torch.float32, 64, device)
    with torch.autocast(device, torch.bfloat16):
        value = loss.head_cross_entropy(h, head, ids, kernel)
    value.backward()
    assert (value.dtype, h.grad.dtype, head.grad.dtype) == (torch.float32,) * 3
    # what is multiplied has bfloat16 entries
    exact = plain(h.detach().bfloat16(), head.detach().bfloat16(), ids)
    # one bfloat16 number has errors up to 4e-3
    assert value.item() == pytest.approx(exact[0].item(), rel=1e-4)
    for gradient, reference in zip((h.grad, head.grad), exact[1:], strict=True):
        assert (gradient.double() - reference).norm() / reference.norm() < 0.01
    with torch.no_grad():
        assert value.item() != loss.head_cross_entropy(h, head, ids, kernel).item(), (
            "not in bfloat16"
        )


def test_under_autocast_the_heads_gradient_keeps_its_own_precision(monkeypatch):
    # what a chunk adds has bfloat16 entries, their sum has not
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", 1000)
    h, head, ids = draw(300, [], torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss.head_cross_entropy(h, head, ids, "chunked").backward()
    assert not torch.equal(head.grad, head.grad.bfloat16().float())


def test_under_autocast_the_head_is_cast_once(monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", 150)
    h, head, ids = draw(64, [], torch.float32)
    casts = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._to_copy.default and args[0].shape == head.shape:
                casts.append(kwargs["dtype"])
            return function(*args, **(kwargs or {}))

    with torch.autocast("cpu", torch.bfloat16), Watch():
        loss.head_cross_entropy(h, head, ids, "chunked")
    assert casts == [torch.bfloat16]


def test_autocast_leaves_float64_alone():
    h, head, ids = draw(7, [])
    with torch.autocast("cpu", torch.bfloat16):
        value = loss.head_cross_entropy(h, head, ids)
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(plain(h, head, ids)[0].item(), rel=1e-12)


def test_the_model_uses_its_head_kernel(monkeypatch):
    model, kernels = fresh_model(tiny_study("nowhere").run("gf2", 1)), []
    head_cross_entropy = loss.head_cross_entropy

    def watched(h, head, targets, kernel):
        kernels.append(kernel)
        return head_cross_entropy(h, head, targets, kernel)

    monkeypatch.setattr("tokencodes.model.head_cross_entropy", watched)
    ids = torch.arange(12).reshape(2, 6)
    by_default = model.loss(ids, ids)
    model.loss_kernel = "torch"
    assert model.loss(ids, ids).item() == pytest.approx(by_default.item(), rel=1e-6)
    assert kernels == ["auto", "torch"]
    assert "loss_kernel" not in model.config.to_dict()


@pytest.mark.parametrize("kernel", ["liger", "cce"])
def test_a_kernel_for_gpus_says_so_on_a_cpu(kernel):
    with pytest.raises(
        InputError,
        match=rf"'{kernel}': runs on CUDA only, and these tensors are on cpu; use 'chunked'",
    ):
        loss.head_cross_entropy(*draw(3, [], torch.float32), kernel)


@pytest.mark.parametrize("kernel", ["liger", "cce"])
def test_a_kernel_that_is_not_installed_says_how_to_get_it(kernel, monkeypatch):
    monkeypatch.setattr(loss, "installed", lambda name: False)
    with pytest.raises(InputError, match=rf"'{kernel}': not installed; pip install"):
        loss.choose_kernel(kernel, "cuda", torch.bfloat16)


def test_a_package_that_cannot_be_imported_says_why(monkeypatch):
    def broken(name):
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(loss.importlib, "import_module", broken)
    with pytest.raises(
        InputError,
        match=r"'liger': No module named 'triton'; install it \(pip install 'liger-kernel",
    ):
        loss._liger(*draw(3, [], torch.float32))


def test_an_unknown_kernel_is_named_with_the_nearest():
    with pytest.raises(InputError, match="'chunky': no such kernel; did you mean 'chunked'"):
        loss.head_cross_entropy(*draw(3, [], torch.float32), "chunky")


def test_torchs_own_is_refused_where_it_would_add_up_in_bfloat16():
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(InputError, match="'torch': not for a matmul in bfloat16: it would add up"),
    ):
        loss.head_cross_entropy(*draw(3, [], torch.float32), "torch")


class OldRelease:
    """cut-cross-entropy as it is on PyPI."""

    @staticmethod
    def linear_cross_entropy(e, c, targets, ignore_index=-100, reduction="mean", filter_eps="high"):
        raise AssertionError("it must not be called")


class NewRelease:
    """As Apple has it."""

    @staticmethod
    def linear_cross_entropy(
        e, c, targets, filter_eps="auto", accum_e_fp32=False, accum_c_fp32=False
    ):
        raise AssertionError("it must not be called")


def test_a_cut_cross_entropy_that_adds_up_in_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(loss, "_import", lambda kernel, module: OldRelease)
    with pytest.raises(
        InputError, match=r"adds up the head's gradient in bfloat16; take Apple's own \(pip install"
    ):
        loss._cce(*draw(3, [], torch.bfloat16))


@pytest.mark.parametrize(
    ("there", "release", "dtype", "chosen"),
    [
        (["liger", "cce"], NewRelease, torch.bfloat16, "liger"),
        (["liger", "cce"], NewRelease, torch.float32, "liger"),
        (["liger", "cce"], NewRelease, torch.float64, "torch"),
        (["cce"], NewRelease, torch.bfloat16, "cce"),
        (["cce"], OldRelease, torch.bfloat16, "chunked"),
        (["cce"], NewRelease, torch.float32, "torch"),
        ([], None, torch.float32, "torch"),
        ([], None, torch.bfloat16, "chunked"),
    ],
)
def test_auto_on_a_gpu_takes_the_first_that_keeps_the_promise(
    there, release, dtype, chosen, monkeypatch
):
    monkeypatch.setattr(loss, "installed", lambda kernel: kernel in there)
    monkeypatch.setattr(loss, "_import", lambda kernel, module: release)
    assert loss.choose_kernel("auto", "cuda", dtype) == chosen
    assert loss.choose_kernel("auto", "cpu", dtype) == "chunked"


# What the module promises beside the numbers: which entries exist, and which package is asked for
# what.


def test_windows_become_inputs_and_targets_that_are_one_apart():
    windows = torch.tensor([[5, 6, 7, 8], [9, 3, -100, -100]])
    inputs, targets = loss.inputs_and_targets(windows)
    assert inputs.tolist() == [[5, 6, 7], [9, 3, 0]] and targets.tolist() == [
        [6, 7, 8],
        [3, -100, -100],
    ]
    assert loss.IGNORE == -100  # transformers' and torch's own


class On:
    """A tensor's device, for a rule that asks for no more."""

    def __init__(self, kind: str):
        self.device = torch.device(kind)


@pytest.mark.parametrize(
    ("vocab", "cpu", "cuda"),
    [
        (49152, 320, 1344),
        (3072, 5440, 21824),
        (1 << 18, 64, 256),
        (258112, 64, 256),
        (258111, 65 - 1, 256),
        (1 << 24, 1, 4),
    ],
)
def test_a_chunk_has_as_many_targets_as_its_logits_may_have_entries(vocab, cpu, cuda):
    head = torch.empty(vocab, 1, device="meta")
    assert loss.chunk_rows(On("cpu"), head) == cpu and loss.chunk_rows(On("cuda"), head) == cuda


@pytest.mark.parametrize(
    ("entries", "rows"),
    [(0, 1), (9, 1), (10, 1), (630, 63), (640, 64), (650, 64), (1279, 64), (1280, 128)],
)
def test_targets_of_a_chunk_are_a_multiple_of_64_from_there_on(entries, rows, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", entries)
    assert loss.chunk_rows(On("cpu"), torch.empty(10, 2)) == rows


def test_no_more_logits_exist_than_there_are_targets(monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_ENTRIES", 1 << 50)  # a petabyte, if they did
    h, head, ids = draw(5, [1])
    assert_close(fused(h, head, ids, "chunked"), plain(h, head, ids), 1e-12)


@pytest.mark.parametrize(
    ("h_grad", "head_grad", "enabled", "wanted"),
    [
        (True, True, True, True),
        (True, False, True, True),
        (False, True, True, True),
        (False, False, True, False),
        (True, True, False, False),
    ],
)
def test_gradients_are_computed_only_where_someone_wants_them(
    h_grad, head_grad, enabled, wanted, monkeypatch
):
    h, head, ids = draw(5, [1])
    h, head, seen = h.detach().requires_grad_(h_grad), head.detach().requires_grad_(head_grad), []
    apply = loss._HeadCrossEntropy.apply
    monkeypatch.setattr(
        loss._HeadCrossEntropy,
        "apply",
        lambda *arguments: seen.append(arguments[-1]) or apply(*arguments),
    )
    with torch.set_grad_enabled(enabled):
        value = loss.head_cross_entropy(h, head, ids, "chunked")
    assert seen == [wanted] and value.requires_grad == wanted


def test_torchs_own_is_asked_for_no_gradient_that_nobody_wants(monkeypatch):
    seen, own = [], F.linear_cross_entropy
    monkeypatch.setattr(
        loss.F,
        "linear_cross_entropy",
        lambda h, *more, **options: seen.append(h.requires_grad) or own(h, *more, **options),
    )
    h, head, ids = draw(5, [1])
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            loss.head_cross_entropy(h, head, ids, "torch")
    assert seen == [True, False]


@pytest.mark.parametrize("kernel", ["chunked"])
def test_a_second_backward_pass_is_refused(kernel):
    value = loss.head_cross_entropy(*draw(5, [1]), kernel)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="a second backward pass through the same loss"):
        value.backward()


class Package:
    """A kernel's package as far as it is used:
    keeps what it was asked, and answers by the formula."""

    def __init__(self):
        self.received = None

    def liger_fused_linear_cross_entropy(self, h, head, targets, **options):
        return self._answer(h, head, targets, options)

    def linear_cross_entropy(self, h, head, targets, accum_c_fp32=None, **options):
        return self._answer(h, head, targets, {**options, "accum_c_fp32": accum_c_fp32})

    def _answer(self, h, head, targets, options):
        self.received = {
            **options,
            "h": h.dtype,
            "head": head.dtype,
            "h wants": h.requires_grad,
            "zeros": ~h.any(1),
        }
        return F.cross_entropy(
            (h @ head.T).float(), targets, ignore_index=loss.IGNORE, reduction="sum"
        )


@pytest.fixture
def package(monkeypatch):
    fake = Package()
    monkeypatch.setattr(loss, "_import", lambda kernel, module: fake)
    return fake


def test_liger_is_asked_for_a_sum_in_float32_over_what_counts(package):
    h, head, ids = draw(5, [1], torch.bfloat16)
    value = loss._liger(h, head.float(), ids)
    assert value.item() == pytest.approx(plain(h, head, ids)[0].item(), rel=0.02)
    received = {
        key: package.received[key]
        for key in ("ignore_index", "reduction", "accum_dtype", "h", "head", "h wants")
    }
    assert received == {
        "ignore_index": -100,
        "reduction": "sum",
        "accum_dtype": torch.float32,
        "h": torch.bfloat16,
        "head": torch.bfloat16,
        "h wants": True,
    }
    assert package.received["zeros"].tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("h_grad", "head_grad", "enabled", "wanted"),
    [
        (False, True, True, True),
        (False, False, True, False),
        (False, True, False, False),
        (True, False, True, True),
    ],
)
def test_liger_computes_the_heads_gradient_only_beside_that_of_the_hidden_states(
    h_grad, head_grad, enabled, wanted, package
):
    h, head, ids = draw(5, [1], torch.float32)
    with torch.set_grad_enabled(enabled):
        loss._liger(h.detach().requires_grad_(h_grad), head.detach().requires_grad_(head_grad), ids)
    assert package.received["h wants"] == wanted


def test_cut_cross_entropy_is_asked_for_sums_in_float32_and_no_filter(package):
    h, head, ids = draw(5, [1], torch.bfloat16)
    value = loss._cce(h, head.float(), ids)
    assert value.item() == pytest.approx(plain(h, head, ids)[0].item(), rel=0.02)
    received = {
        key: package.received[key]
        for key in (
            "ignore_index",
            "reduction",
            "filter_eps",
            "accum_e_fp32",
            "accum_c_fp32",
            "head",
        )
    }
    assert received == {
        "ignore_index": -100,
        "reduction": "sum",
        "filter_eps": None,
        "accum_e_fp32": True,
        "accum_c_fp32": True,
        "head": torch.bfloat16,
    }


def test_cut_cross_entropy_is_not_started_where_no_target_counts(package):
    h, head, ids = draw(5, list(range(5)), torch.bfloat16)
    value = loss._cce(h, head, ids)
    value.backward()
    assert package.received is None and value.dtype == torch.float32 and value.item() == 0.0
    assert not h.grad.any() and not head.grad.any() and h.grad.shape == h.shape


def test_an_optional_package_is_found_without_being_imported(monkeypatch):
    names = []
    monkeypatch.setattr(
        loss.importlib.util,
        "find_spec",
        lambda name: names.append(name) or (name == "liger_kernel" or None),
    )
    assert loss.installed("liger") is True and loss.installed("cce") is False
    assert names == ["liger_kernel", "cut_cross_entropy"]
    assert loss._import("liger", "json").dumps([1]) == "[1]"


@pytest.mark.parametrize(
    ("kernel", "device", "dtype", "why"),
    [
        ("chunked", "cpu", torch.bfloat16, None),
        ("chunked", "cuda", torch.float64, None),
        ("torch", "cuda", torch.float32, None),
        ("torch", "cpu", torch.float64, None),
        ("torch", "cuda", torch.float16, "it would add up in that dtype"),
        ("liger", "cuda", torch.float32, None),
        ("liger", "cuda", torch.bfloat16, None),
        ("liger", "cuda", torch.float64, "it does not compute in that dtype"),
        ("cce", "cuda", torch.float16, None),
        ("cce", "cuda", torch.float32, "it does not compute in that dtype"),
        ("cce", "cuda", torch.float64, "it does not compute in that dtype"),
    ],
)
def test_a_kernel_that_is_asked_for_runs_or_says_why_not(kernel, device, dtype, why, monkeypatch):
    monkeypatch.setattr(loss, "installed", lambda name: True)
    if why is None:
        assert loss.choose_kernel(kernel, device, dtype) == kernel
    else:
        name = str(dtype).removeprefix("torch.")
        with pytest.raises(
            InputError,
            match=rf"'{kernel}': not for a matmul in {name}: {why}; use 'chunked' or 'auto'",
        ):
            loss.choose_kernel(kernel, device, dtype)


def test_the_matmul_runs_in_autocasts_dtype_and_else_in_its_own():
    h = torch.zeros(1, 2)
    assert (
        loss._matmul_dtype(h) == torch.float32 and loss._matmul_dtype(h.double()) == torch.float64
    )
    with torch.autocast("cpu", torch.float16):
        assert (
            loss._matmul_dtype(h) == torch.float16
            and loss._matmul_dtype(h.double()) == torch.float64
        )
    assert loss._matmul_dtype(h.bfloat16()) == torch.bfloat16
