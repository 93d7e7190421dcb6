"""What turns observations into the inputs of a model: a linear layer for numbers, a convolutional network for images."""

from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import torch
from torch import nn
from transformers import initialization as init

from transformers_xl.configuration.configuration_agent import AgentConfig


def check_tensor(observations: object) -> None:
    if not isinstance(observations, torch.Tensor):
        raise ValueError(
            f"`observations` is a {type(observations).__name__}: this agent reads one tensor, or array. Pass an `encoder` "
            "of your own to the model, or wrap the environment with `FlattenObservation`."
        )


class NumberEncoder(nn.Linear):
    """Projects `(batch, steps, observation_size)` numbers of any type to `(batch, steps, hidden_size)`."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        check_tensor(observations)
        if observations.dim() != 3 or observations.shape[2] != self.in_features or 0 in observations.shape:
            raise ValueError(
                f"`observations` has shape {tuple(observations.shape)}: it must be (batch, steps, observation_size) with "
                f"`observation_size`={self.in_features}, each at least 1; one step of a vector environment is "
                "`observations[:, None]`, and one of more axes is made flat by gymnasium's `FlattenObservation`."
            )
        return super().forward(observations.to(self.weight.dtype))


class ImageEncoder(nn.Module):
    """Projects images `(batch, steps, height, width, channels)` to `(batch, steps, hidden_size)`: three convolutions of
    stride 2 and a linear layer. Integers of 8 bits are divided by 255."""

    def __init__(self, image_shape: tuple[int, ...], hidden_size: int, features: int = 32):
        super().__init__()
        self.image_shape = tuple(image_shape)
        *sides, channels = self.image_shape
        widths = [channels, features, features, features]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inner, outer, kernel_size=3, stride=2, padding=1) for inner, outer in pairwise(widths)
        )
        height, width = (-(-side // 2 ** len(self.convolutions)) for side in sides)
        self.proj = nn.Linear(height * width * features, hidden_size)

    def init_weights(self, config: AgentConfig) -> None:
        """As torch does: a model's own range is for inputs as wide as it is, and images have few channels."""
        for convolution in cast(Iterable[nn.Conv2d], self.convolutions):
            bound = convolution.weight[0].numel() ** -0.5
            for parameter in convolution.parameters():
                init.uniform_(parameter, -bound, bound)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        check_tensor(observations)
        if observations.shape[2:] != self.image_shape or observations.dim() != 5 or 0 in observations.shape:
            raise ValueError(
                f"`observations` has shape {tuple(observations.shape)}: it must be (batch, steps, height, width, channels) "
                f"with `image_shape`={list(self.image_shape)}; one step of a vector environment is `observations[:, None]`."
            )
        images = observations.flatten(0, 1).permute(0, 3, 1, 2).to(self.proj.weight.dtype)
        if observations.dtype == torch.uint8:
            images = images / 255
        for convolution in self.convolutions:
            images = convolution(images).relu()
        return self.proj(images.flatten(1)).unflatten(0, observations.shape[:2])


def build_encoder(config: AgentConfig, hidden_size: int) -> nn.Module | None:
    """The encoder that a config asks for; None where observations are token ids."""
    if config.image_shape is not None:
        return ImageEncoder(tuple(config.image_shape), hidden_size)
    return None if config.observation_size is None else NumberEncoder(config.observation_size, hidden_size)


__all__ = ["ImageEncoder", "NumberEncoder", "build_encoder", "check_tensor"]
