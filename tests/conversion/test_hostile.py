"""Files that were made to do harm: each is refused with its name and the reason, and nothing in it runs."""

import collections
import io
import json
import os
import pickle
import re
import shutil
import struct
import sys
import zipfile
from pathlib import Path

import naive_mem_transformer as naive
import pytest
import torch
from golden import SHIPPED, folder_of
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from transformers_xl.modeling.conversion import safe_pickle
from transformers_xl.modeling.conversion.original import NOT_IN_WEIGHTS, load_original
from transformers_xl.modeling.conversion.safe_pickle import PickleReader
from transformers_xl.modeling.conversion.torch_module import TorchFile
from transformers_xl.modeling.conversion.vocabulary import read_vocabulary

HF_FOLDER, ORIGINAL = folder_of("legacy_hf_checkpoint"), folder_of("legacy_txl_checkpoint")
GIVEN = {name: naive.HYPER[name] for name in NOT_IN_WEIGHTS}


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


class Stateful:
    """Pickles as an object of a harmless class whose state is a call."""

    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return (collections.OrderedDict, (), self.state)


def attacks(sentinel: Path) -> dict:
    """Objects whose unpickling would write `sentinel`."""
    touch = f"touch {sentinel}"
    run = Call(os.system, touch)
    by_getattr = Call(getattr, Call(__import__, "os"), "system")
    return {
        "system": run,
        "eval": Call(eval, f"open({str(sentinel)!r}, 'w')"),
        "exec": Call(exec, f"open({str(sentinel)!r}, 'w')"),
        "open": Call(open, str(sentinel), "w"),
        "getattr": by_getattr,
        "import": Call(__import__, "this"),
        "in_a_dict": {"sym2idx": {"the": 0}, "idx2sym": ["the"], "counter": run},
        "as_a_key": {"sym2idx": {run: 0}},
        "in_a_state": Stateful({"sym2idx": run}),
        "in_an_argument": Call(collections.OrderedDict, [("the", run)]),
        "in_a_counter": Call(collections.Counter, run),
        "in_a_pattern": Call(re.compile, "(a+)+$"),  # `re._compile` is known, `re.compile` is not
        "in_a_tensor": Call(torch._utils._rebuild_tensor_v2, run, 0, (1,), (1,), False, collections.OrderedDict()),
        "in_a_parameter": Call(torch._utils._rebuild_parameter, run, True, collections.OrderedDict()),
        "import_by_torch": Call(torch.load, "x"),
        "map": Call(map, os.system, [touch]),
        "setattr": Call(setattr, collections.Counter, "update", None),
    }


NAMES = list(attacks(Path("x")))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_that_calls(name: str, protocol: int, tmp_path: Path):
    sentinel = tmp_path / "it-ran"
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps(attacks(sentinel)[name], protocol))
    with pytest.raises(ValueError, match="refused") as raised:
        read_vocabulary(path)
    assert str(path) in str(raised.value)
    assert not sentinel.exists()
    assert collections.Counter.update is not None


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_that_calls(name: str, zipped: bool, tmp_path: Path):
    sentinel, path = tmp_path / "it-ran", tmp_path / "model.pt"
    torch.save(attacks(sentinel)[name], path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="refused") as raised:
        load_original(path)
    assert str(path) in str(raised.value)
    assert not sentinel.exists()


def test_a_folder_of_transformers_that_calls(tmp_path: Path):
    folder, sentinel = tmp_path / "folder", tmp_path / "it-ran"
    shutil.copytree(HF_FOLDER, folder)
    (folder / "vocab.pkl").write_bytes(pickle.dumps(attacks(sentinel)["system"]))
    torch.save(attacks(sentinel)["system"], folder / "pytorch_model.bin")
    for auto_class, file in ((AutoTokenizer, "vocab.pkl"), (AutoModelForCausalLM, "pytorch_model.bin")):
        with pytest.raises(ValueError, match="refused") as raised:
            auto_class.from_pretrained(folder)
        assert str(folder / file) in str(raised.value)
        assert "system" in str(raised.value)
    assert not sentinel.exists()


