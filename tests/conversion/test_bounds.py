"""Files that would take work or memory without end: the readers of old checkpoints refuse each within their bounds."""

import io
import json
import pickle
import pickletools
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from forked import run_processes
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from transformers_xl.modeling.conversion import safe_pickle, vocabulary
from transformers_xl.modeling.conversion.original import load_original
from transformers_xl.modeling.conversion.safe_pickle import PickleReader
from transformers_xl.modeling.conversion.torch_module import KNOWN_CLASSES, MAX_DIRECTORY, MAX_WEIGHTS, TorchFile
from transformers_xl.modeling.conversion.transfo_xl import MAX_HEADER, read_weights
from transformers_xl.modeling.conversion.vocabulary import read_vocabulary

GIVEN = {"mem_len": 8, "clamp_len": -1, "same_length": False, "pre_lnorm": False}
START = b"\x80\x04"


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


def name(module: str, what: str) -> bytes:
    return f"c{module}\n{what}\n".encode()


def numbers(count: int) -> bytes:
    return b"".join(map(number, range(count)))


# programs that work or make as much as they can for their length; `size` is a number of operations
LARGE = {
    "copies_of_a_set": lambda size: b"](" + numbers(size // 4) + b"e\x94" + name("builtins", "set") + b"\x94"
    + b"h\x01h\x00\x85R" * size,
    "copies_that_are_dropped": lambda size: b"](" + numbers(size // 9) + b"e\x94" + name("builtins", "set") + b"\x94"
    + b"h\x01h\x00\x85R0" * size,
    "copies_of_a_small_set": lambda size: b"](" + numbers(6) + b"e\x94" + name("builtins", "frozenset") + b"\x94"
    + b"h\x01h\x00\x85R" * size,
    "copies_of_a_dict": lambda size: b"}(" + numbers(size // 4 * 2) + b"u\x94" + name("collections", "Counter") + b"\x94"
    + b"h\x01h\x00\x85R" * size,
    "copies_of_pairs": lambda size: b"](" + b"".join(number(k) + b"N\x86" for k in range(size // 20)) + b"e\x94"
    + name("collections", "OrderedDict") + b"\x94" + b"h\x01h\x00\x85R" * size,
    "long_names": lambda size: text(b"sacremoses." + b"a" * 500_000) + b"\x94" + text(b"b") + b"\x94"
    + b"h\x00h\x01\x93" * size,
    "names": lambda size: name("re", "_compile") * size,
    "operations": lambda size: b"N" * size,
    "memo": lambda size: b"N" + b"\x94" * size,
    "integers": lambda size: b"".join(number(k + 300) for k in range(size)),
    "long_integers": lambda size: (b"\x8a\xff" + b"\x7f" * 255) * size,
    "short_integers": lambda size: (b"\x8a\x0f" + b"\x7f" * 15) * size,
    "floats": lambda size: b"Gabcdefgh" * size,
    "short_strings": lambda size: b"\x8c\x06\xf0\x9f\x98\x80ab" * size,
    "wide_strings": lambda size: b"\x8c\x1f\xf0\x9f\x98\x80" .ljust(33, b"a") * size,
    "long_string": lambda size: text(b"\xf0\x9f\x98\x80" + b"a" * 12 * size) * 9,
    "dicts": lambda size: b"}" * size,
    "lists": lambda size: b"]" * size,
    "sets": lambda size: b"\x8f" * size,
    "marks": lambda size: b"(" * size,
    "tuples_in_tuples": lambda size: b")" + b"\x85" * size,
    "lists_in_lists": lambda size: b"]\x94" + b"]\x94h\x00a" * size,
    "dicts_of_one": lambda size: b"}K\x01Ns" * size,
    "sets_of_one": lambda size: b"\x8f(K\x01\x90" * size,
    "frozensets": lambda size: b"(\x91" * size,
    "large_dict": lambda size: b"}(" + b"".join(number(k) + b"N" for k in range(size)) + b"u",
    "large_set": lambda size: b"\x8f(" + numbers(size) + b"\x90",
    "objects": lambda size: name("re", "_compile") + b"\x94" + b"h\x00)\x81}b" * size,
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_what_is_made_is_in_proportion_to_the_work(kind: str, monkeypatch: pytest.MonkeyPatch):
    """100 bytes for a unit are 700 MB for a whole budget."""
    budget = 25_000
    monkeypatch.setattr(safe_pickle, "MAX_WORK", budget)
    data = memoryview(START + LARGE[kind](budget) + b".")
    reader = PickleReader(data, "x.pkl", inert=KNOWN_CLASSES)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"'x\.pkl' is refused: .*(more work|longer than)"):
            reader.read()
        assert tracemalloc.get_traced_memory()[1] < 110 * budget
    finally:
        tracemalloc.stop()


READ_ALL = """
import resource, sys
from pathlib import Path
from transformers_xl.modeling.conversion import safe_pickle
from transformers_xl.modeling.conversion.vocabulary import read_vocabulary
safe_pickle.MAX_WORK //= 4
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for path in sys.argv[1:]:
    limit = used + Path(path).stat().st_size + 10**9 // 4
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        read_vocabulary(path)
    except ValueError as error:
        assert repr(path) in str(error) and len(str(error)) < 300, error
        print("refused", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux knows them")
def test_a_quarter_of_a_budget_in_a_quarter_of_a_gigabyte(tmp_path: Path):
    """Of the largest objects, of the most work for a byte, and of the deepest; the others grow as they do above."""
    assert 110 * safe_pickle.MAX_WORK < 10**9  # the bytes for a unit above
    paths = []
    for kind in ("sets", "copies_of_a_dict", "tuples_in_tuples"):
        paths.append(tmp_path / f"{kind}.pkl")
        paths[-1].write_bytes(START + LARGE[kind](safe_pickle.MAX_WORK // 4) + b".")
    (tmp_path / "read_all.py").write_text(READ_ALL)
    run = run_processes(tmp_path / "read_all.py", *paths, processes=1)
    assert run.stdout.split() == ["refused"] * 3, run.stderr


# ---- any program


def _argument(opcode: pickletools.OpcodeInfo) -> st.SearchStrategy[bytes]:
    """What may stand behind an opcode: mostly what its format asks for."""
    form = opcode.arg
    small = st.integers(0, 6)
    sizes = {"uint1": 1, "uint2": 2, "uint4": 4, "uint8": 8, "int4": 4, "float8": 8}
    if form is None:
        return st.just(b"")
    if form.name in sizes:
        return small.map(lambda k: k.to_bytes(sizes[form.name], "little")) | st.binary(
            min_size=sizes[form.name], max_size=sizes[form.name]
        )
    if form.n in (pickletools.TAKEN_FROM_ARGUMENT1, pickletools.TAKEN_FROM_ARGUMENT4,
                  pickletools.TAKEN_FROM_ARGUMENT4U, pickletools.TAKEN_FROM_ARGUMENT8U):  # fmt: skip
        width = {"1": 1, "4": 4, "8": 8}[form.name[-1]]
        return st.binary(max_size=12).map(lambda data: len(data).to_bytes(width, "little") + data)
    names = [b"collections\nOrderedDict\n", b"collections\nCounter\n", b"builtins\nset\n", b"os\nsystem\n",
             b"torch._utils\n_rebuild_tensor_v2\n", b"torch\nFloatStorage\n", b"re\n_compile\n"]  # fmt: skip
    return st.sampled_from(names) | st.binary(max_size=8).map(lambda data: data + b"\n")


PARTS = st.sampled_from(pickletools.opcodes).flatmap(
    lambda opcode: _argument(opcode).map(lambda data: opcode.code.encode("latin-1") + data)
)
FRAGMENTS = st.sampled_from(
    [b"}", b"]", b")", b"(", b"N", b"\x8f", b"K\x01", b"u", b"e", b"t", b"\x85", b"s", b"a", b"\x94", b"h\x00", b"b", b"R",
     text(b"a"), text(b"storage"), text(b"sym2idx"), name("builtins", "set"), name("collections", "OrderedDict"),
     name("torch._utils", "_rebuild_tensor_v2"), name("torch._utils", "_rebuild_parameter"), name("torch", "FloatStorage"),
     b"}" + text(b"_modules") + b"}s", name("mem_transformer", "MemTransformerLM") + b")\x81",
     b"(" + text(b"storage") + name("torch", "FloatStorage") + text(b"0") + text(b"cpu") + b"K\x04tQ"]
)  # fmt: skip
PROGRAMS = st.lists(PARTS | FRAGMENTS | FRAGMENTS, max_size=40).map(lambda parts: START + b"".join(parts) + b".")


class WithoutNames(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError

    persistent_load = None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@given(program=PROGRAMS)
@settings(max_examples=400)
def test_any_program(place: Path, program: bytes):
    """It is read, or refused in a short sentence that names the file; nothing else is raised, and no name is looked up."""
    before = set(sys.modules)
    for path, read in (
        (place / "vocab.pkl", read_vocabulary),
        (place / "model.pt", lambda path: load_original(path, GIVEN)),
    ):
        path.write_bytes(program)
        try:
            reason = read(path) and None
        except ValueError as error:
            reason = str(error)
        assert reason is None or (repr(str(path)) in reason and len(reason) < 300)
    assert set(sys.modules) == before


@given(program=st.lists(FRAGMENTS.filter(lambda part: part[:1] != b"c" and part[-1:] not in b"QRb") | st.sampled_from(
    [b"\x90", b"(N\x91", b"0", b"2", b"1", b"\x86", b"\x87", b"q\x03", b"h\x03", b"G@\x08\0\0\0\0\0\0", b"\x8a\x01\xff"]
), max_size=25))  # fmt: skip
@settings(max_examples=400)
def test_plain_data_is_what_python_reads(program: list[bytes]):
    data = START + b"".join(program) + b"."
    try:
        ours = PickleReader(data, "x").read()
    except ValueError:
        return
    assert repr(WithoutNames(io.BytesIO(data)).load()) == repr(ours)


# ---- modules, weights, archives


def module(kind: str, state: bytes) -> bytes:
    where, what = kind.rsplit(".", 1)
    return name(where, what) + b")\x81\x94" + state + b"b"


def fields(**values: bytes) -> bytes:
    return b"}" + b"".join(text(key.encode()) + value + b"s" for key, value in values.items())


PARALLEL, LINEAR = "torch.nn.parallel.data_parallel.DataParallel", "torch.nn.modules.linear.Linear"
MODEL = "mem_transformer.MemTransformerLM"
LAYER = module(LINEAR, fields(_modules=fields(dec_attn=module(LINEAR, fields(pre_lnorm=b")" + b"\x85" * 300_000)))))
MODULES = {
    "holds_itself": (module(PARALLEL, fields(_modules=fields(module=b"h\x00"))), "DataParallel"),
    "modules_are_a_number": (module(PARALLEL, fields(_modules=number(5))), "it holds None"),
    "modules_are_a_list": (module(MODEL, fields(_modules=b"]")), "no part"),
    "state_is_a_tuple": (module(MODEL, b"NN\x86"), "no part"),
    "deep_tuple_as_a_flag": (module(MODEL, fields(_modules=fields(
        word_emb=module(LINEAR, b"}"), layers=module(LINEAR, fields(_modules=fields(first=LAYER)))))), "pos_ff"),
    "weights_without_numbers": (
        fields(a=name("torch._utils", "_rebuild_tensor_v2") + b"((" + text(b"storage") + name("torch", "FloatStorage")
               + text(b"0") + text(b"cpu") + b"K\x01tQK\x00K\x01\x85K\x01\x85\x89}tR"), "missing"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODULES)
def test_a_pickled_module_that_is_none(kind: str, tmp_path: Path):
    program, reason = MODULES[kind]
    path = tmp_path / "model.pt"
    path.write_bytes(START + program + b".")
    with pytest.raises(ValueError, match=reason) as raised:
        load_original(path, GIVEN)
    assert repr(str(path)) in str(raised.value)
    assert len(str(raised.value)) < 300


def test_names_of_weights_of_any_kind(tmp_path: Path):
    for key in ("x" * 100_000, 7, None):
        torch.save({key: torch.zeros(2), "layers.0.dec_attn.qkv_net.weight": torch.zeros(2)}, tmp_path / "state.pt")
        with pytest.raises(ValueError, match="refused") as raised:
            load_original(tmp_path / "state.pt", GIVEN)
        assert len(str(raised.value)) < 300


def test_more_tensors_than_a_model_has(tmp_path: Path):
    storage = torch.zeros(1)
    torch.save({str(k): storage[:] for k in range(MAX_WEIGHTS + 1)}, tmp_path / "state.pt")
    with pytest.raises(ValueError, match="20,000 tensors"):
        load_original(tmp_path / "state.pt", GIVEN)


@pytest.mark.parametrize("size", [(0,), (0, 2**40), (2**40, 2**40, 0)])
def test_tensors_without_numbers(size: tuple, tmp_path: Path):
    """Whatever shape a file gives them, they are read as empty, and do not fit any model."""
    arguments = b"".join(b"\x8a\x08" + length.to_bytes(8, "little") for length in size)
    tensor = b"((" + text(b"storage") + name("torch", "FloatStorage") + text(b"0") + text(b"cpu") + b"K\x00tQ"
    tensor = (
        name("torch._utils", "_rebuild_tensor_v2") + tensor + b"K\x09(" + arguments + b"t(" + arguments + b"t\x89}tR"
    )
    path = tmp_path / "state.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("state/data.pkl", START + fields(a=tensor) + b".")
        file.writestr("state/data/0", b"")
    value = TorchFile(path)
    assert value.tensor(value.value["a"]).shape == (0,)


def test_an_archive_of_many_entries(tmp_path: Path):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as file:
        for index in range(MAX_DIRECTORY // 100):
            file.writestr(zipfile.ZipInfo(f"model/{index:050d}"), b"")
    with pytest.raises(ValueError, match=r"directory of .* bytes is longer") as raised:
        load_original(path, GIVEN)
    assert len(str(raised.value)) < 300


def test_weights_that_are_tied_over_two_types(tmp_path: Path):
    """`torch.equal` has an error of its own for two types."""
    folder = Path(__file__).parent.parent / "fixtures" / "golden" / "legacy_txl_checkpoint"
    weights = torch.load(folder / "model_state_dict.pt", weights_only=True)
    weights["crit.out_layers.0.weight"] = weights["crit.out_layers.0.weight"].double()
    torch.save(weights, tmp_path / "state.pt")
    model = load_original(tmp_path / "state.pt", GIVEN)
    assert model.config.tie_word_embeddings is False


def test_safetensors_with_a_header_of_many_tensors(tmp_path: Path):
    header = {
        f"{index:060d}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(MAX_HEADER // 100)
    }
    data = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)
    with pytest.raises(ValueError, match="header longer"):
        read_weights(str(path))
    save_file({"a": torch.ones(2)}, path)
    assert read_weights(str(path))["a"].tolist() == [1, 1]


def test_a_vocabulary_in_json_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "vocab.json"
    with path.open("wb") as file:
        file.write(b'{"sym2idx": {"a": 0}, "more": "')
        file.seek(vocabulary.MAX_JSON)
        file.write(b'"}')
    with pytest.raises(ValueError, match="longer than"):
        read_vocabulary(path)
    monkeypatch.setattr(vocabulary, "MAX_SYMBOLS", 2)
    path.write_text('{"a": 0, "b": 1, "c": 2}')
    with pytest.raises(ValueError, match="3 symbols, at most 2"):
        read_vocabulary(path)


def test_the_vocabulary_of_one_billion_words_fits(tmp_path: Path):
    """793,471 symbols, with counts, as Python 3 pickles the vocabulary of the authors: a tenth of them take a tenth."""
    symbols = [f"word{index}" for index in range(79_347)]
    ids = {symbol: index for index, symbol in enumerate(symbols)}
    for protocol in (2, 4):
        data = pickle.dumps({"sym2idx": ids, "idx2sym": symbols, "counter": dict.fromkeys(symbols, 300)}, protocol)
        reader = PickleReader(data, "x")
        assert reader.read()["idx2sym"] == symbols
        assert reader.work < safe_pickle.MAX_WORK / 10
