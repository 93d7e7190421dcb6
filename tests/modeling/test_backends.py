"""Every backend of relative attention against its definition, written out query by query: values and gradients."""

from importlib import import_module

import pytest
import torch
from naive_relative_attention import SHAPES, TOLERANCE, arguments, by_column, by_definition, by_window
from tiny import EXACT, FLOAT32, pairwise, tiny_model, tokens

from transformers_xl.modeling.auto import register_kernels
from transformers_xl.modeling.layers import attention
from transformers_xl.modeling.memory.memory_value import Memory
from transformers_xl.modeling.ops import relative_attention, wide_attention
from transformers_xl.modeling.ops.relative_attention import (
    BACKENDS,
    Backend,
    FarColumns,
    position_scores,
    register_backend,
)

EACH_BACKEND = [
    pytest.param(row, dtype, id=f"{name} {dtype}", marks=[pytest.mark.gpu] if row.device_type == "cuda" else [])
    for name, row in BACKENDS.items()
    for dtype in row.dtypes
]
each_backend = pytest.mark.parametrize(("backend", "dtype"), EACH_BACKEND)


def in_every_type(cases: list[tuple]) -> list:
    """On a CPU all cases in float64, where nothing hides in a tolerance, and every third in another type."""
    return [
        pytest.param(*given.values, *case, id=f"{given.id} {case}", marks=given.marks)
        for given in EACH_BACKEND
        for case in cases[:: 1 if given.marks or given.values[1] == torch.float64 else 3]
    ]


# kernels, pieces and blocks of other sizes: a head in its own buffer, rows and heads apart, few queries at a time
SIZES = [(2**16, 2**20, 32), (2**16, 9, 32), (2**16, 18, 2), (1, 2**20, 3)]


def sizes_of(backend: Backend) -> list[tuple[int, int, int]]:
    return SIZES if backend.function is wide_attention.wide_attention else SIZES[:1]


def set_sizes(monkeypatch, one_head: int, piece: int, block: int) -> None:
    monkeypatch.setattr(wide_attention, "ONE_HEAD", one_head)
    monkeypatch.setattr(wide_attention, "PIECE", piece)
    monkeypatch.setattr(wide_attention, "BLOCK", block)
    monkeypatch.setattr(wide_attention, "READ_BLOCK", block)


@pytest.mark.parametrize(
    ("backend", "dtype", "shape", "window", "padded", "recompute"),
    in_every_type(pairwise(SHAPES, [None, 1, 3, 6, 20], [False, True], [False, True])),
)
def test_values_and_gradients(backend, dtype, shape, window, padded, recompute, monkeypatch):
    """Also in small pieces and blocks, in place head by head, and with rows of which some tokens see nothing."""
    given = arguments(shape, dtype, backend.device_type)
    batch, _, length, memory, _ = shape
    seen = by_window(length, memory + length, window).expand(batch, -1, -1)
    visible = None
    if padded:
        seen = seen & (torch.rand(batch, 1, memory + length) < 0.6)
        visible = seen[:, None].to(backend.device_type)
    distance = by_column(length, memory + length).to(backend.device_type)
    expected = by_definition(*given, seen.to(backend.device_type), distance, scaling=0.7)
    direction = torch.randn_like(expected)
    # where no query sees anything, nothing depends on anything
    expected_gradients = (
        torch.autograd.grad((expected * direction).sum(), given, allow_unused=True)
        if seen.any()
        else [None] * len(given)
    )
    for sizes in sizes_of(backend):
        set_sizes(monkeypatch, *sizes)
        output = backend.function(*given, visible=visible, window=window, scaling=0.7, recompute=recompute)
        torch.testing.assert_close(output, expected, **TOLERANCE[dtype])
        with torch.no_grad():
            again = backend.function(*given, visible=visible, window=window, scaling=0.7)
        assert again.isfinite().all()
        if length == 1:  # what one token reads that sees nothing, which is padding, is not specified
            again = again.where(seen.any(-1)[..., None, None].to(again.device), 0.0)
        torch.testing.assert_close(again, expected, **TOLERANCE[dtype])
        gradients = torch.autograd.grad((output * direction).sum(), given)
        for gradient, wanted, tensor in zip(gradients, expected_gradients, given, strict=True):
            wanted = torch.zeros_like(tensor) if wanted is None else wanted
            torch.testing.assert_close(gradient, wanted, **TOLERANCE[dtype])