def test_the_classes_of_a_module_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of the same name lies on the path, and would run when it is imported."""
    sentinel = tmp_path / "it-ran"
    code = f"open({str(sentinel)!r}, 'w')\nclass MemTransformerLM: pass\n"
    for name in ("mem_transformer.py", "proj_adaptive_softmax.py", "sacremoses.py"):
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    load_original(ORIGINAL / "model.pt")
    read_vocabulary(HF_FOLDER / "vocab.pkl")
    assert not sentinel.exists()
    assert "mem_transformer" not in sys.modules


def frame(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


NEST = 50_000
PROGRAMS = {
    "extension": (frame(b"\x82\x01"), "opcode 0x82"),
    "inst": (b"\x80\x02(S'touch x'\nios\nsystem\n.", "opcode 0x53"),
    "obj": (b"\x80\x02(cos\nsystem\no.", "os.system"),
    "old_protocol": (b"Np0\n.", "opcode 0x70"),
    "bytearray": (frame(b"\x96" + struct.pack("<Q", 2**40)), "opcode 0x96"),
    "string_of_a_petabyte": (frame(b"\x8d" + struct.pack("<Q", 2**50)), "cut off"),
    "frame_of_a_petabyte": (frame(b"\x95" + struct.pack("<Q", 2**50)), "cut off"),
    "integer_of_any_length": (frame(b"\x8b" + struct.pack("<i", 2**30)), "opcode 0x8b"),
    "far_memo": (frame(b"}r\xff\xff\xff\xff0j\xfe\xff\xff\xff"), "never made"),
    "million_dicts": (frame(b"}" * (NEST + 1)), "more work"),
    "million_marks": (frame(b"(" * (NEST + 1)), "more work"),
    "deep_tuple_as_a_key": (frame(b"}" + b")" + b"\x85" * (NEST - 9) + b"K\x01s"), "key is tuple"),
    "doubling_tuple_as_a_key": (frame(b"})" + b"2\x86" * 100 + b"K\x01s"), "key is tuple"),
    "large_integer_as_a_key": (frame(b"}\x8a\x10" + b"\x7f" * 16 + b"K\x01s"), "small integer"),
    "list_in_itself": (frame(b"]q\x00h\x00a"), "no symbols"),
    "dict_in_itself": (frame(b"}q\x00X\x07\x00\x00\x00sym2idxh\x00s"), "symbol 'sym2idx' has the id dict"),
    "call_of_data": (frame(b"X\x02\x00\x00\x00os)R"), "belongs"),
    "call_without_arguments": (frame(b"\x8c\x0bcollections\x8c\x07Counter\x93}R"), "belongs"),
    "name_from_a_list": (frame(b"]]\x93"), "belongs"),
    "state_of_a_list": (frame(b"]}b"), "cannot have"),
    "empty_stack": (frame(b"0"), "never made"),
    "nothing": (frame(b""), "never made"),
    "no_mark": (frame(b"u"), "never made"),
    "odd_items": (frame(b"}(K\x01u"), "without a value"),
    "append_to_a_dict": (frame(b"}Na"), "belongs"),
    "protocol_9": (b"\x80\x09N.", "protocol 9"),
    "no_utf8": (frame(b"\x8c\x02\xff\xfe"), "utf-8"),
    "persistent": (frame(b")Q"), "not a storage"),
    "a_name_for_a_vocabulary": (frame(b"\x8c\x02re\x8c\x08_compile\x93"), "no symbols"),
    "trailing": (frame(b"}") + b"more", "follow"),
    "text": (b"{}", "opcode"),
    "empty": (b"", "empty"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_no_pickler_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(safe_pickle, "MAX_WORK", 5 * NEST)  # a container is 5 units
    data, reason = PROGRAMS[name]
    path = tmp_path / "vocab.pkl"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=reason) as raised:
        read_vocabulary(path)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_name_is_not_looked_up():
    """Even where a class is known, what the reader makes of it is a record."""
    data = pickle.dumps(re.compile("(a+)+$"))
    value = PickleReader(data, "x", inert=r"re\._compile").read()
    assert (value.name, value.args) == ("re._compile", ("(a+)+$", re.compile("(a+)+$").flags))
    with pytest.raises(ValueError, match="nothing was run"):
        PickleReader(data, "x").read()


@pytest.mark.parametrize(
    ("size", "stride", "offset", "reason"),
    [
        ((10**6, 10**6), (0, 0), 0, "does not fit"),
        ((4,), (1,), 10**9, "does not fit"),
        ((-4,), (1,), 0, "made of something else"),
        ((4,), (1, 1), 0, "sizes"),
        ((2,) * 40, (1,) * 40, 0, "sizes"),
        ((10**30,), (1,), 0, "does not fit"),
        (("4",), (1,), 0, "made of something else"),
    ],
)
def test_a_tensor_larger_than_its_file(size, stride, offset, reason: str, tmp_path: Path):
    path = tmp_path / "state.pt"
    storage = torch.zeros(8).untyped_storage()
    tensor = Call(torch._utils._rebuild_tensor_v2, torch.storage.TypedStorage(
        wrap_storage=storage, dtype=torch.float32, _internal=True
    ), offset, size, stride, False, collections.OrderedDict())  # fmt: skip
    for zipped in (True, False):
        torch.save({"r_w_bias": tensor}, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match=reason) as raised:
            load_original(path, GIVEN)
        assert str(path) in str(raised.value)


def test_storages_that_are_shared_a_thousand_times(tmp_path: Path):
    """A file of a megabyte must not become a model of gigabytes."""
    table = torch.zeros(2**18)
    for weights in ({f"w{i}": table for i in range(1000)}, {f"w{i}": table.view(-1) for i in range(1000)}):
        torch.save(weights, tmp_path / "state.pt")
        with pytest.raises(ValueError, match="share their numbers"):
            load_original(tmp_path / "state.pt", GIVEN)


def rewritten(source: Path, target: Path, change) -> None:
    """Copy a zip file, with `change(name, data)` of each entry in its place; it may return None."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            changed = change(entry.filename, old.read(entry))
            if changed is not None:
                new.writestr(zipfile.ZipInfo(changed[0]), changed[1], changed[2] if len(changed) > 2 else None)


