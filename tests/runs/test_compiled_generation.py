"""A compiled step of generation: the tokens of the model, its weights as they are now, and what it does not fit."""

import copy
import pickle
import shutil

import pytest
import torch
from optional_packages import needs
from tiny import MEM_LEN, tiny_model, tokens

from transformers_xl.runs import compiled_generation
from transformers_xl.runs.compiled_generation import compile_generation

NEW = 2 * MEM_LEN
pytestmark = [
    pytest.mark.slow,  # a C++ compiler runs for some 20 seconds
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("steps")


def small(model_type: str = "transformer_xl", **fields):
    torch.manual_seed(0)
    return tiny_model(model_type, "causal_lm", torch.float32, **({"num_hidden_layers": 2} | fields)).eval()


def generated(model, prompt: torch.Tensor, **kwargs) -> torch.Tensor:
    return model.generate(prompt, max_new_tokens=NEW, pad_token_id=0, **kwargs)


class Counted:
    """The package of a step, and how many tokens it has read."""

    def __init__(self, package):
        self.package, self.calls = package, 0

    def __call__(self, *args):
        self.calls += 1
        return self.package(*args)

    def __getattr__(self, name: str):
        return getattr(self.package, name)


def compiled(model, folder, batch: int = 2) -> Counted:
    step = compile_generation(model, batch, folder)
    step.package = Counted(step.package)
    return step.package


@pytest.mark.parametrize(("model_type", "layers"), [("transformer_xl", 2), ("streaming_transformer", 1)])
def test_generation_says_what_it_said_before(folder, model_type: str, layers: int):
    """In rings, and as a function of a memory with states."""
    model, prompt = small(model_type, num_hidden_layers=layers), tokens(2, 3 * MEM_LEN + 1)
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    cases = [
        {},
        {"attention_mask": mask},
        {"do_sample": True, "temperature": 0.7},
        {"eos_token_id": int(generated(model, prompt)[0, prompt.shape[1] + 4])},  # a row ends before the other
    ]
    expected = []
    for case in cases:
        torch.manual_seed(1)
        expected.append(generated(model, prompt, **case))
    package = compiled(model, folder)
    for case, wanted in zip(cases, expected, strict=True):
        package.calls = 0
        torch.manual_seed(1)
        assert torch.equal(generated(model, prompt, **case), wanted)
        assert package.calls == wanted.shape[1] - prompt.shape[1] - 1


def test_a_text_continues_from_its_memory(folder):
    model, prompt = small(), tokens(2, 5)
    whole = generated(model, prompt)
    end = int(whole[1, prompt.shape[1] + 2])
    eager = model.generate(prompt, max_new_tokens=NEW, pad_token_id=0, eos_token_id=end, return_dict_in_generate=True)
    again = tokens(2, 4)
    wanted = generated(model, again, mems=eager.mems)
    compiled(model, folder)
    result = model.generate(prompt, max_new_tokens=NEW, pad_token_id=0, eos_token_id=end, return_dict_in_generate=True)
    assert torch.equal(result.sequences, eager.sequences)
    assert torch.equal(generated(model, again, mems=result.mems), wanted)


def test_it_reads_the_weights_that_the_model_has_now(folder):
    model, prompt = small(), tokens(2, 5)
    package = compiled(model, folder)
    before = generated(model, prompt)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.model.layers[0].self_attn.r_proj.weight = torch.nn.Parameter(
        -model.model.layers[0].self_attn.r_proj.weight.detach()
    )
    after = generated(model, prompt)
    assert package.calls == 2 * (NEW - 1)
    assert not torch.equal(after, before)
    assert torch.equal(after, generated(model, prompt, disable_compile=True))
    assert package.calls == 2 * (NEW - 1)


@pytest.mark.parametrize(("model_type", "layers"), [("transformer_xl", 2), ("streaming_transformer", 1)])
def test_autocast_runs_as_before(folder, model_type: str, layers: int):
    """Compiled code would read the types that autocast makes as its own."""
    model, prompt = small(model_type, num_hidden_layers=layers), tokens(2, 5)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = generated(model, prompt)
    package = compiled(model, folder)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(generated(model, prompt), wanted)
    assert package.calls == 0
    generated(model, prompt)
    assert package.calls == NEW - 1


def test_settings_that_stand_in_the_code_are_refused(folder):
    """They change no weight's name, shape or type."""
    model = small("depth_adaptive_transformer", confidence_thresholds=[0.3])
    compiled(model, folder)
    generated(model, tokens(2, 5))
    model.config.confidence_thresholds = [0.999]
    with pytest.raises(ValueError, match="fields of its config"):
        generated(model, tokens(2, 5))
    model.config.confidence_thresholds = [0.3]
    generated(model, tokens(2, 5))


def test_adapters_that_are_switched_are_refused(folder):
    peft = needs("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(small(), config).eval()
    model, prompt = adapted.base_model.model, tokens(2, 5)
    compiled(model, folder)
    wanted = generated(model, prompt)
    with adapted.disable_adapter(), pytest.raises(ValueError, match="other layers, adapters"):
        generated(model, prompt)
    adapted.merge_adapter()
    with pytest.raises(ValueError, match="other layers, adapters"):
        generated(model, prompt)
    adapted.unmerge_adapter()
    for layer in model.modules():
        if hasattr(layer, "scale_layer"):
            layer.scale_layer(2.0)
    with pytest.raises(ValueError, match="other layers, adapters"):
        generated(model, prompt)
    for layer in model.modules():
        if hasattr(layer, "scale_layer"):
            layer.scale_layer(0.5)
    assert torch.equal(generated(model, prompt), wanted)


def test_a_copy_has_weights_of_its_own(folder):
    """Also while the model that it was made of writes."""
    model, prompt = small(), tokens(2, 5)
    compiled(model, folder)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    wanted = generated(model, prompt), generated(other, prompt, disable_compile=True)

    def another(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert torch.equal(generated(other, prompt), wanted[1])
        return scores

    assert torch.equal(generated(model, prompt, logits_processor=[another]), wanted[0])
    assert torch.equal(wanted[0], generated(model, prompt, disable_compile=True))
    other.generation_step.path = folder / "gone.pt2"
    assert copy.deepcopy(other).generation_step is None


def test_weights_that_lie_otherwise(folder):
    model, prompt = small(), tokens(2, 5)
    package = compiled(model, folder)
    wanted = generated(model, prompt)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()
    assert torch.equal(generated(model, prompt), wanted)
    assert package.calls == 2 * (NEW - 1)


def test_weights_that_were_one_are_not_read_as_one(folder):
    model, prompt = small(tie_word_embeddings=True), tokens(2, 5)
    compiled(model, folder)
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())
    with pytest.raises(ValueError, match="compiled for another model"):
        generated(model, prompt)


def test_hooks_are_called(folder):
    model, prompt = small(), tokens(2, 5)
    model(prompt, output_hidden_states=True)  # transformers' hooks change nothing
    package = compiled(model, folder)
    plain = generated(model, prompt)
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        is_after = register == "register_forward_hook"
        handle = getattr(model.lm_head, register)(
            lambda _, *states: -states[-1] if len(states) > 1 else (-states[0][0],)
        )
        package.calls, wanted = 0, generated(model, prompt, disable_compile=True)
        assert torch.equal(generated(model, prompt), wanted), is_after
        assert not torch.equal(wanted, plain)
        assert package.calls == 0
        with pytest.raises(ValueError, match="forward hooks"):
            compile_generation(model, 2, folder)
        handle.remove()
    assert torch.equal(generated(model, prompt), plain)


def test_what_it_does_not_fit_runs_as_before(folder):
    model = small()
    cases = [({}, tokens(1, 5)), ({"num_beams": 2}, tokens(1, 5)), ({"output_attentions": True}, tokens(2, 5))]
    expected = [generated(model, prompt, **case) for case, prompt in cases]
    package = compiled(model, folder)
    for (case, prompt), wanted in zip(cases, expected, strict=True):
        assert torch.equal(generated(model, prompt, **case), wanted)
    assert package.calls == 0


def test_a_model_that_has_changed_is_refused(folder):
    """Compiled code would read other shapes all the same."""
    changes = [
        lambda model: model.resize_memory(MEM_LEN - 1),
        lambda model: model.to(torch.bfloat16),
        lambda model: setattr(model.model.layers[0].mlp, "added", torch.nn.Linear(2, 2)),
    ]
    for change in changes:
        model = small()
        compiled(model, folder)
        change(model)
        with pytest.raises(ValueError, match="compile_generation"):
            generated(model, tokens(2, 5))
        model.generation_step = None
        generated(model, tokens(2, 5))


@pytest.mark.parametrize("mem_len", [MEM_LEN - 1, MEM_LEN + 1])
def test_another_length_of_the_memory_is_refused_where_no_weight_tells(mem_len: int, folder):
    model = tiny_model("streaming_transformer", "causal_lm", dtype=torch.float32)
    compile_generation(model, batch=2, folder=folder)
    model.resize_memory(mem_len)
    with pytest.raises(ValueError, match="such as `mem_len`"):
        generated(model, tokens(2, 5))


def test_a_model_in_training_mode_and_copies(folder, tmp_path):
    model, prompt = small(dropout=0.5), tokens(2, 5)
    package = compiled(model, folder)
    wanted = generated(model, prompt)
    other = copy.deepcopy(model)
    other.generation_step.package = mine = Counted(other.generation_step.package)
    assert torch.equal(generated(other, prompt), wanted)
    assert mine.calls == NEW - 1
    again = pickle.loads(pickle.dumps(model))
    calls = package.calls
    assert torch.equal(generated(again, prompt), wanted)  # by the model itself
    torch.manual_seed(0)
    dropped = generated(model.train(), prompt)
    assert package.calls == calls == NEW - 1
    assert not torch.equal(dropped, wanted)
    model.save_pretrained(tmp_path)
    assert "cache_implementation" not in (tmp_path / "generation_config.json").read_text()


def test_a_step_is_compiled_once_for_each_graph(folder, monkeypatch):
    compile_generation(small(), 2, folder)
    kept = sorted(folder.iterdir())
    monkeypatch.setattr(compiled_generation.torch._inductor, "aoti_compile_and_package", lambda *args, **kwargs: 1 / 0)
    torch.manual_seed(5)
    compile_generation(tiny_model("transformer_xl", "causal_lm", torch.float32, num_hidden_layers=2).eval(), 2, folder)
    with pytest.raises(ZeroDivisionError):
        compile_generation(small(mem_len=MEM_LEN + 1), 2, folder)
    assert sorted(folder.iterdir()) == kept
    assert {path.suffix for path in kept} == {".pt2"}


def test_what_cannot_be_compiled_is_refused(folder):
    with pytest.raises(ValueError, match="training mode"):
        compile_generation(small().train(), 2, folder)
    with pytest.raises(ValueError, match="no place for"):
        compile_generation(tiny_model("sha_rnn", "causal_lm", torch.float32).eval(), 2, folder)
