from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tabgpu import bundle, wire
from tabgpu.errors import ConfigError, DataError, ResourceError


@wire.record
@dataclass(frozen=True)
class BundleTestEncoding:
    keys: np.ndarray
    levels: pa.Array
    prior: float


def encoding() -> BundleTestEncoding:
    keys = np.array([1, 2**64 - 1, 7], dtype="uint64")
    return BundleTestEncoding(keys, pa.array(["a", "ä", "\n"]), 0.1 + 0.2)


WEATHER = pa.table(
    {
        "origin": pa.array(["JFK", None]).dictionary_encode(),
        "hour": pa.array([1, 2], pa.timestamp("us", "UTC")),
        "n": [3, None],
    }
)


def write(folder: Path) -> Path:
    parts = {"features": {"rates": encoding(), "steps": [1, (2, None)]}, "schema": {"x": np.arange(3, dtype="int8")}}
    about = {"labels": ["no", "yes"], "best_iteration": 7, "auc": float("nan"), "shape": (1, 2)}
    bundle.save(folder, parts, b"not really a booster" * 5, about, {"weather of the day/1": WEATHER})
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "model")


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def reindex(folder: Path, **changes: object) -> None:
    """Change the index as a forger would who knows the format: its digest is right again."""
    index = json.loads((folder / "bundle.json").read_bytes()) | changes
    index["digest"] = bundle._digest(index)
    (folder / "bundle.json").write_bytes(bundle._canonical(index))


def refused(path: Path, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        bundle.load(path)
    assert all((caught.value.happened, caught.value.expected, caught.value.remedy))


@settings(deadline=None, max_examples=25)
@given(
    arrays=st.lists(
        st.sampled_from(["bool", "int8", "uint64", "int64", "float16", "float32", "float64"]).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5))
        ),
        max_size=4,
    ),
    text=st.text(max_size=5),
)
def test_what_is_loaded_is_what_was_saved_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[np.ndarray], text: str
) -> None:
    folder = tmp_path_factory.mktemp("bundles") / "model"
    bundle.save(folder, {"state": {"arrays": arrays, text: (text, 2**70)}}, None, {"text": text})
    loaded = bundle.load(folder)
    state = loaded.part("state")
    assert loaded.about == {"text": text}
    assert state[text] == (text, 2**70) or text == "arrays"
    if text != "arrays":
        assert [(a.dtype, a.shape, a.tobytes()) for a in state["arrays"]] == [
            (a.dtype, a.shape, a.tobytes()) for a in arrays
        ]


def test_every_part_comes_back(saved: Path) -> None:
    loaded = bundle.load(saved)
    features = loaded.part("features")
    assert features["steps"] == [1, (2, None)]
    assert features["rates"].keys.tolist() == encoding().keys.tolist()
    assert features["rates"].levels.equals(encoding().levels)
    assert features["rates"].prior == 0.1 + 0.2
    assert loaded.part("schema")["x"].dtype == np.int8
    assert loaded.table("weather of the day/1").equals(WEATHER)
    assert loaded.model == b"not really a booster" * 5
    assert loaded.about == {"labels": ["no", "yes"], "best_iteration": 7, "auc": None, "shape": [1, 2]}
    assert (loaded.part_names, loaded.table_names) == (("features", "schema"), ("weather of the day/1",))


def test_levels_and_nans_keep_their_bits(tmp_path: Path) -> None:
    odd = np.array([0x7FF8000000000001, 0x7FF8000000000002, 0x8000000000000000, 0], dtype="uint64").view("float64")
    bundle.save(tmp_path / "m", {"p": [odd] * 2}, None, {})
    assert bundle.load(tmp_path / "m").part("p")[0].tobytes() == odd.tobytes()


def test_pages_carry_checksums(saved: Path) -> None:
    content = (saved / "tables/0000.parquet").read_bytes()
    noticed = 0
    for position in range(4, 100):  # the first pages
        bad = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        try:
            pq.read_table(pa.BufferReader(bad), page_checksum_verification=True)
        except (OSError, ValueError) as error:
            noticed += "checksum" in str(error)
    assert noticed > 10


