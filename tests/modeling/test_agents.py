"""Agents of every variant: spaces of gymnasium, policies, encoders, the step before, loading. The numbers of GTrXL are in
`test_gtrxl_actor_critic.py`."""

import json

import numpy as np
import pytest
import torch
from optional_packages import needs
from tiny import EXACT, memory_of, tiny_config, tokens
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.utils import logging

from transformers_xl import (
    AutoModelForActorCritic,
    GTrXLConfig,
    GTrXLForActorCritic,
    TransformerXLConfig,
    TransformerXLForActorCritic,
)
from transformers_xl.modeling.auto import VARIANTS
from transformers_xl.modeling.layers.policies import CategoricalPolicy, Choices, ChoicesPolicy, GaussianPolicy

AGENTS = [name for name, row in VARIANTS.items() if row.actor_critic_class is not None]
BATCH, STEPS, WIDTH = 3, 17, 5


def agent(model_type: str = "gtrxl", encoder: nn.Module | None = None, **fields):
    torch.manual_seed(0)
    fields = {"num_actions": 3, "observation_size": WIDTH} | fields
    modules = {} if encoder is None else {"encoder": encoder}
    return VARIANTS[model_type].actor_critic_class(tiny_config(model_type, **fields), **modules).double().eval()


def rollout(steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Observations, and what came before each: an action, a reward, and whether an episode begins."""
    generator = torch.Generator().manual_seed(1)
    return {
        "observations": torch.randn(BATCH, steps, WIDTH, dtype=torch.float64, generator=generator),
        "last_actions": torch.randint(0, 3, (BATCH, steps), generator=generator),
        "last_rewards": torch.randn(BATCH, steps, dtype=torch.float64, generator=generator),
        "reset": torch.rand(BATCH, steps, generator=generator) < 0.2,
    }


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
@pytest.mark.parametrize("model_type", AGENTS)
def test_step_by_step_is_one_window(model_type, use_cache):
    model, given = agent(model_type, reads_last_step=True), rollout()
    window = model(**given)
    memory, logits, values = {}, [], []
    for step in range(STEPS):
        here = {name: value[:, step : step + 1] for name, value in given.items() if name != "reset"}
        output = model(**here, reset=given["reset"][:, step], use_cache=use_cache, **memory)
        memory = memory_of(output)
        logits.append(output.logits)
        values.append(output.value)
    torch.testing.assert_close(torch.cat(logits, dim=1), window.logits, **EXACT)
    torch.testing.assert_close(torch.cat(values, dim=1), window.value, **EXACT)


@pytest.mark.parametrize("model_type", AGENTS)
def test_every_parameter_learns(model_type):
    model, given = agent(model_type, reads_last_step=True), rollout()
    output = model(**given)
    policy = model.distribution(output.logits)
    (policy.log_prob(policy.sample()).sum() + output.value.square().sum()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_step_before_is_read_and_not_across_a_reset():
    model, given = agent(reads_last_step=True), rollout()
    given["reset"] = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    given["reset"][:, [0, 6]] = True
    output = model(**given).logits
    for step, is_read in ((6, False), (7, True)):
        other = {name: value.clone() for name, value in given.items()}
        other["last_actions"][:, step] = (other["last_actions"][:, step] + 1) % 3
        other["last_rewards"][:, step] += 1
        assert torch.equal(model(**other).logits, output) is not is_read


def test_where_an_episode_begins_the_step_before_may_be_anything():
    model, given = agent(reads_last_step=True), rollout()
    changed = given | {"last_actions": given["last_actions"].masked_fill(given["reset"], -1)}
    assert torch.equal(model(**changed).logits, model(**given).logits)
    given["attention_mask"] = torch.ones(BATCH, STEPS, dtype=torch.long)
    given["attention_mask"][0, :3] = 0
    changed = given | {"last_actions": given["last_actions"].masked_fill(given["attention_mask"] == 0, -1)}
    assert torch.equal(model(**changed).logits[1:], model(**given).logits[1:])
    unread = given["reset"] | (given["attention_mask"] == 0)
    torch.compile(model, backend="eager", fullgraph=True)(**given)
    for fields in ({}, {"num_actions": None, "action_size": 2}):  # numbers that nobody wrote are not read either
        model, real = agent(reads_last_step=True, **fields), given["attention_mask"] == 1
        numbers = given if not fields else given | {"last_actions": torch.ones(BATCH, STEPS, 2).double()}
        changed = numbers | {"last_rewards": numbers["last_rewards"].masked_fill(unread, torch.nan)}
        if fields:
            changed["last_actions"] = numbers["last_actions"].masked_fill(unread[..., None], torch.nan)
        found, expected = (model(**each).logits[real] for each in (changed, numbers))
        torch.testing.assert_close(found, expected, **EXACT)
        found, expected = (
            torch.autograd.grad(each.square().sum(), [*model.last_step.parameters()]) for each in (found, expected)
        )
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])
def test_the_first_step_of_an_episode_reads_none_before_it_where_padding_stands_first(use_cache):
    """`reset` may stand at the row, at the padding before the step, or at padding that ends the call before."""
    model, given, later = agent(reads_last_step=True), rollout(), rollout(STEPS + 1)
    del given["reset"]
    memory = model(**given, reset=torch.zeros(BATCH, dtype=torch.bool), use_cache=use_cache)
    steps = {name: value[:, 2:6] for name, value in later.items() if name != "reset"}
    begins = torch.arange(BATCH) == 0
    expected = model(**steps, reset=begins, **memory_of(memory)).logits
    padded = {name: torch.cat([value[:, :2], value], dim=1) for name, value in steps.items()}
    mask = (torch.arange(6) >= 2).expand(BATCH, 6).long()
    for reset in (begins, begins[:, None] & (torch.arange(6) == 1)):
        memory = model(**given, use_cache=use_cache)
        read = model(**padded, attention_mask=mask, reset=reset, **memory_of(memory)).logits[:, 2:]
        torch.testing.assert_close(read, expected, **EXACT)
    if use_cache:  # with one, a mask may be that of the whole history
        memory = model(**given, use_cache=use_cache)
        history = torch.cat([torch.ones(BATCH, STEPS, dtype=torch.long), mask], dim=1)
        read = model(**padded, attention_mask=history, reset=begins, **memory_of(memory)).logits[:, 2:]
        torch.testing.assert_close(read, expected, **EXACT)
    closing = {name: torch.cat([value, value[:, :1]], dim=1) for name, value in given.items()}
    mask = (torch.arange(STEPS + 1) < STEPS).expand(BATCH, -1).long()
    reset = begins[:, None] & (torch.arange(STEPS + 1) == STEPS)
    memory = model(**closing, attention_mask=mask, reset=reset, use_cache=use_cache)
    torch.testing.assert_close(model(**steps, **memory_of(memory)).logits, expected, **EXACT)


def test_the_step_before_is_a_sum_of_projections():
    model, given = agent(reads_last_step=True), rollout()
    plain = agent()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "last_step" not in name})
    last, reset = model.last_step, given["reset"]
    read = nn.functional.one_hot(given["last_actions"], 3).double() @ last.action_proj.weight.T
    read = read + given["last_rewards"][..., None] * last.reward_proj.weight[:, 0]
    embeds = plain.observation_proj(given["observations"]) + torch.where(reset[..., None], 0.0, read)
    expected = plain(inputs_embeds=embeds, reset=reset).logits
    torch.testing.assert_close(model(**given).logits, expected, **EXACT)


def test_token_ids_have_a_step_before_too():
    model = agent(observation_size=None, num_actions=[2, 3], reads_last_step=True)
    actions, rewards = torch.stack([tokens(2, 4) % 2, tokens(2, 4) % 3], dim=-1), torch.zeros(2, 4)
    assert model(input_ids=tokens(2, 4), last_actions=actions, last_rewards=rewards).logits.shape == (2, 4, 5)


def test_several_choices_are_independent():
    logits = torch.randn(2, 3, 7, dtype=torch.float64)
    policy, parts = Choices(logits, (2, 5)), (logits[..., :2].softmax(-1), logits[..., 2:].softmax(-1))
    actions = policy.sample()
    assert actions.shape == (2, 3, 2)
    expected = sum(part.gather(-1, actions[..., i : i + 1])[..., 0].log() for i, part in enumerate(parts))
    torch.testing.assert_close(policy.log_prob(actions), expected)
    torch.testing.assert_close(policy.entropy(), sum(-(part * part.log()).sum(-1) for part in parts))
    assert torch.equal(policy.mode, torch.stack([part.argmax(-1) for part in parts], dim=-1))
    assert policy.sample((4,)).shape == (4, 2, 3, 2)
    torch.testing.assert_close(policy.log_prob(actions.numpy()), expected)


def test_numbers_have_a_normal_distribution():
    head = GaussianPolicy(4, 2).double()
    nn.init.normal_(head.log_std)
    states, deviation = torch.randn(3, 5, 4, dtype=torch.float64), head.log_std.exp()
    policy = head.distribution(head(states))
    mean = states @ head.weight.T + head.bias
    torch.testing.assert_close(policy.mode, mean)
    actions = policy.sample()
    density = torch.exp(-0.5 * ((actions - mean) / deviation) ** 2) / (deviation * (2 * torch.pi) ** 0.5)
    for given in (actions, actions.numpy()):
        torch.testing.assert_close(policy.log_prob(given), density.prod(-1).log())
    entropy = (0.5 * torch.log(2 * torch.pi * torch.e * deviation**2)).sum()
    torch.testing.assert_close(policy.entropy(), entropy.expand(3, 5))


@pytest.mark.parametrize("head", [CategoricalPolicy(4, 3), ChoicesPolicy(4, [3, 2]), GaussianPolicy(4, 2)], ids=repr)
def test_an_environment_may_write_into_actions_before_the_backward_pass(head):
    states, gradients = torch.randn(2, 3, 4), []
    actions = head.distribution(head(states)).sample()
    for given in (actions, actions.numpy().copy()):
        loss = head.distribution(head(states)).log_prob(given).sum()
        if given is not actions:
            given[:] = 0
        gradients.append(torch.autograd.grad(loss, head.bias)[0])
    torch.testing.assert_close(*gradients)


def test_a_config_takes_spaces(tmp_path):
    spaces = needs("gymnasium").spaces
    image, box = spaces.Box(0, 255, (7, 9, 3), np.uint8), spaces.Box(-1, 1, (5,))
    for space, field, value in (
        (spaces.Discrete(4), "num_actions", 4),
        (spaces.MultiDiscrete([2, 3]), "num_actions", [2, 3]),
        (spaces.MultiBinary(2), "num_actions", [2, 2]),
        (type("Few", (spaces.Discrete,), {})(4), "num_actions", 4),
        (spaces.MultiDiscrete([2, 3]).nvec, "num_actions", [2, 3]),
        ((2, 3), "num_actions", [2, 3]),
        (box, "action_size", 5),
    ):
        assert getattr(GTrXLConfig(num_actions=space), field) == value
    for space, field, value in (
        (spaces.Discrete(9), "vocab_size", 9),
        (box, "observation_size", 5),
        (image, "image_shape", [7, 9, 3]),
    ):
        config = TransformerXLConfig(num_actions=2, observation_size=space)
        assert getattr(config, field) == value
        config.save_pretrained(tmp_path)
        assert TransformerXLConfig.from_pretrained(tmp_path).to_dict() == config.to_dict() | {"_name_or_path": ""}
        json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("field", ["num_actions", "observation_size"])
def test_a_space_that_no_field_holds_is_refused(field):
    spaces = needs("gymnasium").spaces
    with pytest.raises(ValueError, match=f"`{field}`=Dict"):
        GTrXLConfig(**{field: spaces.Dict({"a": spaces.Discrete(2)})})
    with pytest.raises(ValueError, match=f"`{field}`=.* does not begin at 0"):
        GTrXLConfig(**{field: spaces.Discrete(2, start=1)})


def test_a_space_and_a_field_that_contradict_each_other_are_refused():
    spaces = needs("gymnasium").spaces
    image, box = spaces.Box(0, 255, (7, 9, 3), np.uint8), spaces.Box(-1, 1, (5,))
    for shape in ((7, 9, 3), np.array([7, 9, 3])):
        assert GTrXLConfig(num_actions=2, observation_size=image, image_shape=shape).image_shape == [7, 9, 3]
    for fields, message in (
        (
            {"observation_size": spaces.Discrete(5), "vocab_size": 9},
            "`vocab_size`=9 is not that of `observation_size`",
        ),
        ({"observation_size": image, "image_shape": [4, 4, 3]}, "`image_shape`"),
        ({"num_actions": box, "action_size": 2}, "`action_size`=2"),
        ({"num_actions": spaces.Box(0, 9, (2,), np.int64)}, "holds integers"),
        ({"observation_size": spaces.Box(0, 1, (2, 3))}, "reads one axis"),
        ({"observation_size": spaces.MultiBinary((2, 3))}, "reads one axis"),
        ({"observation_size": spaces.Box(0, 255, (3, 9, 9), np.uint8)}, "channels in front"),
        ({"num_actions": None, "action_size": box}, "pass it as `num_actions`"),
        ({"image_shape": image}, "pass it as `observation_size`"),
        ({"vocab_size": spaces.Discrete(3)}, "pass it as `observation_size`"),
    ):
        with pytest.raises(ValueError, match=message):
            GTrXLConfig(**{"num_actions": 2} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_actions": []}, "`num_actions`"),
        ({"num_actions": [2, 0]}, "`num_actions`"),
        ({"num_actions": 2, "action_size": 1}, "two kinds of actions"),
        ({"observation_size": 2, "image_shape": [1, 2, 3]}, "two kinds of observations"),
        ({"image_shape": [7, 7]}, "`image_shape`"),
        ({"action_size": 0}, "`action_size`"),
    ],
)
def test_fields_that_describe_no_agent_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        GTrXLConfig(**fields)


def test_an_agent_has_no_dropout_and_a_wide_feed_forward_unless_told(tmp_path):
    config = GTrXLConfig(num_actions=2, hidden_size=32, num_attention_heads=2)
    assert (config.dropout, config.intermediate_size) == (0.0, 128)
    given = GTrXLConfig(num_actions=2, hidden_size=32, num_attention_heads=2, dropout=0.1, intermediate_size=2048)
    given.save_pretrained(tmp_path)
    loaded = GTrXLConfig.from_pretrained(tmp_path)
    assert (loaded.dropout, loaded.intermediate_size) == (0.1, 2048)
    assert (GTrXLConfig().dropout, GTrXLConfig().intermediate_size) == (0.1, 2048)


def test_dropout_in_training_is_warned_of(caplog, monkeypatch):
    monkeypatch.setattr(logging.get_logger("transformers_xl"), "propagate", True)
    logging.get_logger("transformers_xl.modeling.actor_critic").warning_once.__func__.cache_clear()
    model = agent(dropout=0.1)
    model(rollout()["observations"])
    assert "dropout" not in caplog.text
    model.train()(rollout()["observations"])
    assert "`dropout`=0.1" in caplog.text
    agent(dropout=0.0, embedding_dropout=0.2).train()(rollout()["observations"])
    assert "`embedding_dropout`=0.2" in caplog.text


def test_steps_that_see_more_in_a_rollout_than_alone_are_warned_of_in_training(caplog, monkeypatch):
    monkeypatch.setattr(logging.get_logger("transformers_xl"), "propagate", True)
    logging.get_logger("transformers_xl.modeling.actor_critic").warning_once.__func__.cache_clear()
    agent(same_length=False)(rollout()["observations"])
    agent(same_length=False, mem_len=0).train()(rollout()["observations"])
    agent().train()(rollout()["observations"])
    assert "same_length" not in caplog.text
    agent(same_length=False, mem_len=5).train()(rollout()["observations"])
    assert "`same_length`=False and `mem_len`=5" in caplog.text


def test_images_are_read_by_a_small_network(tmp_path):
    model = agent(observation_size=None, image_shape=[7, 9, 3])
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 7, 9, 3), dtype=np.uint8)
    logits = model(images).logits
    assert logits.shape == (2, 4, 3)
    torch.testing.assert_close(model(torch.tensor(images / 255)).logits, logits)
    alone = model(images[1:, 2:3], reset=np.ones(1, dtype=bool)).logits
    torch.testing.assert_close(alone, model(images[1:, 2:], reset=np.ones(1, dtype=bool)).logits[:, :1])
    model.save_pretrained(tmp_path)
    assert torch.equal(GTrXLForActorCritic.from_pretrained(tmp_path).double().eval()(images).logits, logits)
    with pytest.raises(ValueError, match=r"`observations` has shape \(2, 7, 9, 3\)"):
        model(images[:, 0])


class DictEncoder(nn.Module):
    """Of an environment that shows a position and a direction."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.position, self.direction = nn.Linear(2, hidden_size), nn.Embedding(4, hidden_size)

    def forward(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        position = observations["position"].to(self.position.weight.dtype)
        return self.position(position) + self.direction(observations["direction"])


def test_an_encoder_of_ones_own_reads_dicts_and_is_saved(tmp_path):
    encoder = DictEncoder(32)
    weights = {name: value.clone() for name, value in encoder.state_dict().items()}
    model = agent(observation_size=None, encoder=encoder, reads_last_step=True)
    for name, value in weights.items():
        assert torch.equal(model.observation_proj.state_dict()[name], value.double())
    given = {
        "observations": {"position": np.zeros((2, 4, 2)), "direction": np.ones((2, 4), dtype=np.int64)},
        "last_actions": np.zeros((2, 4), dtype=np.int64),
        "last_rewards": np.zeros((2, 4)),
    }
    logits = model(**given).logits
    logits.sum().backward()
    assert model.observation_proj.direction.weight.grad is not None
    model.save_pretrained(tmp_path)
    loaded = GTrXLForActorCritic.from_pretrained(tmp_path, encoder=DictEncoder(32)).double().eval()
    assert torch.equal(loaded(**given).logits, logits)
    with pytest.raises(ValueError, match="pass an `encoder`"):
        agent(observation_size=None)(**{"observations": given["observations"]})


class OwnAgent(GTrXLForActorCritic):
    def build_encoder(self, config):
        return DictEncoder(config.hidden_size)


def test_a_sub_class_builds_its_encoder(tmp_path):
    model = OwnAgent(tiny_config("gtrxl", num_actions=3)).eval()
    observations = {"position": torch.zeros(2, 4, 2), "direction": torch.ones(2, 4, dtype=torch.long)}
    model.save_pretrained(tmp_path)
    assert torch.equal(OwnAgent.from_pretrained(tmp_path)(observations).logits, model(observations).logits)
    assert "GTrXLForActorCritic" in json.loads((tmp_path / "config.json").read_text())["auto_map"]["AutoModel"]
    for auto in (AutoModel, AutoModelForCausalLM):
        with pytest.raises(ValueError, match="holds an agent, and .* would drop its policy"):
            auto.from_pretrained(tmp_path)


@pytest.mark.parametrize("load", [AutoModelForActorCritic, GTrXLForActorCritic, TransformerXLForActorCritic])
def test_an_agent_is_not_loaded_without_its_encoder(load, tmp_path):
    for encoder in (DictEncoder(32), nn.Flatten(2)):  # the second has no weights
        agent(observation_size=None, encoder=encoder).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=r"holds an agent that has not the same weights as .* pass `encoder`"):
            load.from_pretrained(tmp_path)
    agent(observation_size=None, encoder=DictEncoder(32)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=": pass `encoder`, a module like the one that it has"):
        load.from_pretrained(tmp_path)


class ScaledEncoder(nn.Linear):
    """Keeps a number that is not saved."""

    def __init__(self, hidden_size: int):
        super().__init__(WIDTH, hidden_size)
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return super().forward(observations) * self.scale


class ScaledAgent(GTrXLForActorCritic):
    def build_encoder(self, config):
        return ScaledEncoder(config.hidden_size)


@pytest.mark.parametrize("is_passed", [True, False])
def test_buffers_that_are_not_saved_keep_their_values(is_passed, tmp_path):
    config = tiny_config("gtrxl", num_actions=3)
    model = GTrXLForActorCritic(config, encoder=ScaledEncoder(32)) if is_passed else ScaledAgent(config)
    model.save_pretrained(tmp_path)
    given = {"encoder": ScaledEncoder(32) if is_passed else None}
    loaded, info = type(model).from_pretrained(tmp_path, **given, output_loading_info=True)
    assert not info["missing_keys"]
    observations = rollout()["observations"].float()
    assert torch.equal(loaded(observations).logits, model.eval()(observations).logits)


def test_what_is_no_encoder_and_what_needs_one_is_refused():
    with pytest.raises(ValueError, match="`encoder`=.* an object and not its class"):
        agent(encoder=DictEncoder)
    with pytest.raises(ValueError, match="`observations` is a dict: .* `encoder`"):
        agent()({"a": rollout()["observations"]})
    for logits in (torch.zeros(1, 1, 2), agent()(rollout()["observations"])):
        with pytest.raises(ValueError, match="`logits` is .* whose last axis here is 3"):
            agent().distribution(logits)
    numbers = agent(num_actions=None, action_size=2)
    assert numbers.distribution(torch.zeros(1, 1, 4)).mode.shape == (1, 1, 2)
    chosen = agent().distribution(torch.zeros(1, 1, 3)).log_prob(np.array([[2]]))
    torch.testing.assert_close(chosen, torch.tensor([[1 / 3]]).log())
    with pytest.raises(ValueError, match="`value` has shape"):
        Choices(torch.zeros(1, 1, 5), (2, 3)).log_prob(torch.zeros(1, 1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        ({"reads_last_step": True}, {}, "`last_actions` must be given"),
        ({}, {"last_rewards": torch.zeros(BATCH, STEPS)}, "`last_rewards` was given"),
        ({"reads_last_step": True}, {"last_rewards": torch.zeros(BATCH)}, r"`last_rewards` has shape \(3,\)"),
        ({"reads_last_step": True}, {"last_actions": torch.zeros(BATCH, STEPS, 1)}, "`last_actions` has shape"),
        ({"reads_last_step": True}, {"last_actions": torch.full((BATCH, STEPS), 3)}, "`last_actions` holds 3"),
        ({"reads_last_step": True}, {"last_actions": torch.full((BATCH, STEPS), -1)}, "`last_actions` holds -1"),
        ({"reads_last_step": True}, {"last_actions": torch.full((BATCH, STEPS), 0.5)}, "`last_actions` holds 0.5"),
        ({"reads_last_step": True}, {"reset": torch.zeros(BATCH, STEPS).long()}, "`reset` has shape .* must be bool"),
    ],
)
def test_a_step_before_that_does_not_fit_is_refused(fields, given, message):
    known = rollout()
    last = {name: known[name] for name in ("last_actions", "last_rewards")} if given and fields else {}
    with pytest.raises(ValueError, match=message):
        agent(**fields)(known["observations"], **(last | given))


@pytest.mark.parametrize("model_type", AGENTS)
def test_one_auto_class_makes_and_loads_agents(model_type, tmp_path):
    model = AutoModelForActorCritic.from_config(tiny_config(model_type, num_actions=2, observation_size=WIDTH)).eval()
    assert type(model) is VARIANTS[model_type].actor_critic_class
    model.save_pretrained(tmp_path)
    loaded = AutoModelForActorCritic.from_pretrained(tmp_path)
    observations = rollout()["observations"].float()
    assert torch.equal(loaded(observations).logits, model(observations).logits)


def test_another_class_does_not_load_an_agent(tmp_path):
    agent().save_pretrained(tmp_path)
    for auto in (AutoModel, AutoModelForCausalLM, VARIANTS["gtrxl"].model_class):
        with pytest.raises(ValueError, match="holds an agent, and .* would drop its policy"):
            auto.from_pretrained(tmp_path)


class OwnLanguageModel(VARIANTS["gtrxl"].causal_lm_class):
    pass


def test_a_language_model_of_ones_own_is_no_agent(tmp_path):
    """Also with a config that could be an agent's; and an agent may start from its weights."""
    OwnLanguageModel(tiny_config("gtrxl", num_actions=3)).save_pretrained(tmp_path)
    assert isinstance(OwnLanguageModel.from_pretrained(tmp_path), OwnLanguageModel)
    assert "ForActorCritic" not in json.loads((tmp_path / "config.json").read_text())["auto_map"]["AutoModel"]
    _, info = GTrXLForActorCritic.from_pretrained(tmp_path, output_loading_info=True)
    assert "policy_head.weight" in info["missing_keys"]
