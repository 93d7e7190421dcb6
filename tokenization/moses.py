"""The rules of Moses for English words, in components of the `tokenizers` library, and their way back.

Vocabularies of the Transformer-XL in transformers 4.x were made of the words of sacremoses (a port of the tokenizer of
Moses, Koehn et al., 2007, https://aclanthology.org/P07-2045): punctuation normalised, split with aggressive dashes, then
numbers split at "," and ".". Here a few replacements change what becomes another text, in the order of the original, and
one expression finds the words. The original makes some fifty passes over a line.

Differs from the original: the texts with which it marks places (`DOTDOTMULTI`, `THISISPROTECTED000`) are words like any
others; a special token in other case (`<UNK>`) is kept whole next to letters, too; more than five commas in a row before
a digit, more than three apostrophes with a single digit after each, and control characters between apostrophes may be cut
elsewhere.
"""

from collections.abc import Iterable, Sequence

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer, Replace
from tokenizers.pre_tokenizers import PreTokenizer


def _ranges(text: str) -> str:
    """Ranges of code points in hexadecimal digits, as the inside of a class of characters."""
    ends = [[chr(int(end, 16)) for end in part.split("-")] for part in text.split()]
    return "".join("-".join(pair) for pair in ends)


# Perl's classes of characters at the time of Moses: today's, in the first plane, without what came later
_NOT_ALPHABETIC = _ranges(
    "363-36f 560 588 5ef 860-86a 870-887 889-88e 897 8b3-8c9 8d4-8df 8e3 9fc af9-afc c04 c5a c5d c80 cdd cf3 "
    "d00 d04 d54-d56 d5f d81 e86 e89 e8c e8e-e93 e98 ea0 ea8-ea9 eac f82-f83 1063-1064 1069-106d 1087-108d "
    "108f 109a-109b 13f5 13f8-13fd 170d 171f 1878 1abf-1ac0 1acc-1ace 1b4c 1c36 1c80-1c8a 1c90-1cba 1cbd-1cbf "
    "1cfa 1dd3-1de6 2c2f 2c5f 3005 3007 3021-3029 3038-303b 312e-312f 31bb-31bf 3400-4dbf 4e00-9fff a69e a78f "
    "a7ae-a7af a7b2-a7cd a7d0-a7d1 a7d3 a7d5-a7dc a7f2-a7f6 a802 a80b a8c5 a8fd-a8ff a9e5 aa7b-aa7d ab60-ab63 "
    "ab66-ab69 ab70-abbf ac00-d7a3 f900-fa6d fa70-fad9"
)
_ALSO_ALPHABETIC = _ranges(
    "93c 94d 9bc 9cd a3c a4d abc acd afd-aff b3c b4d bcd c4d cbc ccd d3b-d3c d4d dca eba 1039 135f 1714 1bab "
    "1c37 25cc a8c4 a953 aaf6 10a3f 11046 110b9-110ba 11133 11173 111c0 111ca 11235-11236 112e9-112ea 1133c "
    "1134d 11442 11446 114c2-114c3 115bf-115c0 1163f 116b6-116b7 11839-1183a 119e0 11a34 11c3f 11d42 11d45 "
    "11d97 1e94a"
)
_NOT_LOWER = _ranges("10d0-10fa 10fc-10ff")
_ALSO_LOWER = _ranges(
    "13f8-13fd 1c80-1c88 25cc a7b5 a7b7 ab60-ab63 ab70-abbf 10428-1044f 104d8-104fb 10cc0-10cf2 118c0-118df "
    "1d41a-1d433 1d44e-1d454 1d456-1d467 1d482-1d49b 1d4b6-1d4b9 1d4bb 1d4bd-1d4c3 1d4c5-1d4cf 1d4ea-1d503 "
    "1d51e-1d537 1d552-1d56b 1d586-1d59f 1d5ba-1d5d3 1d5ee-1d607 1d622-1d63b 1d656-1d66f 1d68a-1d6a5 "
    "1d6c2-1d6da 1d6dc-1d6e1 1d6fc-1d714 1d716-1d71b 1d736-1d74e 1d750-1d755 1d770-1d788 1d78a-1d78f "
    "1d7aa-1d7c2 1d7c4-1d7c9 1d7cb 1e922-1e943"
)
_FIRST_PLANE = "\x00-\uffff"
_ALPHA = rf"[\p{{Alphabetic}}&&[{_FIRST_PLANE}]&&[^{_NOT_ALPHABETIC}]][{_ALSO_ALPHABETIC}]"
_DIGIT = rf"[\p{{Nd}}&&[{_FIRST_PLANE}]]"
_NUMBER = rf"[\p{{N}}&&[{_ALPHA}{_DIGIT}]]"  # what is no letter and no digit is cut off before numbers are looked at
_LOWER = rf"[\p{{Lowercase}}&&[{_ALPHA}]&&[^{_NOT_LOWER}]][{_ALSO_LOWER}]"