def test_equal_content_makes_equal_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    assert [p.read_bytes() for p in files_of(one)] == [p.read_bytes() for p in files_of(two)]
    assert bundle.load(one).digest == bundle.load(two).digest
    orders = [{"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}]
    digests = {bundle.save(two, dict.fromkeys(order, 1), None, order) for order in orders}
    assert len(digests) == 1
    bundle.save(two, {"schema": {"x": np.arange(4)}}, None, {})
    assert bundle.load(one).digest != bundle.load(two).digest


def test_any_flip_and_any_cut_is_refused(saved: Path) -> None:
    chance = random.Random(0)
    files = files_of(saved)
    for trial in range(500):
        path = files[trial % len(files)]
        good = path.read_bytes()
        bad = bytearray(good)
        if trial % 5 == 4:
            del bad[chance.randrange(len(bad)) :]
        else:
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        with pytest.raises(DataError) as caught:
            bundle.load(saved)
        assert str(path) in str(caught.value)
        path.write_bytes(good)
    bundle.load(saved)


def test_no_parser_sees_damaged_bytes(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved / "model.ubj"
    model.write_bytes(b"\0" + model.read_bytes()[1:])
    monkeypatch.setattr(bundle.pq, "read_table", lambda *a, **k: pytest.fail("a parser ran"))
    monkeypatch.setattr(bundle.wire, "join", lambda *a, **k: pytest.fail("a parser ran"))
    refused(saved, "model.ubj does not agree with its digest")


@pytest.mark.parametrize("name", ["features.json", "features/0001.parquet", "model.ubj", "tables/0000.parquet"])
def test_missing_file(saved: Path, name: str) -> None:
    (saved / name).unlink()
    refused(saved, f"{name} is missing")


def test_missing_index_and_missing_folder(saved: Path) -> None:
    (saved / "bundle.json").unlink()
    refused(saved, "holds no bundle.json")
    refused(saved / "none", "does not exist")
    refused(saved / "model.ubj", "is not a folder")


@pytest.mark.parametrize(
    "name", ["extra.json", "0000.parquet", "features/model.ubj", "features/bundle.json", "tables/x/0000.parquet", ".x"]
)
def test_extra_file(saved: Path, name: str) -> None:
    (saved / name).parent.mkdir(exist_ok=True)
    (saved / name).write_bytes(b"{}")
    refused(saved, "does not belong")


def test_longer_file_of_the_same_start(saved: Path) -> None:
    with (saved / "model.ubj").open("ab") as file:
        file.write(b"x")
    refused(saved, "more than the 100")


def test_huge_declared_size(saved: Path) -> None:
    files = json.loads((saved / "bundle.json").read_bytes())["files"]
    files["model.ubj"]["bytes"] = 2**62
    reindex(saved, files=files)
    refused(saved, "has 100 bytes instead of 4611686018427387904")


@pytest.mark.parametrize(
    "name", ["../outside.json", "/etc/hostname", "features/../../outside.json", "a.pkl", "x/y.npy"]
)
def test_names_that_lead_elsewhere(saved: Path, name: str) -> None:
    (saved.parent / "outside.json").write_text("secret")
    files = json.loads((saved / "bundle.json").read_bytes())["files"]
    reindex(saved, files=files | {name: {"bytes": 6, "sha256": "0" * 64}})
    opened: list[str] = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    refused(saved, "names files that no bundle has")
    assert {p for p in opened if "outside" in p or "hostname" in p} == set()


@pytest.mark.parametrize("name", ["model.ubj", "features.json", "features/0000.parquet", "bundle.json", "features"])
def test_links_are_not_followed(saved: Path, name: str) -> None:
    aside = saved.parent / "aside"
    shutil.move(saved / name, aside)
    (saved / name).symlink_to(aside)
    refused(saved, f"{name} ")


def test_pipes_do_not_hang(saved: Path) -> None:
    for name in ("model.ubj", "bundle.json"):
        (saved / name).unlink()
        os.mkfifo(saved / name)
        refused(saved, f"{name} is (a link|not a plain)")


def test_a_folder_in_the_place_of_a_file_and_the_other_way(saved: Path) -> None:
    (saved / "model.ubj").unlink()
    (saved / "model.ubj").mkdir()
    refused(saved, "model.ubj is a link, a folder")
    (saved / "model.ubj").rmdir()
    shutil.rmtree(saved / "features")
    (saved / "features").write_text("")
    refused(saved, "features does not belong")


def test_a_newer_format_names_the_version_it_needs(saved: Path) -> None:
    reindex(saved, format=2, needs="9.1")
    with pytest.raises(DataError, match="format 2") as caught:
        bundle.load(saved)
    assert "tabgpu >= 9.1" in caught.value.expected


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"NaN", b"[" * 5000, b"\xff\xfe{\0}\0", b'{"format": "1"}', b'{"format": NaN}', b'{"format":1}'],
)
def test_an_index_of_nonsense(saved: Path, content: bytes) -> None:
    (saved / "bundle.json").write_bytes(content)
    refused(saved, "bundle.json")


def test_not_a_byte_of_the_index_may_differ(saved: Path) -> None:
    content = (saved / "bundle.json").read_bytes()
    for other in (
        content[:-1],
        content + b"\n",
        content.replace(b": ", b":"),
        content.replace(b"{", b'{"format":1,', 1),
    ):
        (saved / "bundle.json").write_bytes(other)
        refused(saved, "bundle.json does not agree with its digest")


def test_a_file_that_becomes_a_link_after_the_look_is_not_opened(saved: Path) -> None:
    (saved.parent / "link").symlink_to(saved / "model.ubj")
    with pytest.raises(DataError, match="link cannot be read"):
        bundle._read_plain(saved.parent / "link", 1000)


@pytest.mark.parametrize("changes", [{"files": []}, {"files": {"a.json": 3}}, {"files": {"a.json": {}}}, {"about": 3}])
def test_a_forged_index_is_no_traceback(saved: Path, changes: dict[str, object]) -> None:
    reindex(saved, **changes)
    refused(saved, "bundle.json")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    found: list[str] = []
    sys.addaudithook(lambda event, args: found.append(event) if event == "pickle.find_class" else None)
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Path("x")))
    refused(path, "is not a folder")
    folder = write(tmp_path / "model")
    shutil.copy(path, folder / "model.pkl")
    refused(folder, "model.pkl does not belong")
    (folder / "model.pkl").unlink()
    loaded = bundle.load(folder)
    loaded.part("features")
    loaded.table("weather of the day/1")
    assert found == []
    pickle.loads(path.read_bytes())
    assert found  # the hook does see them


