"""Products by oneDNN are torch's own, values and gradients, and nobody who looks at linear layers sees a difference."""

import platform

import pytest
import torch
from tiny import FLOAT32, read, tiny_model, tokens, variants
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from transformers_xl.modeling.ops import products
from transformers_xl.modeling.ops.products import linear, through

HAS_ONEDNN = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()
pytestmark = pytest.mark.skipif(not HAS_ONEDNN, reason="products stay torch's own on this processor")
SHAPES = [((4, 6), 5), ((2, 3, 8), 4), ((1, 1, 16), 8), ((2, 1, 3, 4), 7)]


class Products(TorchDispatchMode):
    """Counts the products that go to oneDNN, and those that do not."""

    def __init__(self):
        super().__init__()
        self.counts = {"onednn": 0, "torch": 0}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if name.startswith("mkldnn::"):
            self.counts["onednn"] += 1
        elif name in ("aten::mm", "aten::addmm", "aten::linear"):
            self.counts["torch"] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def everywhere(monkeypatch):
    """Small products go to oneDNN too."""
    monkeypatch.setattr(products, "LARGE_WEIGHT", 1)


def counted(function) -> dict[str, int]:
    with Products() as mode:
        function()
    return mode.counts


def operands(shape: tuple, outputs: int, bias: bool = True) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    sizes = [shape, (outputs, shape[-1]), (outputs,)]
    return [torch.randn(size).requires_grad_() for size in sizes[: 2 + bias]] + [None] * (not bias)


@pytest.mark.parametrize(("shape", "outputs"), SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    "learning", [{0, 1, 2}, {0}, {1, 2}, {2}, set()], ids=["all", "states", "layer", "bias", "nothing"]
)
def test_values_and_gradients(everywhere, shape, outputs, bias, learning):
    """Also of the gradients: a gradient penalty asks for them."""
    given = [tensor for tensor in operands(shape, outputs, bias) if tensor is not None]
    learning = {index for index in learning if index < len(given)}
    for index, tensor in enumerate(given):
        tensor.requires_grad_(index in learning)
    direction = torch.randn(*shape[:-1], outputs)
    results = []
    for function in (linear, nn.functional.linear):
        output = function(*given)
        results.append([output])
        learned = [tensor for tensor in given if tensor.requires_grad]
        if learned:
            gradients = torch.autograd.grad((output.square() * direction).sum(), learned, create_graph=True)
            results[-1] += gradients
            penalty = sum(gradient.square().sum() for gradient in gradients)
            results[-1] += torch.autograd.grad(penalty, learned)
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    assert counted(lambda: linear(*given))["onednn"] == 1


def test_strides(everywhere):
    """States that lie in any way, gradients that stand in one place for many, weights along either side."""
    states, weight, bias = operands((6, 5, 4), 3)
    for view in (states.transpose(0, 1), states[::2], states[:, :1].expand(-1, 5, -1)):
        for matrix in (weight, weight.mT.contiguous().mT, torch.cat([weight, weight], dim=1)[:, ::2]):
            pair = [linear(view, matrix, bias), nn.functional.linear(view, matrix, bias)]
            torch.testing.assert_close(*pair, **FLOAT32)
            by_sum = [torch.autograd.grad(output.sum(), (states, weight, bias), retain_graph=True) for output in pair]
            for ours, expected in zip(*by_sum, strict=True):
                torch.testing.assert_close(ours, expected, **FLOAT32)
    for addend in (torch.ones(6)[::2], torch.ones(1).expand(3)):
        torch.testing.assert_close(
            linear(states, weight, addend), nn.functional.linear(states, weight, addend), **FLOAT32
        )
    assert linear(states[:0], weight, bias).shape == (0, 5, 3)
    assert linear(states[0, 0], weight, bias).shape == (3,)


def test_what_goes_to_onednn(monkeypatch):
    """Large float32 products, and no others; the switch of torch holds."""
    large = operands((64, 256), 256, bias=False)[:2]
    small = operands((32, 64), 64, bias=False)[:2]
    one_token = operands((1, 256), 1024, bias=False)[:2]
    onednn, plain = {"onednn": 1, "torch": 0}, {"onednn": 0, "torch": 1}
    with torch.no_grad():
        assert counted(lambda: linear(*large)) == onednn
        assert counted(lambda: linear(*one_token)) == onednn
        assert counted(lambda: linear(*small)) == plain
        assert counted(lambda: linear(*(tensor.double() for tensor in large))) == plain
        assert counted(lambda: linear(*(tensor.bfloat16() for tensor in large)))["onednn"] == 0
        with torch.backends.mkldnn.flags(enabled=False):
            assert counted(lambda: linear(*large)) == plain
        with torch.autocast("cpu", torch.bfloat16):
            assert linear(*large).dtype == torch.bfloat16
        monkeypatch.setattr(products, "_onednn_linear", None)  # a torch without it
        assert counted(lambda: linear(*large)) == plain


def test_nothing_more_is_kept(everywhere):
    """For the backward pass: what only a frozen weight would need is not, as in torch."""
    for learning in ({0}, {1}, {0, 1}):
        kept = []
        for function in (linear, nn.functional.linear):
            given = [
                tensor.requires_grad_(i in learning) for i, tensor in enumerate(operands((4, 6), 5, bias=False)[:2])
            ]
            sizes: list[int] = []
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor, s=sizes: s.append(tensor.numel()), lambda _: 0
            ):
                function(*given)
            kept.append(sorted(sizes))
        assert kept[0] == kept[1]


