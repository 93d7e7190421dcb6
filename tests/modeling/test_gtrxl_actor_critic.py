"""GTrXL as an agent: step by step equals windowed, episodes begin afresh, and every parameter learns."""

import numpy as np
import pytest
import torch
from optional_packages import needs
from tiny import EXACT, MEM_LEN, VOCAB_SIZE, memory_of, tiny_config, tokens

from transformers_xl import GTrXLConfig, GTrXLForActorCritic
from transformers_xl.modeling.modeling_gtrxl import GTrXLPreTrainedModel

BATCH, STEPS, WIDTH, ACTIONS = 3, 3 * MEM_LEN + 2, 5, 4
gates = pytest.mark.parametrize("gate_type", ["none", "gru"])
inputs = pytest.mark.parametrize("name", ["observations", "inputs_embeds", "input_ids"])
use_cache = pytest.mark.parametrize("use_cache", [None, True], ids=["value", "cache"])


def agent(name: str = "observations", dtype: torch.dtype = torch.float64, **fields) -> GTrXLForActorCritic:
    torch.manual_seed(0)
    fields = {"num_actions": ACTIONS, "observation_size": WIDTH if name == "observations" else None} | fields
    return GTrXLForActorCritic(tiny_config("gtrxl", **fields)).to(dtype).eval()


def seen(name: str = "observations", steps: int = STEPS) -> torch.Tensor:
    if name == "input_ids":
        return tokens(BATCH, steps)
    return torch.randn(BATCH, steps, WIDTH if name == "observations" else 32, dtype=torch.float64)


def episodes() -> torch.Tensor:
    """Row 0 goes on all the time, row 1 begins twice inside, one of them far past the window, row 2 at every seventh."""
    reset = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    reset[1, [4, STEPS - 3]] = True
    reset[2, ::7] = True
    return reset


def step_by_step(model, name: str, values: torch.Tensor, reset: torch.Tensor, use_cache: bool | None):
    """Logits and values of one call per step, with `reset` (batch,) as a vector environment gives it."""
    logits, critic, memory = [], [], {}
    for step in range(values.shape[1]):
        output = model(**{name: values[:, step : step + 1]}, reset=reset[:, step], use_cache=use_cache, **memory)
        logits.append(output.logits)
        critic.append(output.value)
        memory = memory_of(output)
    return torch.cat(logits, dim=1), torch.cat(critic, dim=1)


@gates
@inputs
@use_cache
def test_step_by_step_is_windowed(gate_type, name, use_cache):
    model, values, reset = agent(name, gate_type=gate_type), seen(name), episodes()
    output = model(**{name: values}, reset=reset)
    assert output.logits.shape == (BATCH, STEPS, ACTIONS)
    assert output.value.shape == (BATCH, STEPS)
    logits, critic = step_by_step(model, name, values, reset, use_cache)
    torch.testing.assert_close(logits, output.logits, **EXACT)
    torch.testing.assert_close(critic, output.value, **EXACT)


@use_cache
def test_windows_with_the_memory_of_the_window_before_are_one_window(use_cache):
    model, values, reset = agent(), seen(), episodes()
    whole = model(values, reset=reset)
    first = model(values[:, :11], reset=reset[:, :11], use_cache=use_cache)
    second = model(values[:, 11:], reset=reset[:, 11:], **memory_of(first))
    assert first.mems is not None
    torch.testing.assert_close(torch.cat([first.logits, second.logits], dim=1), whole.logits, **EXACT)
    torch.testing.assert_close(torch.cat([first.value, second.value], dim=1), whole.value, **EXACT)


@use_cache
@pytest.mark.parametrize("inside", [False, True], ids=["rows", "steps"])
def test_a_reset_row_is_a_fresh_row(use_cache, inside):
    model, before, after = agent(), seen(), seen(steps=6)
    reset = torch.tensor([False, True, False])
    if inside:
        reset = torch.zeros(BATCH, 6, dtype=torch.bool).index_put(
            (torch.tensor(1), torch.tensor(0)), torch.tensor(True)
        )
    memory = memory_of(model(before, use_cache=use_cache))
    output, fresh = model(after, reset=reset, **memory), model(after)
    torch.testing.assert_close(output.logits[1], fresh.logits[1], **EXACT)
    torch.testing.assert_close(output.value[1], fresh.value[1], **EXACT)
    for row in (0, 2):
        assert not torch.allclose(output.value[row], fresh.value[row], atol=1e-3)


