"""Stand-ins of the papers' corpora: a few words in the form of each official file. Their counts are worked out by hand in
tests/data/test_prepare.py."""

import io
import tarfile
import zipfile
from pathlib import Path

# 20 bytes: 18 for training, and the last two
ENWIK8 = b"aab\nbba\nab<ab>\nb\nb a"
# 40 bytes: 36 for training, "at", and " o", which is stripped
TEXT8 = b"the cat sat on the mat and the dog sat o"
WIKITEXT = {"train": " \n = A = \n \n the <unk> the \n", "valid": " \n a dog \n", "test": " the cat \n"}
PTB = {"train": " the N <unk> sat \n the dog \n", "valid": " a dog \n", "test": " N \n"}
PTB_CHAR = {"train": " t h e _ N \n a _ < u n k > \n", "valid": " t h \n", "test": " n \n"}
LM1B = {
    "training-monolingual.tokenized.shuffled/news.en-00001-of-00100": "the dog sat\nthe dog ran\n",
    "training-monolingual.tokenized.shuffled/news.en-00002-of-00100": "the dog sat\n",
    "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050": "the cat\n",
    "heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050": "nobody reads this\n",
}


def stand_in(corpus: str, folder: Path, repeat: int = 1) -> Path:
    """A file in `folder` of the form of the corpus's official one; every text in it stands there `repeat` times."""
    if corpus in ("enwik8", "text8"):
        return _zip(folder / f"{corpus}.zip", {corpus: (ENWIK8 if corpus == "enwik8" else TEXT8) * repeat})
    if corpus.startswith("wikitext"):
        parts = {f"{corpus}/wiki.{part}.tokens": text.encode() * repeat for part, text in WIKITEXT.items()}
        return _zip(folder / f"{corpus}-v1.zip", parts)
    if corpus == "lm1b":
        name = "1-billion-word-language-modeling-benchmark-r13output"
        return _tar(
            folder / f"{name}.tar.gz", {f"{name}/{path}": text.encode() * repeat for path, text in LM1B.items()}
        )
    spelled = {f"simple-examples/data/ptb.char.{part}.txt": text.encode() * repeat for part, text in PTB_CHAR.items()}
    words = {f"./simple-examples/data/ptb.{part}.txt": text.encode() * repeat for part, text in PTB.items()}
    return _tar(folder / "simple-examples.tgz", words | spelled)


def _zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path