def _bomb(name: str, data: bytes):
    return (name, bytes(2**24), zipfile.ZIP_DEFLATED) if name.endswith("data/0") else (name, data)


ZIP_CHANGES = {
    "climbing": (lambda name, data: (name.replace("data/0", "../../evil") if name.endswith("data/0") else name, data),
                 "points outside"),
    "absolute": (lambda name, data: ("/etc/evil" if name.endswith("data/0") else name, data), "points outside"),
    "bomb": (_bomb, "compressed"),
    "missing_storage": (lambda name, data: None if name.endswith("data/0") else (name, data), "storage '0'"),
    "short_storage": (lambda name, data: (name, data[:-4] if name.endswith("data/0") else data), "storage '0'"),
    "no_pickle": (lambda name, data: None if name.endswith("data.pkl") else (name, data), "no data.pkl"),
    "big_endian": (lambda name, data: (name, b"big" if name.endswith("byteorder") else data), "big-endian"),
}  # fmt: skip


@pytest.mark.parametrize("name", ZIP_CHANGES)
@pytest.mark.parametrize("source", ["model.pt", "model_state_dict.pt"])
def test_a_zip_file_that_torch_never_writes(name: str, source: str, tmp_path: Path):
    change, reason = ZIP_CHANGES[name]
    path = tmp_path / "in" / "model.pt"
    path.parent.mkdir()
    rewritten(ORIGINAL / source, path, change)
    with pytest.raises(ValueError, match=reason) as raised:
        load_original(path, GIVEN)
    assert str(path) in str(raised.value)
    assert [file.name for file in tmp_path.rglob("*")] == ["in", "model.pt"]