# words after which a full stop does not end the sentence; the second row only before a digit
_ABBREVIATIONS = (
    "A|B|C|D|E|F|G|H|I|J|K|L|M|N|O|P|Q|R|S|T|U|V|W|X|Y|Z|Adj|Adm|Adv|Asst|Bart|Bldg|Brig|Bros|Capt|Cmdr|Col|Comdr|Con|"
    "Corp|Cpl|DR|Dr|Drs|Ens|Gen|Gov|Hon|Hr|Hosp|Insp|Lt|MM|MR|MRS|MS|Maj|Messrs|Mlle|Mme|Mr|Mrs|Ms|Msgr|Op|Ord|Pfc|Ph|"
    "Prof|Pvt|Rep|Reps|Res|Rev|Rt|Sen|Sens|Sfc|Sgt|Sr|St|Supt|Surg|v|vs|rev|Rs|Nos|Nr|"
    "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
)
_BEFORE_NUMBERS = "No|Art|pp"


def moses_normalizer(lower_case: bool = False, line_end: str | None = None) -> Normalizer:
    """What Moses changes in a text before it is cut into words.

    Args:
        lower_case: put all letters in lower case first.
        line_end: every line is a text of its own, and its end becomes this word; otherwise it is a space.
    """
    lines = line_end is not None
    alnum = f"{_ALPHA}{_DIGIT}"
    space, control = (r"\s\x1c-\x1f", r"\x00-\x1f") if not lines else (r"\s\x1c-\x1f&&[^\n]", r"\x00-\x1f&&[^\n]")
    replacements = [
        ("\r", ""),
        ("`", "'"),
        ("''", ' " '),
        ("[\u00b4\u2018\u201a\u2019]", "'"),
        ("\u2013", "-"),
        ("\u2014", " - "),
        ("\u2026", "..."),
        ("''|[\u201e\u201c\u201d]|\u00a0\u00ab\u00a0|\u00ab\u00a0?|\u00a0\u00bb\u00a0?|\u00bb", '"'),
        # a quotation mark goes behind the commas and full stops that follow it
        (r'"[,.]*\K,(?![,.])', ',"'),
        (r'"[,.]*\K\.(?![,.])', '."'),
        ('"(?=[,.])', ""),
        # a space that does not break, between digits, is a point; one of two, where a single digit stands between them
        ("\u00a0(?<=\\d\u00a0\\d\u00a0)(?<!\\d\u00a0\\d\u00a0\\d\u00a0)(?=\\d)", " "),
        ("\u00a0(?<=\\d\u00a0)(?=\\d)", "."),
        (rf"[{space}]{{2,}}|[{space}&&[^ ]]", " "),
        (rf"[{control}]", ""),
        ("^ +| +$", ""),
        # from here on @-@, @,@ and @.@ come from us
        ("@(?=[-,.]@)", "@ "),
        (f"-(?<=[{alnum}]-)(?=[{alnum}])", "@-@"),
        (f",(?<={_DIGIT},)(?={_DIGIT})", "@,@"),
        (rf"\.(?<={_DIGIT}\.)(?={_DIGIT})", "@.@"),
    ]
    if lines:
        replacements.append(("\n", f"\n{line_end}\n"))
    chain = [Replace(pattern if len(pattern) == 1 else Regex(pattern), content) for pattern, content in replacements]
    return normalizers.Sequence([normalizers.Lowercase(), *chain] if lower_case else chain)


