"""The requests of OpenAI's protocol that are honoured: a field that is not is refused by its name, never ignored.

A field that is left out, or null, asks for nothing; so does one of `NEUTRAL` whose value asks for what is done anyway.
"""

import json
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import from_json

from transformers_xl.serve.bounds import RequestError
from transformers_xl.serve.request_messages import (
    Message,
    conversation_of,
    input_of,
    messages_of,
    prompts_of,
    stops_of,
)

LOGPROBS = "message.output_text.logprobs"  # what a response includes where it is asked for log-probabilities
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Stops = Annotated[tuple[str, ...], PlainValidator(stops_of)]
NewTokens = Annotated[int, Field(ge=1)]


class Fields(BaseModel):
    """What a request may hold: nothing that is not declared, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    NEUTRAL: ClassVar[dict[str, tuple]] = {}  # arguments that are not honoured, with the values that ask for nothing


class ResponseStreamOptions(Fields):
    include_obfuscation: Literal[False] | None = None


class StreamOptions(ResponseStreamOptions):
    include_usage: bool | None = None


class Sampling(Fields):
    """What all endpoints that write share. `user` changes nothing."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stream: bool = False
    user: str | None = None


class PlainText(Fields):
    type: Literal["text"]


class AnyJson(Fields):
    type: Literal["json_object"]


class Schema(Fields):
    """`strict` and `description` change nothing: every answer fits the schema, of which the model knows nothing."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    given: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class JsonOfSchema(Schema):
    """As responses have it."""

    type: Literal["json_schema"]


class JsonOfNestedSchema(Fields):
    """As chats have it."""

    type: Literal["json_schema"]
    json_schema: Schema


class ResponseText(Fields):
    format: Annotated[PlainText | AnyJson | JsonOfSchema, Field(discriminator="type")] = PlainText(type="text")


TextFormat = PlainText | AnyJson | JsonOfSchema | JsonOfNestedSchema
BY_TYPE = {"response_format", "format"}  # fields whose `type` says what else they hold


def schema_of(given: TextFormat | None) -> dict[str, Any] | None:
    """The schema of the JSON that is asked for; None: any text."""
    if given is None or isinstance(given, PlainText):
        return None
    if isinstance(given, AnyJson):
        return {"type": "object"}
    return (given.json_schema if isinstance(given, JsonOfNestedSchema) else given).given


PENALTIES = {"frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},)}
TOOLS: dict[str, tuple] = {"tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False)}
TIER = {"service_tier": ("auto", "default")}


class CompletionRequest(Sampling):
    NEUTRAL: ClassVar[dict[str, tuple]] = {**PENALTIES, "best_of": (1,), "suffix": ("",)}
    prompt: Annotated[list[str | list[int]], PlainValidator(prompts_of)]
    max_tokens: Annotated[int, Field(ge=0)] = 16  # as the protocol has it
    n: Annotated[int, Field(ge=1)] = 1
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool = False
    stop: Stops = ()
    stream_options: StreamOptions | None = None


class ChatRequest(Sampling):
    NEUTRAL: ClassVar[dict[str, tuple]] = {
        **PENALTIES, **TOOLS, **TIER, "modalities": (["text"],), "store": (False,), "metadata": ({},),
    }  # fmt: skip
    messages: Annotated[list[Message], PlainValidator(messages_of)]
    max_tokens: NewTokens | None = None
    max_completion_tokens: NewTokens | None = None
    n: Annotated[int, Field(ge=1)] = 1
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stop: Stops = ()
    response_format: Annotated[PlainText | AnyJson | JsonOfNestedSchema, Field(discriminator="type")] | None = None
    stream_options: StreamOptions | None = None


class ResponseRequest(Sampling):
    NEUTRAL: ClassVar[dict[str, tuple]] = {
        **TOOLS, **TIER, "background": (False,), "truncation": ("disabled",), "reasoning": ({},),
    }  # fmt: skip
    input: Annotated[str | list[Message], PlainValidator(input_of)]
    instructions: Annotated[str, Field(min_length=1)] | None = None
    max_output_tokens: NewTokens | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs"]] = []
    previous_response_id: str | None = None
    conversation: Annotated[str, PlainValidator(conversation_of)] | None = None
    store: bool | None = None
    metadata: Metadata = {}
    text: ResponseText = ResponseText()
    stream_options: ResponseStreamOptions | None = None


class ConversationRequest(Fields):
    NEUTRAL: ClassVar[dict[str, tuple]] = {"items": ([],)}
    metadata: Metadata = {}


Kind = TypeVar("Kind", bound=Fields)


def parsed(kind: type[Kind], data: bytes) -> Kind:
    """The request that a body holds.

    Raises:
        RequestError: it is no JSON, or an argument has a wrong value or is not honoured.
    """
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:  # also half of a surrogate pair, which is no text
        raise RequestError(f"The request is no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise RequestError("The request must be a JSON object.")
    given = _asked_for(kind, value)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _described(error) from None


def _asked_for(kind: type[Fields], value: dict[str, Any]) -> dict[str, Any]:
    """The fields that ask for something."""
    given = {name: each for name, each in value.items() if each is not None}
    for name in kind.NEUTRAL.keys() & given.keys():
        found = given.pop(name)
        if not any(_is_same(found, each) for each in kind.NEUTRAL[name]):
            raise _unsupported(name)
    return given


def _is_same(value: Any, other: Any) -> bool:
    return (type(value) is bool) == (type(other) is bool) and value == other


def _unsupported(name: str) -> RequestError:
    return RequestError(f"`{_short(name)}` is not supported by this server: leave it out.", _short(name))


def _described(error: ValidationError) -> RequestError:
    """The first thing that is wrong, in one sentence."""
    first = error.errors(include_url=False)[0]
    parts = [part for before, part in zip(("", *first["loc"]), first["loc"], strict=False) if before not in BY_TYPE]
    name = ".".join(str(part) for part in parts if part != "[key]") or "request"
    if first["type"] == "extra_forbidden":
        return _unsupported(name)
    if first["type"] == "missing":
        return RequestError(f"`{name}` is missing: give it.", name)
    if first["type"] == "value_error":  # of our own validators, which say all of it
        return RequestError(str(first["ctx"]["error"]), str(first["loc"][0]))
    said = first["msg"][:1].lower() + first["msg"][1:]
    return RequestError(f"`{_short(name)}`={shown(first['input'])}: {said}.", _short(name))


def shown(value: Any) -> str:
    """A value as JSON, in few characters."""
    return _short(json.dumps(value, default=str))


def _short(text: str) -> str:
    text = json.dumps(text)[1:-1] if not text.isprintable() else text
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = [
    "LOGPROBS",
    "ChatRequest",
    "CompletionRequest",
    "ConversationRequest",
    "ResponseRequest",
    "Sampling",
    "TextFormat",
    "parsed",
    "schema_of",
    "shown",
]