def test_two_entries_of_one_name(tmp_path: Path):
    shutil.copy(ORIGINAL / "model.pt", tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt", "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("model/data.pkl", pickle.dumps({}))
    with pytest.raises(ValueError, match="two entries"):
        load_original(tmp_path / "model.pt")


FILES = {
    **{ORIGINAL / name: lambda path: load_original(path, GIVEN)
       for name in ("model.pt", "model_oldformat.pt", "model_state_dict.pt")},
    **{HF_FOLDER / name: read_vocabulary for name in ("vocab.pkl", "vocab.bin", "vocab_minimal.pkl")},
}  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_that_is_cut_off(file: Path, tmp_path: Path):
    data = file.read_bytes()
    path = tmp_path / file.name
    for cut in [*range(12), *(len(data) * part // 20 for part in range(1, 20)), len(data) - 1]:
        path.write_bytes(data[:cut])
        with pytest.raises(ValueError, match="refused") as raised:
            FILES[file](path)
        assert str(path) in str(raised.value)


def changed_weights(change) -> dict:
    return change(naive.random_weights(naive.HYPER))


def _with(weights: dict, name: str, value: float) -> dict:
    weights[name] = weights[name].clone()
    weights[name].view(-1)[3] = value
    return weights


WEIGHTS = {
    "nan": (lambda w: _with(w, "layers.1.pos_ff.CoreNet.3.weight", float("nan")), "CoreNet.3.weight"),
    "infinite": (lambda w: _with(w, "r_r_bias", float("inf")), "r_r_bias"),
    "missing": (
        lambda w: {name: weight for name, weight in w.items() if "layers.1.dec_attn.r_net" not in name},
        "r_net",
    ),
    "shape": (lambda w: w | {"layers.0.dec_attn.o_net.weight": torch.zeros(12, 9)}, "o_net"),
    "transposed": (lambda w: w | {"layers.0.dec_attn.qkv_net.weight": torch.zeros(12, 30)}, "qkv_net"),
    "extra": (lambda w: w | {"layers.0.dec_attn.extra.weight": torch.zeros(2)}, "extra"),
    "integers": (lambda w: w | {"r_r_bias": torch.zeros(2, 5, dtype=torch.long)}, "r_r_bias"),
    "another_attention": (lambda w: w | {"r_emb": torch.zeros(4, 2, 5)}, "ShawTransformer"),
    "flat_embedding": (lambda w: w | {"word_emb.emb_layers.0.weight": torch.zeros(9)}, "embeddings"),
    "layer_left_out": (lambda w: {n.replace("layers.1", "layers.2"): v for n, v in w.items()}, "layers"),
    "something_else": (lambda w: {"weight": torch.zeros(3)}, "MemTransformerLM"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_fit(name: str, tmp_path: Path):
    change, reason = WEIGHTS[name]
    path = tmp_path / "state.pt"
    torch.save(changed_weights(change), path)
    with pytest.raises(ValueError, match=reason) as raised:
        load_original(path, GIVEN)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("file_name", ["pytorch_model.bin", "model.safetensors"])
def test_a_folder_with_weights_that_do_not_fit(file_name: str, tmp_path: Path):
    shutil.copy(HF_FOLDER / "config.json", tmp_path)
    weights = torch.load(HF_FOLDER / "pytorch_model.bin", weights_only=True)
    weights = {name: weight.clone() for name, weight in weights.items()}
    name = "transformer.layers.0.dec_attn.o_net.weight"
    for bad in (torch.full_like(weights[name], float("nan")), weights[name][:, :-1].contiguous()):
        changed = weights | {name: bad}
        save = torch.save if file_name.endswith(".bin") else save_file
        save(changed, tmp_path / file_name)
        with pytest.raises(ValueError, match="o_net") as raised:
            AutoModelForCausalLM.from_pretrained(tmp_path)
        assert str(tmp_path / file_name) in str(raised.value)
    changed = weights | {"crit.out_layers.0.weight": weights["crit.out_layers.0.weight"] + 1}
    save(changed, tmp_path / file_name)
    with pytest.raises(ValueError, match="two values"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_safetensors_that_are_cut_off_or_hostile(tmp_path: Path):
    shutil.copy(HF_FOLDER / "config.json", tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(100)}, path)
    data = path.read_bytes()
    for bad in (data[:-8], data[:20], b"", struct.pack("<Q", 2**60) + data[8:], data + b"more"):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="refused") as raised:
            AutoModelForCausalLM.from_pretrained(tmp_path)
        assert str(path) in str(raised.value)
    assert load_file  # what is whole is read by the tests of folders


def test_an_index_that_points_elsewhere(tmp_path: Path):
    shutil.copy(HF_FOLDER / "config.json", tmp_path)
    index = tmp_path / "pytorch_model.bin.index.json"
    for bad in ({"weight_map": {"a": "../evil.bin"}}, {"weight_map": {"a": 3}}, {"weight_map": []}, [], {}):
        index.write_text(json.dumps(bad))
        with pytest.raises(ValueError, match="refused") as raised:
            AutoModelForCausalLM.from_pretrained(tmp_path)
        assert str(index) in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"attn_type": 1}, "attn_type"),
        ({"sample_softmax": 5}, "sample_softmax"),
        ({"vocab_size": "87"}, "vocab_size"),
        ({"cutoffs": [45, 20]}, "cutoffs"),
        ({"cutoffs": [20, 90]}, "cutoffs"),
        ({"mem_len": -1}, "mem_len"),
        ({"mem_len": 0}, "same_length"),
        ({"n_layer": 10**9}, "num_hidden_layers"),
        ({"n_layer": 3}, "layers.2"),
        ({"n_layer": 0}, "num_hidden_layers"),
        ({"d_model": 10**9}, "shape"),
        ({"tie_projs": [True]}, "tie_projs"),
        ({"div_val": 10**400}, "div_val"),
        ({"cutoffs": list(range(1, 80))}, "cutoffs"),
    ],
)
def test_a_config_that_no_checkpoint_has(fields: dict, reason: str, tmp_path: Path):
    folder = SHIPPED / "legacy_hf_checkpoint"  # for which the fields are wrong
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    shutil.copy(folder / "pytorch_model.bin", tmp_path)
    with pytest.raises(ValueError, match=reason):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_another_model_is_left_to_the_library(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(OSError, match="JSON"):
        AutoConfig.from_pretrained(tmp_path)


VOCABULARIES = {
    "past_the_end": ({"sym2idx": {"a": 0, "b": 7}}, "past the 2 symbols"),
    "negative": ({"sym2idx": {"a": -1}}, "past the 1"),
    "twice": ({"sym2idx": {"a": 0, "b": 0}}, "same id"),
    "no_integer": ({"sym2idx": {"a": "0"}}, "integer"),
    "bool": ({"sym2idx": {"a": False}}, "integer"),
    "no_string": ({"idx2sym": ["a", 3]}, "not a string"),
    "disagreeing": ({"sym2idx": {"a": 0, "b": 1}, "idx2sym": ["b", "a"]}, "disagree"),
    "unknown_past_the_end": ({"sym2idx": {"a": 0}, "unk_idx": 5}, "unk_idx"),
    "no_flag": ({"sym2idx": {"a": 0}, "lower_case": "yes"}, "lower_case"),
    "special_number": ({"sym2idx": {"a": 0}, "special": [3]}, "special"),
    "empty": ({"sym2idx": {}}, "no symbols"),
    "list": ([1, 2], "no symbols"),
    "number": (3, "no symbols"),
}


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("kind", ["json", "pkl"])
def test_a_vocabulary_with_wrong_ids(name: str, kind: str, tmp_path: Path):
    value, reason = VOCABULARIES[name]
    path = tmp_path / f"vocab.{kind}"
    path.write_bytes(json.dumps(value).encode() if kind == "json" else pickle.dumps(value))
    with pytest.raises(ValueError, match=reason) as raised:
        read_vocabulary(path)
    assert str(path) in str(raised.value)


def test_deep_json(tmp_path: Path):
    path = tmp_path / "vocab.json"
    path.write_text("[" * 200_000)
    with pytest.raises(ValueError, match="not JSON"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda top: top.__dict__.pop("d_embed"), "d_embed"),
        (lambda top: top.__dict__.update(d_head=5.5), "d_head"),
        (lambda top: top.__dict__.update(mem_len=2**40), "mem_len"),
        (lambda top: top.__dict__.update(n_layer=2**30), "num_hidden_layers"),
        (lambda top: top.__dict__.update(n_layer=3), "layers.2"),
        (lambda top: top.word_emb.__dict__.update(div_val=10**70), "div_val"),
        (lambda top: top.word_emb.__dict__.update(cutoffs=list(range(1, 99))), "cutoffs"),
        (lambda top: top.word_emb.__dict__.update(cutoffs="all"), "cutoffs"),
        (lambda top: top._modules.pop("layers"), "layers"),
        (lambda top: top._modules.update(layers=top.word_emb), "dec_attn"),
        (lambda top: top._modules.pop("drop"), "drop"),
        (lambda top: top.layers[1].pos_ff.__dict__.update(pre_lnorm=True), "pre-norm"),
        (lambda top: top._modules.update(again=top), "without end"),
    ],
)
def test_a_module_that_is_none(change, reason: str, tmp_path: Path):
    path = tmp_path / "model.pt"
    with naive.original_classes():
        module = naive.module(naive.random_weights(naive.HYPER), naive.HYPER)
        change(module)
        torch.save(module, path)
    with pytest.raises(ValueError, match=reason) as raised:
        load_original(path)
    assert str(path) in str(raised.value)


def test_storages_of_another_kind(tmp_path: Path):
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(3, dtype=torch.complex64)}, buffer)
    (tmp_path / "model.pt").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="ComplexFloatStorage"):
        TorchFile(tmp_path / "model.pt")
