"""Where the words of a tokenised text begin."""

import re
from typing import Any

import numpy as np

# how tokenizers write white space: byte-level BPE, SentencePiece
_MARKS = str.maketrans({"\u0120": " ", "\u010a": "\n", "\u0109": "\t", "\u010d": "\r", "\u2581": " "})
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's, of what it has no token for


def word_starts(ids: np.ndarray, tokenizer: Any) -> np.ndarray:
    """Which tokens begin a word `(tokens,)` bool: the first, and each that follows white space or opens with some. Tokens
    of nothing but white space belong to the word before.

    Args:
        ids: token ids `(tokens,)`.
        tokenizer: that of the ids, of this package or of transformers. Where its tokens have no white space in them, each
            is a word, but those of WordPiece that continue one (`##`).
    """
    if len(ids) == 0:
        return np.zeros(0, dtype=bool)
    found, place = np.unique(ids, return_inverse=True)
    pieces = [_piece(int(each), tokenizer) for each in found]
    if hasattr(tokenizer, "decode_bytes") or any(piece[:1].isspace() or piece[-1:].isspace() for piece in pieces):
        # what has no text, such as an end of text, is a word by itself
        opens, closes = (np.array([not piece or piece[end].isspace() for piece in pieces])[place] for end in (0, -1))
        blank = np.array([piece.isspace() for piece in pieces])[place]
        starts = ~blank & (opens | np.roll(closes, 1))
    else:
        starts = ~np.array([piece.startswith("##") for piece in pieces])[place]
    starts[:1] = True
    return starts


def _piece(token: int, tokenizer: Any) -> str:
    """The text of a token with its white space; "" where it has none."""
    if hasattr(tokenizer, "decode_bytes"):
        return tokenizer.decode_bytes([token]).decode("ascii", errors="replace")
    piece = tokenizer.convert_ids_to_tokens(token)
    if piece is None or token in tokenizer.all_special_ids:
        return ""
    byte = _BYTE.fullmatch(piece)
    return chr(int(byte[1], 16)) if byte else piece.translate(_MARKS)


__all__ = ["word_starts"]
