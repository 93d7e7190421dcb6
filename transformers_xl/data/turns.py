"""What a model reads of the turns of a conversation: text by a chat template, a program of whoever made the tokenizer."""

import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from transformers_xl.data.text_beginning import beginning_of, begun
from transformers_xl.files.bounded_calls import BoundedCalls, bounded

ANSWER = "[[answer]]"  # stands where the template puts an earlier answer
MAX_RENDERED = 1 << 18  # bytes that a template may add to the messages
Message = Mapping[str, str]


class TemplateError(ValueError):
    """A chat template that fails, or refuses the messages."""


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str, begins: bool) -> list[int]:
    """The ids of a text as it stands; one that `begins` has before it what the tokenizer begins texts with."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return begun(ids, beginning_of(tokenizer)) if begins else ids


def end_ids(model: PreTrainedModel) -> frozenset[int]:
    """The tokens that end what a model writes, by its generation config."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)


def turn_ids(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    unread: Sequence[int] | None,
    render: Callable[[Sequence[Message]], str] | None = None,
    ends: Collection[int] = (),
) -> list[int]:
    """The ids that the model reads before its next answer, by the tokenizer's chat template.

    Only the new messages are rendered, between the end of the last answer and the beginning of the next: the model reads
    token for token what it would read of the whole conversation.

    Args:
        tokenizer: it has a chat template.
        messages: a `role` and a `content` each.
        unread: what the memory does not hold yet of the answer before, which these ids begin with; None: nothing was read
            before.
        render: a [`Template`] of the tokenizer; None: one for this call.
        ends: tokens that end an answer of the model, beside the special tokens of the tokenizer.

    Raises:
        TemplateError: the template fails, takes more time or memory than a template can need, or does not say where an
            earlier answer ends.
    """
    render = render or Template(tokenizer, is_kept=False)
    if unread is None:
        return text_ids(tokenizer, render(messages), begins=False)
    before = [{"role": "user", "content": ""}, {"role": "assistant", "content": ANSWER}]
    _, answer, rest = render([*before, *messages]).partition(ANSWER)
    if not (answer and rest):
        raise TemplateError(
            f"the chat template of {tokenizer.name_or_path!r} does not write an earlier answer as it is, and the messages "
            "after it: a model with memory does not know what to read next. Begin anew, or correct the template."
        )
    ids = text_ids(tokenizer, rest, begins=False)
    # the model may have written the end of its answer itself; any other token, an unknown word too, is content
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    written = special.union([tokenizer.eos_token_id], ends).intersection(unread[-1:])
    end = next((place for place, each in enumerate(ids) if each in written), None)
    # Llama 2's template has a space before it
    is_end = end is not None and not str(tokenizer.decode(ids[:end])).strip()
    return [*(unread[:-1] if is_end else unread), *ids]


class Template:
    """The chat template of a tokenizer, in a process that has bounds.

    Args:
        tokenizer: it has one.
        is_kept: whether the process is kept from call to call; until `end`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, is_kept: bool = True):
        def render(messages: Sequence[Message]) -> str:
            return str(
                tokenizer.apply_chat_template(
                    [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
                )
            )

        self.name = tokenizer.name_or_path
        self.calls = BoundedCalls(render)
        self.call = self.calls if is_kept else partial(bounded, render)
        if is_kept:
            self.calls.start()

    def __call__(self, messages: Sequence[Message]) -> str:
        """What the template writes of `messages`.

        Raises:
            TemplateError: it fails, or takes more time or memory than a template can need.
        """
        read = sum(len(message["content"]) for message in messages)
        try:
            return self.call(list(messages), most=MAX_RENDERED + 16 * read)
        except ValueError as error:
            said = textwrap.shorten(str(error), 300)
            raise TemplateError(f"the chat template of {self.name!r} fails: {said}.") from error

    def end(self) -> None:
        """End its process."""
        self.calls.end()


__all__ = ["ANSWER", "MAX_RENDERED", "Template", "TemplateError", "end_ids", "text_ids", "turn_ids"]