FAR_SHAPES = [(1, 1, 1, 0, 1), (2, 3, 1, 6, 4), (3, 2, 5, 2, 4), (2, 1, 4, 9, 3), (4, 2, 7, 7, 2)]


@pytest.mark.parametrize(
    ("backend", "dtype", "shape", "window", "padded", "hidden", "recompute"),
    in_every_type(pairwise(FAR_SHAPES, [None, 3], [False, True], [None, "some", "rows"], [False, True])),
)
def test_far_columns_at_told_distances(backend, dtype, shape, window, padded, hidden, recompute, monkeypatch):
    """Six columns anywhere beside the window, the same for all rows or not; some tokens see nothing."""
    (batch, heads, length, memory, width), num_far, nearest = shape, 6, 2
    if backend.function is not wide_attention.wide_attention:
        pytest.skip("leaves these to attention in steps")
    num_keys, device = memory + length, backend.device_type
    query, key, value, _, *biases = arguments(shape, dtype, device)
    far_key, far_value = (torch.randn(batch, heads, num_far, width, dtype=dtype, device=device) for _ in range(2))
    positions = torch.randn(heads, num_keys + 9, width, dtype=dtype, device=device)
    given = [query, key, value, positions, *biases, far_key, far_value]
    given = [each.detach().requires_grad_() for each in given]
    distance = torch.randint(nearest, num_keys + 8, (batch if hidden == "rows" else 1, length, num_far), device=device)
    far_seen = torch.ones(1, 1, length, num_far, dtype=torch.bool, device=device)
    if hidden is not None:
        far_seen = torch.rand(batch if hidden == "rows" else 1, 1, length, num_far, device=device) < 0.5
    near_seen = by_window(length, num_keys, window).expand(batch, -1, -1).to(device)
    visible = None
    if padded:
        near_seen = near_seen & (torch.rand(batch, 1, num_keys, device=device) < 0.6)
        visible = near_seen[:, None]
    near = by_column(length, num_keys).to(device)
    both = [torch.cat(pair, dim=2) for pair in ((given[6], given[1]), (given[7], given[2]))]
    seen = torch.cat([far_seen[:, 0].expand(batch, -1, -1), near_seen], dim=-1)
    distances = torch.cat([distance.expand(batch, -1, -1), near.expand(batch, -1, -1)], dim=-1)
    expected = by_definition(given[0], *both, *given[3:6], seen, distances, scaling=0.7)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * direction).sum(), given)

    far = FarColumns(*given[6:], None if hidden is None else far_seen, distance, nearest)
    for sizes in sizes_of(backend):
        set_sizes(monkeypatch, *sizes)
        options = {"visible": visible, "window": window, "scaling": 0.7, "far": far}
        output = backend.function(*given[:6], **options, recompute=recompute)
        torch.testing.assert_close(output, expected, **TOLERANCE[dtype])
        with torch.no_grad():
            torch.testing.assert_close(backend.function(*given[:6], **options), expected, **TOLERANCE[dtype])
        torch.testing.assert_close(torch.autograd.grad((output * direction).sum(), given), wanted, **TOLERANCE[dtype])


@each_backend
@pytest.mark.parametrize("window", [None, 3, 20])
def test_far_columns_directly_with_far_columns_of_one_token(backend, dtype, window):
    query, key, value, positions, *biases = arguments((2, 3, 1, 12, 4), dtype, backend.device_type)
    near = min(window or 9, 9)
    far = FarColumns(key[:, :, :4], value[:, :, :4])
    parts = (key[:, :, 4:], value[:, :, 4:])
    keys = [torch.cat([part[:, :, :4], part[:, :, 13 - near :]], dim=2) for part in (key, value)]
    seen = torch.ones(2, 1, 4 + near, dtype=torch.bool, device=backend.device_type)
    distance = by_column(1, 4 + near).to(backend.device_type)
    expected = by_definition(query, *keys, positions, *biases, seen, distance, scaling=0.7)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            output = backend.function(query, *parts, positions, *biases, None, window, 0.7, far=far)
        torch.testing.assert_close(output, expected, **TOLERANCE[dtype])


