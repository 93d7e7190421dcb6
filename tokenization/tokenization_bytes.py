"""Text as its bytes: a tokenizer that knows every text there is, and needs no training."""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from transformers_xl.configuration.saved_with_code import TokenizerWithCode

_SPECIAL_TOKENS = {"pad_token": "<|pad|>", "bos_token": "<|bos|>", "eos_token": "<|eos|>"}


def _printable_bytes() -> dict[int, str]:
    """The printable character that stands for each byte in the `tokenizers` library's byte-level components."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)}


def _byte_level_tokenizer() -> Tokenizer:
    vocabulary = {character: byte for byte, character in _printable_bytes().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL_TOKENS.values()])
    return tokenizer


def _tokenizer_of(symbols: list[int]) -> Tokenizer:
    """A tokenizer that knows these bytes alone: any other is an error, where a BPE would pass over it."""
    printable = _printable_bytes()
    tokenizer = Tokenizer(models.WordLevel({printable[byte]: index for index, byte in enumerate(symbols)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class ByteTokenizer(TokenizerWithCode):
    r"""
    UTF-8 bytes as tokens: the id of a byte is its value, 0..255, followed by `<|pad|>` (256), `<|bos|>` (257) and
    `<|eos|>` (258). `len(tokenizer)` is 259.

    Every text that UTF-8 can spell (all but lone surrogates) survives `decode(encode(text))`, and so does the text
    `"<|eos|>"`: the special tokens are ids to be set by code, and are not read from text unless
    `split_special_tokens=False` is passed. Bytes that are no UTF-8 go through [`~ByteTokenizer.encode_bytes`] and
    [`~ByteTokenizer.decode_bytes`]; `decode` shows them as U+FFFD.

    Padding is on the left by default, where `generate()` needs it. No token is added to a text.

    With `symbols` the vocabulary is that of one corpus, as papers count it: the 204 bytes of enwik8 without line feeds have
    the ids 0..203 in the order of their values, and there is no special token.

    Args:
        symbols: the bytes that texts are made of, by default all, and the special tokens.

    Raises:
        ValueError: `symbols` is empty or holds what is no byte; a text holds a byte that is not among them.

    Example:

    ```python
    >>> from transformers_xl import ByteTokenizer

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer("na\u00efve")["input_ids"]
    [110, 97, 195, 175, 118, 101]
    ```
    """

    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        tokenizer_object: Tokenizer | None = None,
        split_special_tokens: bool = True,
        symbols: Iterable[int] | None = None,
        **kwargs,
    ):
        own: dict = dict(_SPECIAL_TOKENS)
        if symbols is not None:
            symbols = sorted(set(symbols))
            if not symbols or not 0 <= symbols[0] <= symbols[-1] <= 255:
                raise ValueError(f"`symbols`={symbols} must be bytes, 0..255, at least one.")
            own = {"symbols": symbols}
        if tokenizer_object is None and kwargs.get("tokenizer_file") is None:
            tokenizer_object = _byte_level_tokenizer() if symbols is None else _tokenizer_of(symbols)
        super().__init__(
            tokenizer_object=tokenizer_object,
            split_special_tokens=split_special_tokens,
            # an argument, not a class attribute: it is saved, and holds where the files are read without this class
            **{**own, "padding_side": "left", "clean_up_tokenization_spaces": False, **kwargs},
        )
        self._symbols = bytes(range(256) if symbols is None else symbols)

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes, UTF-8 or not: their values, or their places among the `symbols`.

        Raises:
            ValueError: a byte is not among the `symbols`.
        """
        if len(self._symbols) == 256:
            return list(data)
        if others := data.translate(None, self._symbols):
            raise ValueError(_not_known(others[0], self._symbols))
        return list(data.translate(bytes.maketrans(self._symbols, bytes(range(len(self._symbols))))))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`, exactly. Special tokens are left out.

        Raises:
            ValueError: for an id that is no byte and no special token.
        """
        ids = [int(token_id) for token_id in ids]
        special, size = set(self.all_special_ids), len(self._symbols)
        unknown = [token_id for token_id in ids if not 0 <= token_id < size and token_id not in special]
        if unknown:
            raise ValueError(
                f"`ids` holds {unknown[0]}: a byte is 0..{size - 1}, special tokens are {sorted(special)}."
            )
        return bytes(self._symbols[token_id] for token_id in ids if token_id < size)

    def _encode_plus(self, text, *args, **kwargs):
        try:
            return super()._encode_plus(text, *args, **kwargs)
        except Exception as error:  # `tokenizers` raises nothing narrower
            if "[UNK]" not in str(error):
                raise
            raise ValueError(_not_known(None, self._symbols)) from error


def _not_known(byte: int | None, symbols: bytes) -> str:
    named = "a byte" if byte is None else f"the byte {byte} ({bytes([byte])!r})"
    return f"`text` holds {named} that is not among the {len(symbols)} `symbols` of this tokenizer: leave it out."


__all__ = ["ByteTokenizer"]