def test_transformed_functions(everywhere):
    """Tangents and transformations of functions come out as torch makes them; a tracer sees torch's own operations."""
    states, weight, bias = (tensor.detach() for tensor in operands((4, 6), 5))
    tangent = torch.randn(4, 6)

    def of_bias(function):
        return torch.func.grad(lambda b: function(states, weight, b).square().sum())(bias)

    for transformed in (
        lambda function: torch.func.jvp(lambda s: function(s, weight, bias), (states,), (tangent,)),
        lambda function: torch.func.jacfwd(lambda s: function(s, weight, bias))(states),
        lambda function: torch.func.vmap(lambda s: function(s, weight, bias))(states[:, None]),
        lambda function: torch.func.hessian(lambda s: function(s, weight, bias).square().sum())(states),
        of_bias,
        lambda function: torch.jit.trace(lambda s: function(s, weight, bias), states, check_trace=False)(states),
    ):
        torch.testing.assert_close(transformed(linear), transformed(nn.functional.linear), **FLOAT32)


@pytest.mark.parametrize("model_type", variants())
def test_every_variant_is_the_same_model(model_type, monkeypatch):
    """Logits, memory and gradients, over three segments."""
    head = "causal_lm" if model_type in variants(causal_lm=True) else "token_classification"
    model, ids = tiny_model(model_type, head, dtype=torch.float32), tokens(2, 18)
    results = []
    for large in (1, 2**62):
        monkeypatch.setattr(products, "LARGE_WEIGHT", large)
        monkeypatch.setattr(products, "LARGE_PRODUCT", 2**62)
        logits, memory = read(model, ids, [6, 6, 6])
        loss = logits.log_softmax(-1).square().mean()
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, learned, allow_unused=True)
        results.append([logits, *(memory.get("mems") or ()), *(each for each in gradients if each is not None)])
    for ours, expected in zip(*results, strict=True):
        scale = max(1.0, expected.abs().max().item() if expected.numel() else 0.0)
        torch.testing.assert_close(ours, expected, atol=1e-4 * scale, rtol=1e-3)
    monkeypatch.setattr(products, "LARGE_WEIGHT", 1)
    assert counted(lambda: model(ids[:, :6]))["onednn"] > 0


def test_layers_stay_what_they_are(everywhere):
    """Whoever changes or watches a linear layer gets an ordinary call of it."""
    model = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32)
    layer = model.model.layers[0].mlp.fc1
    expected = model(tokens(1, 5)).logits
    layers = sum(type(module) is nn.Linear for module in model.modules())

    def all_but_this_one() -> bool:
        counts = counted(lambda: torch.testing.assert_close(model(tokens(1, 5)).logits, expected, **FLOAT32))
        return counts == {"onednn": layers - 1, "torch": 1}

    assert counted(lambda: model(tokens(1, 5))) == {"onednn": layers, "torch": 0}
    seen = []
    watch = lambda *arguments: seen.append(len(arguments))  # noqa: E731
    for register in (layer.register_forward_hook, layer.register_forward_pre_hook, layer.register_full_backward_hook):
        handle = register(watch)
        assert all_but_this_one()
        model(tokens(1, 5)).logits.sum().backward()
        assert seen
        handle.remove()
        seen.clear()
    forward = layer.forward  # as Accelerate does it, to bring weights from elsewhere
    layer.forward = lambda states: seen.append(1) or forward(states)
    assert all_but_this_one()
    assert seen
    del layer.forward
    handle = nn.modules.module.register_module_forward_hook(watch)
    assert counted(lambda: model(tokens(1, 5))) == {"onednn": 0, "torch": layers}
    handle.remove()
    assert counted(lambda: model(tokens(1, 5))) == {"onednn": layers, "torch": 0}
    nn.utils.parametrizations.weight_norm(layer)
    assert all_but_this_one()


def test_activation_checkpoints(everywhere):
    """What is computed again is computed alike: a checkpoint refuses anything else."""
    model = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        loss = model(tokens(2, 5), labels=tokens(2, 5)).loss
        gradients.append(torch.autograd.grad(loss, model.model.layers[0].mlp.fc1.weight)[0])
    assert torch.equal(*gradients)


def test_operations_are_counted(everywhere):
    states, weight, _ = operands((3, 5, 8), 4)
    counts = []
    for function in (linear, nn.functional.linear):
        with FlopCounterMode(display=False) as counter:
            function(states, weight).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * 3 * 5 * 8 * 4] * 2


def test_generated_tokens(everywhere):
    """The engine of an ordinary model in inference mode."""
    model = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32)
    with torch.backends.mkldnn.flags(enabled=False):
        expected = model.generate(tokens(2, 5), max_new_tokens=20, do_sample=False)
    mine = []
    counts = counted(lambda: mine.append(model.generate(tokens(2, 5), max_new_tokens=20, do_sample=False)))
    assert torch.equal(mine[0], expected)
    assert counts["onednn"] > 20


def test_other_modules_are_called():
    """A subclass says itself how it multiplies."""

    class Doubling(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    layer = Doubling(3, 3)
    assert torch.equal(through(layer, torch.ones(1, 3)), layer(torch.ones(1, 3)))
