"""What requests hold as lists: messages, prompts and stop texts, in the one form that the server reads.

The functions take any value of JSON, and raise a `ValueError` of one sentence for what they do not read.
"""

from typing import Any

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
PARTS = ("text", "input_text", "output_text")
# of an item of an answer and of its parts, which a client may send back: all but the text says nothing new
LABELS = {"type", "id", "status", "phase"}
OF_PARTS = {"type", "text", "logprobs"}
MOST_STOPS = 4
Message = dict[str, str]  # `role` and `content`, as chat templates read them


def messages_of(value: Any, name: str = "messages") -> list[Message]:
    """Messages of text. `developer` is another word of the protocol for `system`, which templates know."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{name}` must be a list of messages that is not empty.")
    return [_message(f"{name}[{index}]", each) for index, each in enumerate(value)]


def _message(place: str, value: Any) -> Message:
    if not isinstance(value, dict):
        raise ValueError(f"`{place}` must be an object with a `role` and a `content`.")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"`{place}.role` must be one of {', '.join(ROLES)}.")
    known = {"role", "content"} | (LABELS if value.get("type") == "message" else set())
    # a message that a client sends back as it came has fields without a value: tool_calls, refusal, ..
    others = sorted(each for each, given in value.items() if each not in known and given not in (None, [], {}))
    if others:
        raise ValueError(f"`{place}.{others[0][:60]}` is not supported by this server: messages are text.")
    return {"role": ROLES[role], "content": _content(f"{place}.content", value.get("content"))}


def _content(place: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{place}` must be a string, or a list of parts of the type 'text'.")
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in PARTS or not isinstance(part.get("text"), str):
            raise ValueError(f"`{place}` must be a string, or a list of parts of the type 'text'.")
        if [each for each, given in part.items() if each not in OF_PARTS and given not in (None, [], {})]:
            raise ValueError(f"`{place}`: a part has a `type` and a `text`, and nothing else that this server reads.")
    return "\n".join(part["text"] for part in value)


def input_of(value: Any) -> str | list[Message]:
    """The `input` of a response: a text, or messages."""
    if isinstance(value, str):
        if not value:
            raise ValueError("`input` must be a string that is not empty, or a list of messages.")
        return value
    if not isinstance(value, list):
        raise ValueError("`input` must be a string that is not empty, or a list of messages.")
    return messages_of(value, "input")


def prompts_of(value: Any) -> list[str | list[int]]:
    """The prompts of a completion: a text, token ids, or a list of either."""
    is_list = isinstance(value, list) and bool(value)
    if isinstance(value, str) or (is_list and all(type(each) is int for each in value)):
        return [value]
    if not is_list or not all(isinstance(each, str) or _is_ids(each) for each in value):
        raise ValueError("`prompt` must be a string, a list of token ids, or a list of these, and not empty.")
    return value


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def stops_of(value: Any) -> tuple[str, ...]:
    """The texts that end an answer."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(e, str) and e for e in stops):
        raise ValueError(f"`stop` must be a string, or a list of at most {MOST_STOPS}, none of which is empty.")
    return tuple(stops)


def conversation_of(value: Any) -> str:
    """The id of a conversation: a string, or an object that holds it."""
    found = value.get("id") if isinstance(value, dict) and value.keys() == {"id"} else value
    if not isinstance(found, str):
        raise ValueError("`conversation` must be the id of a conversation, or an object with this `id`.")
    return found


__all__ = ["Message", "conversation_of", "input_of", "messages_of", "prompts_of", "stops_of"]