def moses_pre_tokenizer(special_tokens: Iterable[str]) -> PreTokenizer:
    """Cut a normalised text into words. `special_tokens` are kept whole, in upper and in lower case."""
    alpha, alnum, digit, number = f"[{_ALPHA}]", f"[{_ALPHA}{_DIGIT}]", _DIGIT, _NUMBER
    # an apostrophe that stays inside of a word: at the end of a line, between a digit and a letter other than s, and where
    # the original has used up the character before it (see `first`); all others are cut off
    used_up = f"[-. {digit}]"
    kept = (
        rf"'(?<=[^{_ALPHA}\n]'{used_up}')(?<![^{_ALPHA}\n]'{used_up}'{used_up}')(?=[^{_ALPHA}\n])"
        rf"|'(?<!\.')$|'(?<={digit}')(?={alpha})(?!s)"
    )
    end = rf"(?!\.|-|{alnum}|{kept})"  # what comes after a full stop that ends a word
    stop = rf"\.{end}(?!'$)"  # ... and may stay with it
    dot = rf"\.(?!\.)(?!{end})"
    comma = f",(?<={number},)(?={number})"
    other = f"[^{number},\\n]"
    first_comma = rf",(?={number})(?<=^,|{other},,|{number},,,|^,,,|{other},,,,|{number},,,,,)"
    # an apostrophe that begins a word; with a single letter before the next apostrophe, that one is used up
    after_letter = rf"'(?<={alpha}')(?={alpha})(?:{alpha}'(?={alpha})(?!(?<={number}')s))?"
    first = rf"{after_letter}|'(?<={number}')(?=s)|'(?<=^')|{first_comma}"
    inner = rf"{alnum}|-|{dot}|@[.,]@|{comma}|{kept}"
    word = rf"(?:{first}|{inner})(?:{inner})*+"
    has_letter = rf"(?=(?:{first})?(?:(?!{alpha})(?:{inner}))*+{alpha})"
    has_dot = rf"(?=(?:{first})?(?:(?!\.|@\.@)(?:{inner}))*+(?:\.(?!{end})|@\.@))"
    words = [
        rf"{alnum}++(?![-'.]|@[.,]@|,{number})",
        "@-@",
        *(f"(?i:{literal(token)})" for token in special_tokens),
        r"\.{2,}",
        rf"(?:{_ABBREVIATIONS}){stop}",
        rf"(?:{_BEFORE_NUMBERS}){stop}(?= +[0-9])",
        rf"{has_letter}{has_dot}{word}{stop}",
        rf"{word}(?:{stop}(?= *[{_LOWER}]))?",
        r"[^ \n]",
    ]
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(words)), "removed", invert=True),
            pre_tokenizers.Split(Regex("@[.,]@"), "isolated"),
        ]
    )


def literal(text: str) -> str:
    """`text` as an expression of the `tokenizers` library that matches it and nothing else."""
    return "".join(rf"\x{{{ord(character):x}}}" for character in text)


_CURRENCY_OR_OPENING = set(
    "([{$\u00bf\u00a1\u00a2\u00a3\u00a4\u00a5\u058f\u060b\u09f2\u09f3\u09fb\u0af1\u0bf9\u0e3f\u17db\ua838\ufdfc\ufe69\uff04"
    "\uffe0\uffe1\uffe5\uffe6"
) | {chr(code) for code in range(0x20A0, 0x20BE)}
_CLOSING = set(",.?!:;\\%}])")
_QUOTES = set("'\"`\u201e\u201c")
_CJK = (
    (0x1100, 0x11FF), (0x2E80, 0xA4CF), (0xA840, 0xA87F), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFE30, 0xFE4F),
    (0xFF65, 0xFFDC), (0x17000, 0x18AFF), (0x1B000, 0x1B0FF), (0x1B170, 0x1B2FF), (0x20000, 0x2FFFF),
)  # fmt: skip
_ENTITIES = {
    "&bar;": "|", "&#124;": "|", "&lt;": "<", "&gt;": ">", "&bra;": "[", "&ket;": "]", "&quot;": '"', "&apos;": "'",
    "&#91;": "[", "&#93;": "]", "&amp;": "&",
}  # fmt: skip


def detokenize(words: Sequence[str]) -> str:
    """The words as a text, as Moses joins them: punctuation without the spaces before it, every second quotation mark
    without the space after it, numbers and dashes whole."""
    text = f" {' '.join(words)} ".replace(" @-@ ", "-")
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    words = text.split()
    joined, space, quotes = "", " ", dict.fromkeys(["'", '"', "``", "`", "''"], 0)
    for before, word in zip(["", *words], words, strict=False):
        shape, possessive = set(word), word == "'" and before.endswith("s")  # the Jones' house
        quote = '"' if shape <= {"\u201e", "\u201c"} else word
        opens = shape <= _QUOTES and quotes.setdefault(quote, 0) % 2 == 0
        if _is_cjk(word[0]):
            joined, space = joined + ("" if before and _is_cjk(before[-1]) else space) + word, " "
        elif shape <= _CURRENCY_OR_OPENING:
            joined, space = joined + space + word, ""
        elif shape <= _CLOSING or (before and word[0] == "'" and _is_letter(word[1:2])) or (opens and possessive):
            joined, space = joined + word, " "
        elif shape <= _QUOTES:
            joined, space = joined + (space + word if opens else word), "" if opens else " "
            quotes[quote] += 1
        else:
            joined, space = joined + space + word, " "
    return joined.strip().replace(" @,@ ", ",").replace(" @.@ ", ".").strip()


def _is_cjk(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _CJK)


def _is_letter(character: str) -> bool:
    return character.isalpha() and character <= "\uffff" and not _is_cjk(character)


__all__ = ["detokenize", "literal", "moses_normalizer", "moses_pre_tokenizer"]