def test_unknown_parts_and_classes(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = bundle.load(saved)
    with pytest.raises(DataError, match="no part 'x'"):
        loaded.part("x")
    with pytest.raises(DataError, match="no table 'x'"):
        loaded.table("x")
    monkeypatch.delitem(wire._CLASSES, "BundleTestEncoding")
    with pytest.raises(DataError, match="BundleTestEncoding"):
        loaded.part("features")


def test_parts_that_no_parser_takes(saved: Path) -> None:
    (saved / "schema/0000.parquet").write_bytes(b"PAR1nonsense")
    content = (saved / "schema/0000.parquet").read_bytes()
    files = json.loads((saved / "bundle.json").read_bytes())["files"]
    files["schema/0000.parquet"] = {"bytes": len(content), "sha256": bundle.hashlib.sha256(content).hexdigest()}
    reindex(saved, files=files)
    with pytest.raises(DataError, match="part schema of the bundle"):
        bundle.load(saved).part("schema")


@pytest.mark.parametrize("how", ["bundle", "run", "latest link", "latest file", "all runs", "text"])
def test_where_a_bundle_is_found(tmp_path: Path, how: str) -> None:
    write(tmp_path / "runs/r1/model")
    latest = tmp_path / "runs/latest"
    latest.write_text("r1\n") if how == "latest file" else latest.symlink_to("r1")
    path = {"bundle": "runs/r1/model", "run": "runs/r1", "all runs": "runs", "text": "runs/r1"}.get(how, "runs/latest")
    assert bundle.load(str(tmp_path / path) if how == "text" else tmp_path / path).part_names == ("features", "schema")


def test_links_in_a_ring(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("last")
    (tmp_path / "last").symlink_to("latest")
    refused(tmp_path / "latest", "latest")


def test_an_older_bundle_is_replaced_and_nothing_else_is(saved: Path) -> None:
    bundle.save(saved, {"only": 1}, None, {})
    assert bundle.load(saved).part_names == ("only",)
    other = saved.parent / "other"
    other.mkdir()
    bundle.save(other, {"only": 1}, None, {})
    (saved.parent / "mine").mkdir()
    (saved.parent / "mine/thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not a bundle"):
        bundle.save(saved.parent / "mine", {}, None, {})
    assert sorted(p.name for p in saved.parent.iterdir()) == ["mine", "model", "other"]


@pytest.mark.parametrize("name", ["bundle", "tables", "A", "../x", "", "a.b"])
def test_names_that_parts_cannot_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        bundle.save(tmp_path / "m", {name: 1}, None, {})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_nothing_and_the_older_one_whole(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = bundle.load(saved).digest

    def full(path: Path, content: bytes) -> None:
        if path.name == "model.ubj":
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr(bundle, "sync_file", full)
    with pytest.raises(ResourceError, match="No space left"):
        bundle.save(saved, {"p": 1}, b"x", {})
    assert [p.name for p in saved.parent.iterdir()] == ["model"]
    assert bundle.load(saved).digest == digest


KILLED = """
import os, sys, signal
from pathlib import Path
from tabgpu import bundle
real, calls = os.fsync, 0
def fsync(handle):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle)
os.fsync = fsync
bundle.save(Path(sys.argv[1]), {"p": {"a": 1}, "q": 2}, b"x", {})
"""


@pytest.mark.parametrize("at", [1, 3, 5])
def test_killed_at_any_write_there_is_no_bundle_or_a_whole_one(tmp_path: Path, at: int) -> None:
    root = Path(bundle.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "m"), str(at)], cwd=root, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "m").exists()
