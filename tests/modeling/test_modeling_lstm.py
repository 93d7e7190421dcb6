"""The LSTM of `compare` against torch's own, row by row, with its state carried by hand: values and gradients."""

import torch
from tiny import EXACT
from torch import nn
from torch.nn import functional as F

from transformers_xl.configuration.configuration_lstm import LSTMConfig
from transformers_xl.modeling.modeling_lstm import LSTMForCausalLM

State = tuple[torch.Tensor, torch.Tensor]


def small_model() -> LSTMForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12}
    return LSTMForCausalLM(LSTMConfig(**sizes, dropout=0.0, initializer_range=0.5)).double().eval()


class Naive(nn.Module):
    """Torch's LSTMs with the weights of a model, for one row without padding."""

    def __init__(self, model: LSTMForCausalLM):
        super().__init__()
        self.embed, self.norm, self.head = model.model.embed_tokens, model.model.norm, model.lm_head
        self.lstms = nn.ModuleList(nn.LSTM(8, 12, proj_size=8).double() for _ in model.model.layers)
        for lstm, layer in zip(self.lstms, model.model.layers, strict=True):
            lstm.load_state_dict(layer.lstm.state_dict())

    def forward(self, ids: torch.Tensor, states: list[State | None]) -> tuple[torch.Tensor, list[State | None]]:
        hidden, after = self.embed(ids), []
        for lstm, state in zip(self.lstms, states, strict=True):
            hidden, (h, c) = lstm(hidden, state)
            after.append((h.detach(), c.detach()))
        return self.head(self.norm(hidden)), after


def test_rows_with_padding_and_resets_are_torchs_lstm_with_its_state_carried():
    model, rows = small_model(), torch.randint(0, 11, (3, 3, 6))
    naive = Naive(model)
    # by segment: real tokens of each row (padding on the left), and rows that begin a new text
    lengths, resets = [[6, 4, 6], [6, 0, 5], [6, 6, 6]], [[], [], [2]]
    mems, loss = None, torch.zeros(())
    by_hand: list[list[State | None]] = [[None, None] for _ in range(3)]
    expected_loss = torch.zeros(())
    for segment in range(3):
        ids, mask = rows[segment], torch.zeros(3, 6, dtype=torch.long)
        for row, length in enumerate(lengths[segment]):
            mask[row, 6 - length :] = 1
        reset = torch.zeros(3, dtype=torch.bool)
        reset[resets[segment]] = True
        output = model(ids, attention_mask=mask, mems=mems, reset=reset)
        mems = output.mems
        for row, length in enumerate(lengths[segment]):
            if length == 0:
                continue
            state = [None, None] if reset[row] else by_hand[row]
            logits, by_hand[row] = naive(ids[row, 6 - length :], state)
            torch.testing.assert_close(output.logits[row, 6 - length :], logits, **EXACT)
            loss = loss + F.cross_entropy(output.logits[row, 6 - length :], ids[row, 6 - length :])
            expected_loss = expected_loss + F.cross_entropy(logits, ids[row, 6 - length :])
    for layer in range(2):  # hidden state and cell
        for which in range(2):
            carried = torch.cat([by_hand[row][layer][which] for row in range(3)])
            torch.testing.assert_close(mems.layers[layer].state[which], carried, **EXACT)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()  # `naive` shares the embedding, the norm and the head
    expected_loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters() if "lstm" not in name}
    for layer, lstm in enumerate(naive.lstms):
        expected |= {f"model.layers.{layer}.lstm.{name}": each.grad for name, each in lstm.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], **EXACT)


def test_generate_goes_on_from_the_state():
    model, ids = small_model(), torch.randint(0, 11, (2, 5))
    with torch.no_grad():
        written = model.generate(ids, max_new_tokens=3, do_sample=False)
        for _ in range(3):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert written.equal(ids)
