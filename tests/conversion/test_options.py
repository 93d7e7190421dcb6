"""Every option that old checkpoints carry, against the old equations in plain loops."""

import functools
import json
import shutil
from pathlib import Path

import naive_mem_transformer as naive
import pytest
import torch
from transformers import AutoModelForCausalLM

import transformers_xl  # noqa: F401  registers the model types
from transformers_xl.modeling.conversion.original import NOT_IN_WEIGHTS, load_original

# torch writes the source text of classes into its old format, and these have none
pytestmark = pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")

THREE = {"cutoffs": [7, 15], "tie_projs": [False, True, True]}
OPTIONS = {
    "plain": {},
    "pre_norm": {"pre_lnorm": True},
    "same_length_and_clamp": {"same_length": True, "clamp_len": 3},
    "untied_embedding": {"tie_weight": False},
    "projected": {"d_embed": 8},
    "projected_and_tied": {"d_embed": 8, "tie_projs": [True]},
    "clusters_of_one_width": THREE,
    "clusters_of_one_width_projected": THREE | {"d_embed": 8},
    "clusters_of_one_width_untied": THREE | {"d_embed": 8, "tie_weight": False, "tie_projs": [False] * 3},
    "one_cluster_with_div_val": {"div_val": 2},
    "div_val_2": THREE | {"div_val": 2},
    "div_val_2_untied": THREE | {"div_val": 2, "tie_weight": False, "tie_projs": [False] * 3},
    "div_val_4_pre_norm": THREE
    | {"div_val": 4, "d_embed": 16, "pre_lnorm": True, "same_length": True, "clamp_len": 4},
    "no_memory": {"mem_len": 0},
}
IDS = torch.randint(0, 23, (1, 12), generator=torch.Generator().manual_seed(1))
LENGTHS = [4, 5, 3]


def read(model) -> torch.Tensor:
    """Log-probabilities of the text, read in segments."""
    memory, parts = {}, []
    for segment in IDS.split(LENGTHS, dim=1):
        output = model(segment, **memory)
        memory = {"mems": output.mems}
        parts.append(output.logits.log_softmax(-1)[0])
    return torch.cat(parts)


@pytest.fixture(params=OPTIONS)
def hyper(request) -> dict:
    return naive.HYPER | OPTIONS[request.param]


@functools.cache
def log_probs(name: str) -> torch.Tensor:
    """What the old equations say of the text with these options."""
    hyper = naive.HYPER | OPTIONS[name]
    return naive.log_probs(naive.random_weights(hyper), hyper, IDS[0].tolist(), LENGTHS, "reversed")


@pytest.fixture
def expected(request, hyper: dict) -> torch.Tensor:
    return log_probs(request.node.callspec.params["hyper"])


