"""What is read from outside is not believed: index files, lists and saved states may hold anything. The answer is an
error of ours or a silent rebuild, never another exception, a crash, or much memory."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from format_cases import CASES
from hypothesis import HealthCheck, given, settings, strategies as st
from index_files import arrays_of, index_file, rewritten
from PIL import Image
from support import little_memory

from gpupipe import DataLoader, GpupipeError
from gpupipe.datasets import Arrays, ImageFolder, ImageList
from gpupipe.datasets.index.column_file import Columns, ColumnsError, write_columns
from gpupipe.datasets.index.table import Index
from gpupipe.errors import DatasetError, StateError
from gpupipe.formats.manifest import read_manifest
from gpupipe.formats.registry import format_of
from gpupipe.loader.state import State
from gpupipe.sources.folder import Tree
from gpupipe.sources.list_file import read_list
from gpupipe.sources.storage import LOCAL

OLD_NS = 1_500_000_000_000_000_000
QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz") / "tree"
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (7, 5)).save(root / name)
    (root / "b/bad.png").write_bytes(b"no image")
    for folder, _, files in os.walk(root):
        for name in [*files, "."]:
            os.utime(os.path.join(folder, name), ns=(OLD_NS, OLD_NS))
    return root


@pytest.fixture(scope="module")
def valid(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a good index file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUPIPE_CACHE", str(tmp_path_factory.mktemp("valid")))
        path = ImageFolder(tree).index_summary().path
        assert path is not None
        return Path(path).read_bytes()


def read_everything(path: Path) -> None:
    """Open an index as a dataset does, and ask it for all that it knows. Only errors of ours are fine."""
    try:
        index = Index(Columns.open(str(path)))
        n = min(len(index), 50)
        rows = np.arange(n)
        index.stale(Tree("/nowhere", (".jpg",)))
        index.all_bad()
        index.bad(rows)
        index.encoded(rows, b"/nowhere/")
        index.reusable()
        _ = [index.path(i) for i in range(n)], index.classes, index.racy
    except GpupipeError:
        pass


def check(folder: Path, tree: Path, content: bytes) -> None:
    """As a file of its own; then in the place of the real one: whatever it is, the dataset opens, or says why not."""
    file = folder / "index"
    file.unlink(missing_ok=True)
    file.write_bytes(content)
    file.chmod(0o600)
    with little_memory():
        read_everything(file)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 4, 2**31, 2**62, 2**63, 2**64, 10**30, -(2**63)])
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["|u1", "<i8", "<i4", "|O", "<f8", "path_blob", "sizes"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@QUICK
@given(data=st.data())
def test_hostile_headers(tmp_path: Path, tree: Path, valid: bytes, data: st.DataObject) -> None:
    """Lengths, offsets, shapes and types that fit nothing, overlap, or are no numbers."""

    def change(header: dict[str, Any]) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            if data.draw(st.booleans()):
                name = data.draw(st.sampled_from(sorted(header["meta"])))
                header["meta"][name] = data.draw(JSON)
            else:
                column = data.draw(st.sampled_from(header["columns"]))
                field = data.draw(st.sampled_from(["name", "dtype", "shape", "offset"]))
                other = data.draw(st.sampled_from(header["columns"]))[field]
                column[field] = data.draw(JSON | st.just(other) | st.lists(st.integers(-2, 2**40), max_size=3))

    check(tmp_path, tree, rewritten(valid, change))


def test_texts_that_overlap_the_whole_file_are_not_copied(tmp_path: Path, tree: Path, valid: bytes) -> None:
    """One row that claims to be the whole file, many times, would cost the square of its size."""
    (tmp_path / "x").write_bytes(valid)
    (tmp_path / "x").chmod(0o600)
    columns = Columns.open(str(tmp_path / "x"))
    offsets = columns.columns["path_offsets"].all
    for wrong in (-5, 1 << 40, int(offsets[2]) - 1):
        arrays = arrays_of(columns)
        arrays["path_offsets"][1] = wrong
        if wrong == int(offsets[2]) - 1:
            arrays["path_offsets"][2] = 0
        with open(tmp_path / "evil", "w+b") as file:
            write_columns(file, arrays, columns.meta)
            index = Index(Columns(file.fileno(), None))
        with pytest.raises(ColumnsError, match="do not fit"):
            index.encoded(np.arange(4), b"/")
        with pytest.raises(ColumnsError, match="do not fit"):
            [index.path(i) for i in range(4)]


# ---- whose file it is


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620], ids=oct)
def test_an_index_that_others_may_write_is_made_again(
    mode: int, tree: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = index_file(ImageFolder(tree))
    assert not ImageFolder(tree).index_summary().built
    file.chmod(mode)
    assert ImageFolder(tree).index_summary().built
    assert "not trusted" in caplog.text and "GPUPIPE_CACHE" in caplog.text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not ImageFolder(tree).index_summary().built


def test_an_index_of_another_user_is_made_again(
    tree: Path, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ImageFolder(tree)
    mine, theirs = os.geteuid(), 12_345
    real = os.fstat

    def of_them(fd: int) -> os.stat_result:
        found = list(real(fd))
        found[stat.ST_UID] = theirs
        return os.stat_result(found)

    assert mine != theirs
    with monkeypatch.context() as patch:
        patch.setattr("os.fstat", of_them)
        assert ImageFolder(tree).index_summary().built
    assert f"belongs to user {theirs}" in caplog.text


def test_what_is_no_file_is_no_index(tree: Path, cache: Path) -> None:
    file = index_file(ImageFolder(tree))
    file.unlink()
    os.mkfifo(file, 0o600)  # opening it would wait for ever
    assert ImageFolder(tree).index_summary().built and file.is_file()


# ---- lists


@QUICK
@given(
    content=st.binary(max_size=400)
    | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))
    | st.lists(st.lists(st.sampled_from(["a.png", "../x", "", "7", "path", "label", '"', "\0", "é"]), max_size=3)).map(
        lambda rows: "\n".join(",".join(row) for row in rows).encode()
    ),
    name=st.sampled_from(["x.csv", "x.tsv", "x.txt"]),
)
def test_arbitrary_lists(tmp_path: Path, content: bytes, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    try:
        with little_memory():
            paths, labels = read_list(str(file))
    except DatasetError:
        return
    assert all(isinstance(p, str) and p for p in paths) and (labels is None or len(labels) == len(paths))


@settings(QUICK, max_examples=60)
@given(
    paths=st.lists(
        st.text(max_size=12) | st.lists(st.sampled_from(["..", ".", "a", "", "link", "~"])).map("/".join), max_size=4
    )
)
def test_no_path_of_a_list_leads_out_of_its_root(tmp_path: Path, paths: list[str], cache: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True, exist_ok=True)
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True, exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    try:
        dataset = ImageList(paths, root=root)
    except GpupipeError:
        return
    for i, given_path in enumerate(paths):
        path = dataset.describe(i)
        assert os.path.normpath(path).startswith(str(root))
        if ".." in given_path.split(
            "/"
        ):  # links themselves are the owner's of the folder; ".." behind one is the list's
            assert os.path.realpath(path).startswith(str(root))


def test_what_is_no_file_is_no_list(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.csv")
    for device in ("/dev/zero", str(tmp_path / "x.csv")):
        with pytest.raises(DatasetError, match="device or a pipe"):
            ImageList(device)


# ---- states


VALUES = JSON | st.sampled_from([np.int64(1), np.arange(3), b"x", float("nan"), 1 + 2j, object()])


@pytest.fixture(scope="module")
def loader() -> Iterator[DataLoader]:
    dataset = Arrays(np.zeros((7, 8, 8, 3), np.uint8))
    with DataLoader(dataset, batch_size=2, engine="null", device="cpu", seed=1, shuffle=True) as made:
        yield made


def use(loader: DataLoader, state: Any) -> None:
    """Load and start. Only errors of ours are fine; and after them the loader stands where it was."""
    before = loader.state_dict()
    try:
        with little_memory():
            loader.load_state_dict(state)
            iter(loader)
    except StateError:
        assert loader.state_dict() == before


@QUICK
@given(state=VALUES | st.dictionaries(st.sampled_from(list(State.__dataclass_fields__)) | st.integers(), VALUES))
def test_arbitrary_states(loader: DataLoader, state: Any) -> None:
    with pytest.raises(StateError):
        State.from_dict(state)
    use(loader, state)


@pytest.mark.parametrize("name", ["epoch", "delivered", "seed", "drop_last", "version"])
def test_a_truth_value_is_no_number(loader: DataLoader, name: str) -> None:
    with pytest.raises(StateError, match=name):
        State.from_dict({**loader.state_dict(), name: True})


@pytest.mark.slow
@QUICK
@given(data=st.data())
def test_spoiled_states(loader: DataLoader, data: st.DataObject) -> None:
    loader.set_epoch(0)
    state: dict[Any, Any] = loader.state_dict()
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(state)))
        if data.draw(st.integers(0, 9)) == 0:
            del state[name]
            break
        state[name] = data.draw(VALUES)
    use(loader, state)


# ---- archives

SPOILED = 25


def spoiled(content: bytes, random: Random) -> bytes:
    """Change some bytes, mostly near the beginning or the end, where archives describe themselves."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        near = int(random.expovariate(1 / 150)) % len(data)
        at = random.choice((near, len(data) - 1 - near, random.randrange(len(data))))
        change = random.randrange(4)
        if change == 0:
            data[at] ^= 1 << random.randrange(8)
        elif change == 1:
            data[at] = random.choice((0, 255, 127, 128))
        elif change == 2:
            some = random.choice((b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little"), b"\xff\xff\xff\x7f"))
            data[at : at + len(some)] = some
        else:
            del data[at : at + random.randrange(1, 50)]
    return bytes(data)


def test_spoiled_archives(tmp_path: Path) -> None:
    """The rows are listed, or an error of ours says why not."""
    pictures = [bytes([i]) * (200 + i) for i in range(4)]
    case = CASES["zip"]
    path = case.write(pictures, tmp_path)
    source, whole = case.open(path).source, path.read_bytes()
    random, raised = Random("zip"), 0
    for _ in range(SPOILED):
        path.write_bytes(spoiled(whole, random))
        try:
            source.listing(lambda _: None)
        except DatasetError:
            raised += 1
    assert 0 < raised < SPOILED


JSON_VALUES: list[Any] = [
    *(None, True, 0, -1, 1 << 70, 1.5, "", "x", "..", "/etc/passwd", "a\0b", "\ud800", [], {}, [None], [1, 2]),
    *("null", "[", '["image"]', "[1, {}]"),
]


def other_json(value: Any, random: Random) -> Any:
    """The value with parts that are missing, or other ones; also within texts that contain JSON."""
    if random.random() < 0.1:
        return random.choice(JSON_VALUES)
    if isinstance(value, dict):
        return {k: other_json(v, random) for k, v in value.items() if random.random() > 0.03}
    if isinstance(value, list):
        return [other_json(v, random) for v in value if random.random() > 0.03]
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.dumps(other_json(json.loads(value), random))
        except ValueError:
            return value
    return value


def test_odd_json(tmp_path: Path) -> None:
    """Files that list samples hold anything that JSON can say."""
    file, random, raised = tmp_path / "list.jsonl", Random("manifest"), 0
    good = {"path": "a.bin", "offset": 0, "length": 5, "label": 1, "name": "x", "w": 1.5}
    for _ in range(300):
        file.write_text(json.dumps(other_json(good, random)))
        format_of(str(file))
        try:
            read_manifest(str(file), None, False, LOCAL, ("w",)).listing(lambda count: None)
        except DatasetError:
            raised += 1
    assert 0 < raised < 300