@use_cache
def test_a_reset_row_begins_with_zeros_where_the_config_says_so(use_cache):
    model, before, after = agent(initial_memory="zeros"), seen(), seen(steps=6)
    memory = memory_of(model(before, use_cache=use_cache))
    output, fresh = model(after, reset=torch.tensor([False, True, False]), **memory), model(after)
    torch.testing.assert_close(output.logits[1], fresh.logits[1], **EXACT)
    assert not torch.allclose(output.logits[0], fresh.logits[0], atol=1e-3)


@inputs
@pytest.mark.parametrize("gate_type", ["none", "gru", "highway", "input", "output", "sigmoid_tanh"])
def test_gradients_reach_every_parameter(name, gate_type):
    model = agent(name, gate_type=gate_type)
    memory = memory_of(model(**{name: seen(name)}))
    output = model(**{name: seen(name)}, **memory)
    (output.logits.log_softmax(dim=-1)[..., 0].sum() + output.value.square().sum()).backward()
    unused = {key for key, parameter in model.named_parameters() if parameter.grad is None}
    # an encoder of one's own leaves the embedding of token ids without work
    assert unused == ({"model.embed_tokens.weight"} if name == "inputs_embeds" else set())
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.grad is not None)


def test_policy_and_value_have_gradients_of_their_own():
    model = agent()
    model(seen()).value.sum().backward()
    assert model.policy_head.weight.grad is None
    assert model.value_head.weight.grad.abs().sum() > 0


def test_activation_checkpointing_changes_nothing():
    values, reset = seen(), episodes()
    gradients = []
    for checkpointing in (False, True):
        model = agent().train()
        if checkpointing:
            model.activation_checkpointing_enable()
        mems = model(values).mems
        output = model(values, reset=reset, mems=mems)
        (output.logits.square().sum() + output.value.sum()).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients, **EXACT)


@inputs
def test_saved_and_loaded_it_acts_the_same(name, tmp_path):
    model, values = agent(name), seen(name)
    model.save_pretrained(tmp_path)
    loaded, report = GTrXLForActorCritic.from_pretrained(tmp_path, dtype=torch.float64, output_loading_info=True)
    assert not any(report.values())
    assert loaded.config.num_actions == ACTIONS
    assert loaded.config.observation_size == model.config.observation_size
    first, second = model(**{name: values}), loaded(**{name: values})
    torch.testing.assert_close(first.logits, second.logits, **EXACT)
    torch.testing.assert_close(first.value, second.value, **EXACT)


def test_observations_need_no_embedding_of_tokens():
    model = agent(vocab_size=32000)
    assert model.get_input_embeddings() is None
    assert agent("input_ids").get_input_embeddings().num_embeddings == VOCAB_SIZE
    assert isinstance(model, GTrXLPreTrainedModel)


def test_observations_of_any_number_type_follow_the_model():
    model = agent(dtype=torch.float32)
    whole = torch.randint(0, 9, (BATCH, 4, WIDTH))
    expected = model(whole.float())
    for kind in (torch.uint8, torch.int64, torch.float64):
        assert torch.equal(model(whole.to(kind)).logits, expected.logits)


@torch.no_grad()
def test_a_step_with_reset_moves_no_keys():
    """Episodes that begin and rows that remember less than others change what a step sees, not where it stands."""
    model, values = agent(), seen()
    cache = model(values[:, : MEM_LEN + 1], use_cache=True).past_key_values
    model(values[:, :1], past_key_values=cache, reset=torch.tensor([False, True, True]))  # makes room for four
    for step in range(1, 4):
        before = cache.memory.layers[0].columns[0]
        model(values[:, step : step + 1], past_key_values=cache, reset=torch.tensor([False, step == 2, True]))
        column = before.stride(-2) * before.element_size()
        assert cache.memory.layers[0].columns[0].data_ptr() == before.data_ptr() + column