def test_a_state_dict_of_the_original(hyper: dict, expected: torch.Tensor, tmp_path: Path):
    weights = naive.random_weights(hyper)
    torch.save(weights, tmp_path / "state.pt")
    needed = [*NOT_IN_WEIGHTS, *(["cutoffs"] if hyper["cutoffs"] and hyper["div_val"] == 1 else [])]
    model = load_original(tmp_path / "state.pt", {name: hyper[name] for name in needed})
    torch.testing.assert_close(read(model), expected, atol=1e-5, rtol=1e-4)
    assert model.config.tie_word_embeddings == hyper["tie_weight"]
    if naive.has_projections(hyper):
        assert model.config.tie_projs == hyper["tie_projs"]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_module_of_the_original(hyper: dict, expected: torch.Tensor, zipped: bool, tmp_path: Path):
    """All hyper-parameters are read back from the module's attributes, and its classes are not there to be imported."""
    weights = naive.random_weights(hyper)
    with naive.original_classes():
        module = naive.module(weights, hyper)
        assert set(module.state_dict()) == {*weights} - {"pos_emb.inv_freq"}
        torch.save(module, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    model = load_original(tmp_path / "model.pt")
    torch.testing.assert_close(read(model), expected, atol=1e-5, rtol=1e-4)
    assert model.config.segment_length == hyper["tgt_len"]


@pytest.mark.parametrize("untie_r", [True, False])
def test_a_folder_of_transformers(hyper: dict, untie_r: bool, tmp_path: Path):
    weights = naive.random_weights(hyper, untie_r)
    names = (
        "d_model",
        "d_embed",
        "n_head",
        "d_head",
        "d_inner",
        "div_val",
        "n_layer",
        "mem_len",
        "clamp_len",
        "cutoffs",
    )
    config = {name: hyper[name] for name in (*names, "same_length", "pre_lnorm", "tie_projs")} | {
        "model_type": "transfo-xl",
        "vocab_size": hyper["n_token"],
        "untie_r": untie_r,
        "tie_word_embeddings": hyper["tie_weight"],
    }
    old = {name if name.startswith("crit.") else f"transformer.{name}": weight for name, weight in weights.items()}
    if not untie_r:  # that release wrote the shared biases under the name of every layer too
        for layer in range(hyper["n_layer"]):
            for name in ("r_w_bias", "r_r_bias"):
                old[f"transformer.layers.{layer}.dec_attn.{name}"] = weights[name]
    torch.save(old, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = naive.log_probs(weights, hyper, IDS[0].tolist(), LENGTHS, "natural", zeros=True)
    torch.testing.assert_close(read(model), expected, atol=1e-5, rtol=1e-4)


def test_the_options_differ():
    """Each option changes what the reference says, or the tests above would not see it."""
    results = [log_probs(name) for name in OPTIONS]
    for index, result in enumerate(results):
        assert all((result - other).abs().max() > 1e-2 for other in results[:index])
    hyper = naive.HYPER | OPTIONS["div_val_2"]
    orders = [
        naive.log_probs(naive.random_weights(hyper), hyper, [1, 2], [2], order) for order in ("natural", "reversed")
    ]
    assert (orders[0] - orders[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("attn_type", 1, "ShawTransformer"),
        ("attn_type", 2, "VanillaTransformer"),
        ("attn_type", 3, "VanillaTransformer"),
        ("ext_len", 4, "ext_len"),
        ("sample_softmax", 10, "sample_softmax"),
    ],
)
def test_what_is_not_carried_over(field: str, value: int, message: str, tmp_path: Path):
    path, far = tmp_path / "model.pt", tmp_path / ("x" * 200) / "y\n" / "model.pt"
    far.parent.mkdir(parents=True)
    with naive.original_classes():
        torch.save(naive.module(naive.random_weights(naive.HYPER), naive.HYPER | {field: value}), path)
    shutil.copy(path, far)
    for place, shown in ((path, repr(str(path))), (far, repr(str(far))[-100:])):
        with pytest.raises(ValueError, match=message) as raised:
            load_original(place)
        assert shown in str(raised.value)
        assert f"`{field}`={value}" in str(raised.value)
        assert len(str(raised.value)) < 300


@pytest.mark.parametrize("untold", [NOT_IN_WEIGHTS, ("same_length",)])
def test_a_file_far_away_is_refused_in_short_words(untold: tuple[str, ...], tmp_path: Path):
    """Weights alone, and a file that is none."""
    path = tmp_path / ("x" * 200) / ("\x01" * 100) / "state.pt"
    path.parent.mkdir(parents=True)
    weights = naive.random_weights(naive.HYPER | OPTIONS["clusters_of_one_width"])
    for value, reason in ((weights, ", ".join(untold)), ({"x" * 10_000: torch.zeros(1)}, "is refused")):
        torch.save(value, path)
        with pytest.raises(ValueError, match=reason) as raised:
            load_original(path, {name: naive.HYPER[name] for name in set(NOT_IN_WEIGHTS) - {*untold}})
        assert "state.pt'" in str(raised.value)
        assert len(str(raised.value)) < 300


def test_an_option_of_the_run_can_be_given_anew(tmp_path: Path):
    with naive.original_classes():
        torch.save(
            naive.module(naive.random_weights(naive.HYPER), naive.HYPER | {"ext_len": 4}), tmp_path / "model.pt"
        )
    model = load_original(tmp_path / "model.pt", {"ext_len": 0, "mem_len": 9, "same_length": True, "clamp_len": 5})
    assert (model.config.mem_len, model.config.same_length, model.config.clamp_len) == (9, True, 5)


def test_a_state_dict_asks_for_what_no_shape_tells(tmp_path: Path):
    hyper = naive.HYPER | OPTIONS["clusters_of_one_width"]
    torch.save(naive.random_weights(hyper), tmp_path / "state.pt")
    with pytest.raises(ValueError, match="mem_len, clamp_len, same_length, pre_lnorm, cutoffs"):
        load_original(tmp_path / "state.pt")
    given = {name: hyper[name] for name in (*NOT_IN_WEIGHTS, "cutoffs")}
    for name, value in (
        ("mem_len", "6"),
        ("same_length", 1),
        ("cutoffs", [1.5]),
        ("mem_length", 6),
        ("mem_len", True),
    ):
        with pytest.raises(ValueError, match=f"`{name}`"):
            load_original(tmp_path / "state.pt", given | {name: value})


def test_a_wrapper_for_many_gpus_is_taken_off(tmp_path: Path):
    weights = naive.random_weights(naive.HYPER)
    with naive.original_classes():
        torch.save(torch.nn.DataParallel(naive.module(weights, naive.HYPER)), tmp_path / "model.pt")
    torch.save({f"module.{name}": weight for name, weight in weights.items()}, tmp_path / "state.pt")
    given = {name: naive.HYPER[name] for name in NOT_IN_WEIGHTS}
    results = [read(load_original(tmp_path / "model.pt")), read(load_original(tmp_path / "state.pt", given))]
    torch.testing.assert_close(*results)
