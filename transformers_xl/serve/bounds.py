"""How much a request may ask of the server, and how one that asks for something else is refused."""

from typing import NamedTuple


class Bounds(NamedTuple):
    """The most that a request may ask for.

    Args:
        prompt: tokens that are read.
        new_tokens: tokens that are written for a choice.
        choices: texts that a request has written.
        waiting: texts of all requests together, being written or waiting.
        body: bytes of a request.
        seconds: that a client may take to send its request, and to read a part of its answer.
    """

    prompt: int = 16_384
    new_tokens: int = 4_096
    choices: int = 16
    waiting: int = 256
    body: int = 2**20
    seconds: float = 60.0


class RequestError(ValueError):
    """A request that is not answered, in one sentence.

    Args:
        message: the sentence.
        field: the argument that is wrong; None where it is the whole request.
        status: of the answer in HTTP.
        code: a word for programs, where OpenAI's protocol has one.
    """

    def __init__(self, message: str, field: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.field, self.status, self.code = field, status, code

    def body(self) -> dict:
        """The answer, as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}


def failed() -> RequestError:
    """What a client is told of an error that is ours."""
    return RequestError("The server failed while it wrote this: see its log.", status=500)


__all__ = ["Bounds", "RequestError", "failed"]
