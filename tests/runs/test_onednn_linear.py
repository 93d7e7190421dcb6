"""Linear layers that multiply by oneDNN: values and gradients are torch's own, and they are linear layers to everybody."""

import copy
import io
import pickle
import platform
from pathlib import Path

import pytest
import torch
from optional_packages import needs
from tiny import FLOAT32, read, tensors_of, tiny_model, tokens, variants
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from transformers_xl.runs import onednn_linear
from transformers_xl.runs.onednn_linear import (
    accelerate_linear_layers,
    gains_by_onednn,
    linear,
    use_onednn_linear,
    use_torch_linear,
)

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
    monkeypatch.setattr(onednn_linear, "LARGE_WEIGHT", 1)


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
        monkeypatch.setattr(onednn_linear, "_onednn_linear", None)  # a torch without it
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


@pytest.fixture
def model():
    """Every layer of it multiplies by oneDNN, where small products do."""
    return use_onednn_linear(tiny_model("transformer_xl", "causal_lm", dtype=torch.float32))


def num_linear_layers(model: nn.Module) -> int:
    return sum(isinstance(module, nn.Linear) for module in model.modules())


@pytest.mark.parametrize(
    ("vendor", "family", "swapped"),
    [("GenuineIntel", 6, False), ("GenuineIntel", 26, False), ("AuthenticAMD", 25, False), ("AuthenticAMD", 26, True)],
)
def test_the_processor_decides(monkeypatch, tmp_path: Path, vendor, family, swapped):
    """On Linux and on Windows; a model on another processor is left as it is."""
    model, cpuinfo = nn.Sequential(nn.Linear(2, 2)), tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 44\n")
    monkeypatch.setattr("transformers_xl.files.processor.CPUINFO", cpuinfo)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert gains_by_onednn() == swapped
    cpuinfo.unlink()
    assert not gains_by_onednn()
    monkeypatch.setattr(platform, "processor", lambda: f"AMD64 Family {family} Model 44 Stepping 1, {vendor}")
    assert gains_by_onednn() == swapped
    assert accelerate_linear_layers(model) is model
    assert (type(model[0]) is not nn.Linear) == swapped


@pytest.mark.parametrize("model_type", variants())
def test_every_variant_is_the_same_model(everywhere, model_type):
    """Logits, memory and gradients, over three segments."""
    head = "causal_lm" if model_type in variants(causal_lm=True) else "token_classification"
    model, ids = tiny_model(model_type, head, dtype=torch.float32), tokens(2, 18)
    results = []
    for swap in (use_onednn_linear, use_torch_linear):
        swap(model)
        logits, memory = read(model, ids, [6, 6, 6])
        loss = logits.log_softmax(-1).square().mean()
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, learned, allow_unused=True)
        remembered = tensors_of(memory["mems"]) if memory["mems"] else []
        results.append([logits, *remembered, *(each for each in gradients if each is not None)])
    for ours, expected in zip(*results, strict=True):
        scale = max(1.0, expected.float().abs().max().item() if expected.numel() else 0.0)
        torch.testing.assert_close(ours, expected, atol=1e-4 * scale, rtol=1e-3)
    assert counted(lambda: model(ids[:, :6]))["onednn"] == 0
    assert counted(lambda: use_onednn_linear(model)(ids[:, :6]))["onednn"] > 0


def test_the_same_layers_and_back(everywhere):
    """Parameters, names and hooks stay; layers that are more than `nn.Linear` are left alone."""

    class Doubling(nn.Linear):
        def forward(self, input):
            return 2 * super().forward(input)

    model = tiny_model("transformer_xl", "causal_lm", dtype=torch.float32)
    attention = model.model.layers[1].self_attn
    attention.q_proj = Doubling(32, 32)
    nn.utils.parametrizations.weight_norm(attention.v_proj)
    others = [attention.q_proj, attention.v_proj]
    layer, seen = model.model.layers[0].mlp.fc1, []
    for register in (layer.register_forward_hook, layer.register_forward_pre_hook, layer.register_full_backward_hook):
        register(lambda *arguments: seen.append(len(arguments)))
    modules, parameters, names = list(model.modules()), list(model.parameters()), list(model.state_dict())
    classes = [type(module) for module in modules]
    layers = num_linear_layers(model)

    expected = model(tokens(1, 5)).logits
    assert use_onednn_linear(model) is model
    for now, before in ((model.modules(), modules), (model.parameters(), parameters)):
        assert [id(each) for each in now] == [id(each) for each in before]
    assert list(model.state_dict()) == names
    assert num_linear_layers(model) == layers
    assert [type(module) for module in others] == [classes[modules.index(module)] for module in others]
    seen.clear()
    counts = counted(lambda: torch.testing.assert_close(model(tokens(1, 5)).logits, expected, **FLOAT32))
    assert counts == {"onednn": layers - 2, "torch": 2}
    model(tokens(1, 5)).logits.sum().backward()
    assert len(seen) == 5  # two before, two after, one of the gradient

    assert use_torch_linear(model) is model
    assert [type(module) for module in model.modules()] == classes
    assert torch.equal(model(tokens(1, 5)).logits, expected)


