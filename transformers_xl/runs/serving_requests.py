"""What a request to `transformers-xl serve` may ask for: what is not honoured is refused by its name, never ignored.

A field that is left out, or null, asks for nothing; so does one that asks for what is done anyway (`n`: 1).
"""

import json
import math
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

MAX_BODY = 2**20  # bytes of a request
DEFAULT_NEW_TOKENS = 1024  # where a request does not say


class Bounds(NamedTuple):
    """The most tokens that a request may have read, and have written."""

    prompt: int = 16_384
    new_tokens: int = 4_096


class RequestError(ValueError):
    """A request that is not answered, in one sentence.

    Attributes:
        field: the argument that is wrong; None where it is the whole request.
    """

    def __init__(self, message: str, field: str | None = None):
        super().__init__(message)
        self.field = field


class Endpoint(NamedTuple):
    """
    Attributes:
        text: the argument that holds the prompt, and its check.
        new_tokens: the names of how many tokens are wanted; the first is that which transformers reads.
        neutral: arguments that are not honoured, with the values that ask for nothing else.
        stops: whether an answer that is not streamed can end before given strings.
    """

    text: tuple[str, Callable[[str, Any], None]]
    new_tokens: tuple[str, ...]
    neutral: Mapping[str, tuple]
    stops: bool = True


def check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise RequestError(f"`{name}` must be a string that is not empty.", name)


def check_messages(name: str, value: Any) -> None:
    """Messages of text: a role, and a string or parts of the type text."""
    if not isinstance(value, list) or not value:
        raise RequestError(f"`{name}` must be a list of messages that is not empty.", name)
    for index, message in enumerate(value):
        place = f"{name}[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(f"`{place}` must be an object with a `role`, a string, and a `content`.", name)
        others = {each for each, given in message.items() if given not in (None, [], {})}
        others -= {"role", "content", "type"} if message.get("type") == "message" else {"role", "content"}
        if others:
            raise RequestError(f"`{place}.{min(others)}` is not supported: messages are text.", name)
        check_content(name, f"{place}.content", message.get("content"))


def check_content(name: str, place: str, content: Any) -> None:
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        kinds = ("text", "input_text", "output_text")
        if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
            raise RequestError(f"`{place}` must be a string, or a list of parts of the type 'text'.", name)


def check_input(name: str, value: Any) -> None:
    (check_text if isinstance(value, str) else check_messages)(name, value)


