"""The handlers of transformers' server as `transformers-xl serve` has them: one model, bounded prompts, and sampling.

It is imported when a server starts: the extra `serve` is installed by then.
"""

from typing import Any

from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.utils import GenerateManager, GenerationState

from transformers_xl.runs.serving_prompts import open_ended
from transformers_xl.runs.serving_requests import Bounds, RequestError, before_stop


class OneModelManager(ModelManager):
    def _load_processor(self, *args: Any, **kwargs: Any) -> Any:
        return open_ended(super()._load_processor(*args, **kwargs))


class BoundedManager(GenerateManager):
    """Reads no prompt of more than `max_prompt` tokens, and answers without the text of a stop."""

    def __init__(self, max_prompt: int):
        super().__init__()
        self.max_prompt = max_prompt

    def check(self, inputs: Any) -> None:
        length = inputs["input_ids"].shape[-1]
        if not 1 <= length <= self.max_prompt:
            raise RequestError(f"The prompt has {length} tokens: it must have 1 to {self.max_prompt}.")

    def generate_streaming(self, model: Any, processor: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.check(inputs)
        return super().generate_streaming(model, processor, inputs, *args, **kwargs)

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self.check(inputs)
        text, *rest = await super().generate_non_streaming(model, processor, inputs, gen_config, *args, **kwargs)
        return before_stop(text, gen_config.stop_strings), *rest


class OneModelState(GenerationState):
    def __init__(self, manager: BoundedManager):
        super().__init__()
        self.manager = manager

    def get_manager(self, model_id: str, use_cb: bool = False) -> BoundedManager:
        return self.manager


class Sampling:
    """A mixin: transformers sets the temperature, and stays greedy."""

    def _build_generation_config(self, body: dict, model_generation_config: Any, use_cb: bool = False) -> Any:
        config = super()._build_generation_config(body, model_generation_config, use_cb)  # type: ignore[misc]
        if "temperature" in body or "top_p" in body:
            config.do_sample = body.get("temperature", 1.0) > 0
        if config.do_sample and config.top_k is None:
            config.top_k = 0  # the protocol has none, and `generate()` 50
        return config


class Completions(Sampling, CompletionHandler):
    pass


class ChatCompletions(Sampling, ChatCompletionHandler):
    pass


class Responses(Sampling, ResponseHandler):
    pass


HANDLERS = {"completions": Completions, "chat/completions": ChatCompletions, "responses": Responses}


def handlers_of(manager: ModelManager, bounds: Bounds) -> dict[str, Any]:
    """The handlers by the paths of their endpoints."""
    state = OneModelState(BoundedManager(bounds.prompt))
    return {path: handler(manager, state) for path, handler in HANDLERS.items()}


__all__ = ["OneModelManager", "handlers_of"]