def test_a_layer_is_changed_afterwards(model, everywhere):
    """By a parametrization, or as Accelerate does it, to bring weights from elsewhere."""
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    expected = model(tokens(1, 5)).logits
    nn.utils.parametrizations.weight_norm(attention.v_proj)
    forward, seen = mlp.fc1.forward, []
    mlp.fc1.forward = lambda states: seen.append(1) or forward(states)
    torch.testing.assert_close(model(tokens(1, 5)).logits, expected, **FLOAT32)
    assert seen
    nn.utils.parametrize.remove_parametrizations(attention.v_proj, "weight")
    assert num_linear_layers(use_torch_linear(model)) == sum(type(module) is nn.Linear for module in model.modules())


def test_copies_and_files_are_plain(model, everywhere, tmp_path: Path):
    """They need no class of this package, and `quantize_dynamic`, which copies, knows `nn.Linear` alone."""
    expected, file = model(tokens(1, 5)).logits, io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    model.save_pretrained(tmp_path)
    for other in (
        copy.deepcopy(model),
        *(pickle.loads(pickle.dumps(model, protocol)) for protocol in (0, 2, pickle.HIGHEST_PROTOCOL)),
        torch.load(file, weights_only=False),
        type(model).from_pretrained(tmp_path),
    ):
        other.eval()
        assert num_linear_layers(other) == sum(type(module) is nn.Linear for module in other.modules())
        torch.testing.assert_close(other(tokens(1, 5)).logits, expected, **FLOAT32)
    assert "onednn" not in "".join(path.name + path.read_text() for path in tmp_path.rglob("*.py"))
    eight_bits = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert num_linear_layers(eight_bits) == 0


def test_activation_checkpoints(model, everywhere):
    """What is computed again is computed alike: a checkpoint refuses anything else."""
    model.train()
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


def test_generated_tokens(model, everywhere):
    """With a cache, in inference mode: at every step the logits of torch's own products on the same text."""
    settings = {"max_new_tokens": 20, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    mine = []
    counts = counted(lambda: mine.append(model.generate(tokens(2, 5), **settings)))
    assert counts["onednn"] > 20
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        expected = model(mine[0].sequences[:, :-1]).logits[:, 4:]
    torch.testing.assert_close(torch.stack(mine[0].logits, dim=1), expected, **FLOAT32)


def test_graphs_hold_torchs_own_products(model, everywhere):
    """What is compiled or exported runs where oneDNN is not."""
    program = torch.export.export(model, (tokens(1, 5),), strict=False)
    torch.testing.assert_close(program.module()(tokens(1, 5)).logits, model(tokens(1, 5)).logits, **FLOAT32)
    codes = [program.graph_module.code]

    def backend(graph, inputs):
        codes.append(graph.code)
        return graph.forward

    layer, states = model.model.layers[0].mlp.fc1, torch.randn(3, 32)
    torch.testing.assert_close(torch.compile(layer, backend=backend, fullgraph=True)(states), layer(states), **FLOAT32)
    assert len(codes) == 2
    assert all("linear" in code and "mkldnn" not in code for code in codes)


def test_adapters(model, everywhere):
    """LoRA wraps these layers as any linear ones, and takes part in them when it is merged."""
    peft = needs("peft")
    expected = model(tokens(1, 5)).logits
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)).eval()
    assert isinstance(model.model.layers[0].mlp.fc1, peft.tuners.lora.Linear)
    logits = adapted(tokens(1, 5)).logits
    assert not torch.allclose(logits, expected, atol=1e-3)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(tokens(1, 5)).logits, logits, atol=1e-4, rtol=1e-3)


def test_eight_bits_of_torchao(model, everywhere):
    needs("torchao")
    from torchao import quantization

    expected = model(tokens(1, 5)).logits
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    assert type(model.model.layers[0].mlp.fc1.weight) is not nn.Parameter
    counts = counted(lambda: torch.testing.assert_close(model(tokens(1, 5)).logits, expected, atol=0.2, rtol=0.1))
    assert counts["onednn"] == 0