def test_tuples_hidden_states_and_attentions():
    model, values = agent(), seen()
    output = model(values, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    logits, critic = model(values, return_dict=False)[:2]
    assert torch.equal(logits, output.logits)
    assert torch.equal(critic, output.value)
    model.set_attn_implementation("eager")
    assert model(values, output_attentions=True).attentions[0].shape[2] == STEPS


@pytest.mark.parametrize(
    ("fields", "arguments", "named"),
    [
        ({}, {}, "observations"),
        ({}, {"observations": seen(), "inputs_embeds": torch.zeros(BATCH, STEPS, 32)}, "observations.*inputs_embeds"),
        ({}, {"observations": seen()[:, 0]}, "observations"),
        ({}, {"observations": seen()[..., :3]}, "observation_size`=5"),
        ({}, {"observations": seen()[:, :0]}, "observations"),
        ({}, {"input_ids": tokens(BATCH, 4)}, "observation_size"),
        ({"observation_size": None}, {"observations": seen()}, "observation_size"),
        ({}, {"observations": seen(), "reset": torch.zeros(BATCH, 2, dtype=torch.bool)}, "reset"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(fields, arguments, named):
    with pytest.raises(ValueError, match=named):
        agent(**fields)(**arguments)


def test_without_actions_there_is_no_agent():
    with pytest.raises(ValueError, match="num_actions"):
        agent(num_actions=None)


@pytest.mark.parametrize("field", ["num_actions", "observation_size"])
def test_a_config_refuses_what_is_no_number_of_anything(field):
    with pytest.raises(ValueError, match=field):
        GTrXLConfig(**{field: 0})
    with pytest.raises(ValueError, match="num_actions"):
        GTrXLConfig(num_action=3)
    with pytest.raises(ValueError, match="hidden_size"):
        GTrXLConfig(hidden_size=np.int64(0))


def test_a_config_takes_numbers_of_numpy(tmp_path):
    """As environments give them: `env.action_space.n` is one."""
    given = {
        "num_actions": np.int64(4),
        "observation_size": np.int32(3),
        "n_layer": np.int64(2),
        "dropout": np.float32(0.5),
    }
    config = GTrXLConfig(**given, same_length=np.bool_(True))
    assert config == GTrXLConfig(num_actions=4, observation_size=3, n_layer=2, dropout=0.5, same_length=True)
    assert {type(config.num_actions), type(config.num_hidden_layers)} == {int}
    config.save_pretrained(tmp_path)
    assert GTrXLConfig.from_pretrained(tmp_path, num_actions=np.int64(5)).num_actions == 5


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.uint8])
def test_arrays_of_numpy_are_read_as_tensors(kind):
    model, reset = agent(dtype=torch.float32), episodes()[:, :6].numpy()
    values = np.random.default_rng(0).integers(0, 9, (BATCH, 6, WIDTH)).astype(kind)
    expected = model(torch.tensor(values), reset=torch.tensor(reset))
    assert torch.equal(model(values, reset=reset).logits, expected.logits)
    cache = model(values[:, :1], reset=reset[:, 0], use_cache=True).past_key_values
    step = model(values[:, 1:2], reset=reset[:, 1], past_key_values=cache)
    torch.testing.assert_close(step.logits, expected.logits[:, 1:2])


def test_ids_of_numpy_are_read_as_tensors():
    model, ids = agent("input_ids"), tokens(BATCH, 4)
    assert torch.equal(model(input_ids=ids.numpy()).logits, model(input_ids=ids).logits)


def test_an_array_that_an_environment_writes_again_changes_no_gradient():
    model, values = agent(dtype=torch.float32), seen().float().numpy()
    gradients = []
    for overwritten in (False, True):
        model.zero_grad()
        loss = model(values).value.sum()
        if overwritten:
            values.fill(0.0)
        loss.backward()
        gradients.append(model.observation_proj.weight.grad.clone())
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observations": seen().tolist()}, "`observations` is of type list: give a tensor, or an array"),
        ({"observations": np.full((BATCH, 2, WIDTH), "a")}, "`observations` is an array of <U1: "),
        ({"observations": np.zeros((BATCH, WIDTH))}, r"one step of a vector environment is `observations\[:, None\]`"),
        ({"observations": seen(), "reset": [True, False, True]}, "`reset` is of type list: "),
        ({"observations": seen(), "reset": np.ones(BATCH, dtype=np.int64)}, "`reset` .* must be bool"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        agent()(**arguments)


def rollouts(mode: str, steps: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Observations `(environments, steps, width)` of a vector environment of gymnasium, each told by its episode, its step
    and noise, and what had ended beside each of them."""
    gym = needs("gymnasium")

    class Numbered(gym.Env):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (WIDTH,), np.float64)
        action_space = gym.spaces.Discrete(ACTIONS)
        episode = -1

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.episode, self.place, self.length = self.episode + 1, 0, int(self.np_random.integers(2, 5))
            return self.observe(), {}

        def observe(self) -> np.ndarray:
            return np.concatenate([[self.episode, self.place], self.np_random.normal(size=WIDTH - 2)])

        def step(self, action):
            self.place += 1
            return self.observe(), 0.0, self.place == self.length, False, {}

    mode = gym.vector.AutoresetMode[mode]
    environments = gym.vector.SyncVectorEnv([Numbered] * BATCH, autoreset_mode=mode)
    seen, ended = [environments.reset(seed=0)[0]], [np.zeros(BATCH, dtype=bool)]
    for _ in range(steps - 1):
        observation, _, terminated, truncated, _ = environments.step(np.zeros(BATCH, dtype=np.int64))
        seen.append(observation)
        ended.append(terminated | truncated)
    return np.stack(seen, axis=1), np.stack(ended, axis=1)


def remembers_other_episodes(values: np.ndarray, reset: np.ndarray) -> bool:
    """Whether an agent that begins where `reset` says does else in an episode than one that reads this episode alone."""
    model, same = agent(mem_len=20), []
    logits = model(values, reset=reset).logits
    for row, episodes_of_row in enumerate(values[..., 0]):
        for episode in np.unique(episodes_of_row):
            steps = np.flatnonzero(episodes_of_row == episode)
            alone = model(values[row : row + 1, steps]).logits[0]
            same.append(torch.allclose(logits[row, steps], alone, **EXACT))
    return not all(same)


@pytest.mark.parametrize(("mode", "later"), [("SAME_STEP", 0), ("NEXT_STEP", 1)])
def test_episodes_begin_where_the_mode_of_the_environments_says(mode, later):
    """`terminated | truncated` is the `reset` of the observation beside it, or one step later. In the default of gymnasium,
    NEXT_STEP, the other way leaks: the end of an episode is remembered in the next."""
    values, ended = rollouts(mode)
    assert ended.sum() >= 2 * BATCH

    def moved(steps: int) -> np.ndarray:
        return np.concatenate([np.zeros((BATCH, steps), dtype=bool), ended], axis=1)[:, : ended.shape[1]]

    assert not remembers_other_episodes(values, moved(later))
    assert remembers_other_episodes(values, moved(1 - later))


def test_the_action_without_effect_is_the_one_before_a_reset():
    """With NEXT_STEP, an action on the observation that ends an episode has no effect, and is not to be learned."""
    gym = needs("gymnasium")

    class Counted(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.place = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.place += 1
            return np.full(1, self.place, np.float32), 1.0, self.place == 3, False, {}

    environments = gym.vector.SyncVectorEnv([Counted], autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)
    environments.reset(seed=0)
    reset, ended, effects = [True], [False], []
    for _ in range(9):
        _, reward, terminated, _, _ = environments.step(np.zeros(1, np.int64))
        effects.append(bool(reward[0]))
        reset.append(ended[-1])
        ended.append(bool(terminated[0]))
    assert [has_effect for has_effect, begins_next in zip(effects, reset[1:], strict=True) if begins_next] == [
        False
    ] * 2
    assert all(has_effect for has_effect, begins_next in zip(effects, reset[1:], strict=True) if not begins_next)
