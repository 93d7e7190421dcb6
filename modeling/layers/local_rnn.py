"""A recurrent network that reads the few positions up to each position: Wang et al., 2019, https://arxiv.org/abs/1907.05572."""

import torch
from torch import nn

from transformers_xl.configuration.configuration_r_transformer import RTransformerConfig
from transformers_xl.modeling.layers.transformer_layer import Dropout, SublayerLayerNorm
from transformers_xl.modeling.layers.weight_dropout import call_with_weight_dropout
from transformers_xl.modeling.memory.segment import Segment
from transformers_xl.modeling.ops.columns import computing_dtype

RNNS = {"gru": nn.GRU, "lstm": nn.LSTM, "tanh": nn.RNN}


# B batch, T segment length, M local_window, E hidden size
class LocalRNN(nn.Module):
    """`x_t + RNN(x_{t-M+1}, ..., x_t)`: the last state of a network that starts from zero at every window. Section 3.1.

    Positions before the text began are vectors of zeros, which the network reads too, as in the authors' code. The
    windows of all rows and positions are one batch. `tail` is what they see of earlier segments.
    """

    def __init__(self, config: RTransformerConfig):
        super().__init__()
        self.window = config.local_window
        self.norm = SublayerLayerNorm(config)
        self.rnn = RNNS[config.rnn_type](config.hidden_size, config.hidden_size, batch_first=True)
        self.dropout = Dropout(config, config.residual_dropout)
        self.weight_dropout = config.weight_dropout

    def forward(
        self, hidden_states: torch.Tensor, tail: torch.Tensor, segment: Segment
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            hidden_states: `(B, T, E)`, padding after the tokens.
            tail: `(B, M - 1, E)`, the inputs of the network before the segment.
            segment: where the tokens stand after those of the tail.

        Returns:
            The output `(B, T, E)`, and the tail of the next segment.
        """
        batch, length = hidden_states.shape[:2]
        inputs = torch.cat([tail.to(hidden_states), self.norm.before(hidden_states)], dim=1)
        windows = inputs.unfold(1, self.window, 1).transpose(2, 3)  # [B, T, M, E]
        if segment.document_ids is not None:
            first = torch.arange(length, device=windows.device)  # column of each window's first input
            columns = first[:, None] + torch.arange(self.window, device=windows.device)
            windows = windows * (columns >= segment.first[..., None])[..., None]
        if isinstance(self.rnn, nn.LSTM):  # under autocast it takes no other type on processors without AVX-512
            windows = windows.to(computing_dtype(windows))
        outputs, _ = call_with_weight_dropout(self.rnn, self.weight_dropout, windows.flatten(0, 1))
        local = self.dropout(outputs[:, -1].unflatten(0, (batch, length)))

        return self.norm.after(hidden_states + local), segment.tail(inputs, self.window - 1)