def test_gradients_of_gradients_are_refused():
    """In one piece: they would be wrong without a word. The attention in plain steps has them."""
    given = arguments((1, 2, 3, 2, 4), torch.float64, "cpu")
    output = wide_attention.wide_attention(*given, None, None, 0.5)
    gradient = torch.autograd.grad(output.square().sum(), given[0], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_model_that_may_learn_is_exported():
    """Outside of `no_grad`, where a graph is traced through the autograd function."""
    model, ids = tiny_model("transformer_xl", "causal_lm"), tokens(2, 5)
    program = torch.export.export(model, (ids,), strict=False)
    torch.testing.assert_close(program.module()(ids).logits, model(ids).logits, **EXACT)


def test_a_backend_registers_itself(monkeypatch):
    """The newest for the device and type is used by the models; "eager" and other types pass it by."""
    calls = []

    def spy(*arguments, **options):
        calls.append(options)
        return wide_attention.wide_attention(*arguments, **options)

    monkeypatch.setattr(relative_attention, "BACKENDS", dict(BACKENDS))
    register_backend("spy", spy, "cpu", (torch.float64,))
    model = tiny_model("transformer_xl")
    expected = model(tokens(2, 5)).last_hidden_state
    assert len(calls) == 2
    assert all(options["visible"] is None for options in calls)
    model(tokens(2, 5), attention_mask=torch.tensor([[0, 1, 1, 1, 1], [1] * 5]))
    assert all(options["visible"] is not None for options in calls[2:])
    calls.clear()
    model.float()(tokens(2, 5))
    model.double().set_attn_implementation("eager")
    torch.testing.assert_close(model(tokens(2, 5)).last_hidden_state, expected, **FLOAT32)
    assert not calls


def test_under_autocast_a_backend_is_chosen_by_its_type(monkeypatch):
    """On a CPU there is none for bfloat16 until one registers itself."""
    query = torch.randn(1, 2, 3, 4)
    monkeypatch.setattr(relative_attention, "BACKENDS", dict(BACKENDS))
    with torch.autocast("cpu", torch.bfloat16):
        assert relative_attention.relative_backend("sdpa", query) is None
        register_backend(
            "bf16", torch.add, "cpu", (torch.bfloat16,), lambda width, dtype, far: far is None and width < 5
        )
        assert relative_attention.relative_backend("sdpa", query) is torch.add
        assert relative_attention.relative_backend("sdpa", torch.cat([query, query], dim=-1)) is None
        assert relative_attention.relative_backend("sdpa", query, FarColumns(query, query)) is None
    assert relative_attention.relative_backend("sdpa", query) is wide_attention.wide_attention


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_model_learns_on_a_gpu_what_it_learns_on_a_cpu(checkpointed: bool):
    gradients = []
    for device in ("cpu", "cuda"):
        model = tiny_model("transformer_xl", "causal_lm", torch.float32).to(device).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        ids = tokens(2, 20).to(device)
        model(ids, labels=ids, attention_mask=(ids != 5).long()).loss.backward()
        gradients.append({name: parameter.grad.cpu() for name, parameter in model.named_parameters()})
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-3)


def kept_for_backward(model, ids: torch.Tensor, mems: Memory) -> int:
    """Bytes of the tensors that the backward pass will read, each storage once, parameters left out."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(ids, mems=mems, labels=ids).loss
    size = sum(storages.values())
    loss.backward()
    return size


def test_recomputing_keeps_no_weights():
    """The weights are the largest of what is kept: `(batch, heads, segment, memory + segment)` in every layer."""
    sizes = []
    for recompute in (False, True):
        model = tiny_model("transformer_xl", "causal_lm", recompute_attention=recompute, mem_len=64)
        mems = model(tokens(2, 64)).mems
        sizes.append(kept_for_backward(model, tokens(2, 32), mems))
    weights = 2 * (2 * 4 * 32 * 96) * 8
    assert sizes[0] - sizes[1] == pytest.approx(weights, rel=0.02)


def test_the_package_registers_the_kernels(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relative_attention, "BACKENDS", {})
    register_kernels()
    assert [(name, each.device_type) for name, each in relative_attention.BACKENDS.items()] == [("triton", "cuda")]
    assert (
        relative_attention.BACKENDS["triton"].takes
        is import_module("transformers_xl.modeling.ops.triton_attention").takes
    )


def test_without_a_backend_a_long_text_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch):
    """As on a GPU without the kernels: nothing of the size of text x text is made, and the numbers are those of one."""
    model, ids = tiny_model("transformer_xl"), tokens(2, 700)
    expected, made = model(ids).last_hidden_state, []

    def noted(*given) -> torch.Tensor:
        made.append(position_scores(*given))
        return made[-1]

    monkeypatch.setattr(relative_attention, "BACKENDS", {})
    monkeypatch.setattr(attention, "position_scores", noted)
    for mask in (None, torch.ones_like(ids)):
        torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state, expected, **EXACT)
    assert made
    assert max(each.shape[-1] for each in made) < 200