PENALTIES = {"frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},)}
ENDPOINTS = {
    "completions": Endpoint(
        ("prompt", check_text), ("max_tokens",), PENALTIES | {"n": (1,), "best_of": (1,), "echo": (False,)}
    ),
    "chat/completions": Endpoint(
        ("messages", check_messages),
        ("max_tokens", "max_completion_tokens"),
        PENALTIES
        | {"n": (1,), "logprobs": (False,), "response_format": ({"type": "text"},), "modalities": (["text"],)}
        | {"tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False), "store": (False,)},
    ),
    "responses": Endpoint(
        ("input", check_input),
        ("max_output_tokens",),
        {"store": (False,), "background": (False,), "truncation": ("disabled",), "include": ([],), "metadata": ({},)}
        | {"tools": ([],), "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False)}
        | {"text": ({"format": {"type": "text"}},)},
        stops=False,
    ),
}


def checked_request(path: str, body: Any, model: str, bounds: Bounds) -> dict[str, Any]:
    """The arguments of a request that is honoured as a whole, with `stream` and the number of new tokens.

    Args:
        path: of the endpoint, a name of `ENDPOINTS`.
        body: what its JSON says.
        model: the one that is served.

    Raises:
        RequestError: an argument has a wrong value, or is not honoured.
    """
    if not isinstance(body, dict):
        raise RequestError("The request must be a JSON object.")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError("The request holds half of a surrogate pair, which is no text: leave it out.") from None
    endpoint, given = ENDPOINTS[path], {name: value for name, value in body.items() if value is not None}
    if given.get("model", model) != model:
        raise RequestError(f"`model`={given['model']!r}: this server is pinned to {model!r}.", "model")
    name, check = endpoint.text
    check(name, given.get(name))
    count = new_tokens_of(endpoint, given, bounds)
    known = check_settings(given) | {"model", name, *endpoint.new_tokens}
    if path == "responses" and "instructions" in given:
        check_text("instructions", given["instructions"])
        if isinstance(given[name], list) and given[name][0]["role"] == "system":
            raise RequestError("`instructions` and a first message of the system are two: give one.", "instructions")
        known |= {"instructions"}
    if endpoint.stops and "stop" in given:
        check_stop(given)
        known |= {"stop"}
    for other, value in given.items():
        if other not in known and not any(is_same(value, each) for each in endpoint.neutral.get(other, ())):
            raise RequestError(f"`{other}` is not supported by this server: leave it out.", other)
    kept = {other: value for other, value in given.items() if other in known - {*endpoint.new_tokens}}
    return {"stream": False} | kept | {"model": model, endpoint.new_tokens[0]: count}


def new_tokens_of(endpoint: Endpoint, given: dict[str, Any], bounds: Bounds) -> int:
    asked = {name: given[name] for name in endpoint.new_tokens if name in given}
    for name, value in asked.items():
        if type(value) is not int or not 1 <= value <= bounds.new_tokens:
            raise RequestError(f"`{name}`={shown(value)} must be an integer from 1 to {bounds.new_tokens}.", name)
    if len({*asked.values()}) > 1:
        names = " and ".join(f"`{name}`" for name in asked)
        raise RequestError(f"{names} differ: give one of them.", next(iter(asked)))
    return next(iter(asked.values()), min(DEFAULT_NEW_TOKENS, bounds.new_tokens))


def check_settings(given: dict[str, Any]) -> set[str]:
    """Check the settings that all endpoints share, and return their names."""
    for name, most, least in (("temperature", 2, "0"), ("top_p", 1, "above 0")):
        value = given.get(name, 1)
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number or not 0 <= value <= most or (name == "top_p" and value == 0):
            raise RequestError(f"`{name}`={shown(value)} must be a number from {least} to {most}.", name)
    seed, streams = given.get("seed", 0), given.get("stream", False)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise RequestError(f"`seed`={shown(seed)} must be an integer from 0 to 2**63 - 1.", "seed")
    if type(streams) is not bool:
        raise RequestError(f"`stream`={shown(streams)} must be true or false.", "stream")
    options = given.get("stream_options", {})
    if options not in ({}, {"include_usage": True}, {"include_usage": False}) or (options and not streams):
        raise RequestError("`stream_options` may say `include_usage` of a stream, and nothing else.", "stream_options")
    if not isinstance(given.get("user", ""), str):
        raise RequestError("`user` must be a string.", "user")
    return {"temperature", "top_p", "seed", "stream", "stream_options", "user"}


def check_stop(given: dict[str, Any]) -> None:
    stops = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(each, str) and each for each in stops):
        raise RequestError("`stop` must be a string, or a list of at most 4, none of which is empty.", "stop")
    if stops and given.get("stream"):
        raise RequestError("`stop` is not supported by this server for a stream: leave one of them out.", "stop")


def is_same(value: Any, other: Any) -> bool:
    """Whether both are equal, and neither is a truth value where the other is a number."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 40 else f"{text[:40]}..."


def before_stop(text: str, stops: list[str] | str | None) -> str:
    """What stands before the first of these strings."""
    found = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops or [])]
    return text[: min((place for place in found if place >= 0), default=len(text))]


def is_own_authority(authority: str | None, host: str) -> bool:
    """Whether a request names this server: a page of another name may lead to its address too (DNS rebinding).

    Args:
        authority: of the header `Host`: a name or an address, with or without a port.
        host: what the server listens on.
    """
    try:
        name = urlsplit(f"//{authority}").hostname
    except ValueError:
        return False
    if name in ("localhost", host.lower()):
        return True
    try:
        address = ip_address(name or "")
    except ValueError:
        return False
    # whoever listens on all addresses has many; an address is no name that could lead elsewhere tomorrow
    return address.is_loopback or host in ("0.0.0.0", "::")


__all__ = ["MAX_BODY", "Bounds", "RequestError", "before_stop", "checked_request", "is_own_authority"]
