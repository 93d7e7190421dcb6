"""What all parity tests rest on: any case of their item is found, wherever it lies and whatever its name, and compared."""

import json
from pathlib import Path

import golden
import pytest
import torch
from golden import SHIPPED, Case, files_of

HERE = Path(__file__).parent


@pytest.mark.parametrize("folder", dict.fromkeys([SHIPPED, golden.Location.folder]), ids=lambda folder: folder.name)
def test_every_item_has_a_test(folder: Path):
    """No file is left lying about, ours or those of the option."""
    items = {description["item"] for description in golden.described_in(folder).values()}
    tests = "".join(file.read_text(encoding="utf-8") for file in HERE.glob("test_*.py"))
    assert items
    assert [item for item in sorted(items) if f'golden.cases("{item}"' not in tests] == []


def test_no_test_names_a_case():
    names = {file.stem for file in golden.described_in(SHIPPED)}
    assert names
    for file in (*HERE.glob("*.py"), *HERE.parent.glob("*.py"), *(HERE.parent / "conversion").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        assert [name for name in names if f"{name}." in text or f'{name}"' in text] == [], file


def test_the_folder_is_that_of_the_option(request: pytest.FixtureRequest):
    given = (request.config.getoption("--golden-dir") or SHIPPED).resolve()
    assert golden.Location.folder == given
    (mark,) = [golden.cases("pkm").mark]
    assert mark.args == ("case", files_of("pkm", given))
    for name in ("legacy_hf_checkpoint", "legacy_txl_checkpoint"):
        assert golden.folder_of(name) in (given / name, SHIPPED / name)


@pytest.fixture
def small(tmp_path: Path) -> Case:
    """A case of two outputs and one gradient."""
    hyper = {"n": 3, "inner": {"m": None, "kinds": [{"size": 2}, {"size": 4}]}}
    (tmp_path / "other.json").write_text(json.dumps({"eos_id": 3}))  # what is no case
    tensors = {
        "in.x": torch.ones(2),
        "out.y": torch.ones(2),
        "out.n": torch.tensor([3]),
        "grad.w": torch.full((2,), 100.0),
    }
    return golden.write_case(tmp_path / "x.json", "an item", hyper, tensors, out_rtol=0.0, grad_rtol=0.0)


def test_cases_are_found_by_their_item(small: Case):
    folder = small.file.parent
    moved = small.file.rename(folder / "renamed.json")  # its name says nothing
    golden.described_in.cache_clear()
    assert files_of("an item", folder) == [moved]
    assert files_of("an", folder) == []


def test_outputs_are_compared(small: Case):
    small.check("y", torch.ones(2) + 5e-6)
    small.check("n", torch.tensor([3]))
    small.check("not recorded", torch.zeros(1))
    small.finish()
    for name, wrong in (("y", torch.ones(2) + 2e-5), ("y", torch.ones(3)), ("n", torch.tensor([4]))):
        with pytest.raises(AssertionError, match=f"^{name}: "):
            small.check(name, wrong)


def test_gradients_are_compared_by_their_largest(small: Case):
    small.check_gradients({"w": torch.full((2,), 100.0005), "more": torch.zeros(1)})
    for wrong in (torch.full((2,), 100.002), None):
        with pytest.raises(AssertionError, match="^w"):
            small.check_gradients({"w": wrong})
    with pytest.raises(KeyError, match="w"):
        small.check_gradients({})
    with pytest.raises(AssertionError, match="no stored gradient"):
        small.check_gradients({}, lambda tensors: {})


def test_what_is_not_compared_is_noticed(small: Case):
    with pytest.raises(AssertionError, match="nothing of x.json"):
        small.finish()
    small.check("n", torch.tensor([3]))
    with pytest.warns(UserWarning, match=r"no test compares: \['y'\]"):
        small.finish()
    small.finish("y")


def test_a_skip_names_the_fields(small: Case):
    with pytest.raises(pytest.skip.Exception, match="^n=3, inner.m=None: too many$"):
        small.out_of_scope("too many", "n", "inner.m")
    small.description["use"] = "background"
    with pytest.raises(pytest.skip.Exception, match="^use='background': it$"):
        small.skip_background()


def test_what_is_not_read_is_noticed(small: Case):
    def unread() -> str:
        with pytest.raises(AssertionError, match=r"^x\.json has what the test does not know: ") as caught:
            small.check_all_read()
        return str(caught.value).partition("know: ")[2]

    assert unread() == "n, inner, in.x"
    assert "n" in small.hyper  # to ask and to list is not to read
    assert [*small.hyper] == ["n", "inner"]
    small.hyper.only_describe(n=3, other=5)
    small.inputs.change_nothing("x", "other")
    assert unread() == "inner"
    inner = small.hyper["inner"]
    assert unread() == "inner.m, inner.kinds"
    assert (inner["m"], [kind["size"] for kind in inner["kinds"][:1]]) == (None, [2])
    assert unread() == "inner.kinds.1.size"
    assert inner["kinds"][1] == {"size": 4}
    small.check_all_read()


def test_values_that_are_not_known_fail(small: Case):
    assert small.choice("n", 2, 3) == 3
    assert small.choice("inner.m", None) is None
    with pytest.raises(pytest.fail.Exception, match="^n=3: the test knows 2, 4$"):
        small.choice("n", 2, but=[4], reason="too many")
    with pytest.raises(pytest.skip.Exception, match="^n=3: too many$"):
        small.choice("n", 2, but=[3], reason="too many")
    with pytest.raises(pytest.fail.Exception, match="^n=3, but the tensors show 5$"):
        small.hyper.only_describe(n=5)
    with pytest.raises(KeyError, match="unheard of"):
        small.choice("unheard of", 1)
