# SPDX-License-Identifier: Apache-2.0
"""One generated listing in a folder, on a Hub and in a bucket: one verdict, no crash, and no way out of the place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import huggingface_hub
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import hub_server, object_server
from support.hub_server import HubServer, commit_of
from support.listings import ASKED, ELSEWHERE, INDEXES, NAMES, WEIGHTS, Files, documents, listings
from support.object_server import ObjectServer

from weight_readers import CheckpointError
from weight_readers_loader.resolve import Layout, resolve, stores
from weight_readers_loader.resolve.index import why_unsafe
from weight_readers_loader.side_files import SideFiles

EXAMPLES = int(os.environ.get("LISTING_EXAMPLES", "25"))
"""More of them by hand: LISTING_EXAMPLES=5000 python -m pytest tests/unit/loader/test_listings.py"""


class Places(NamedTuple):
    """Where each example is put, in a place of its own."""

    folder: Path
    hub: HubServer
    store: ObjectServer
    numbers: Iterator[int]

    def put(self, files: Files) -> dict[str, str]:
        """The roots at which all three show ``files``: what a reference and a message call each place."""
        number = next(self.numbers)
        commit = self.hub.put("own/m", files, commit=commit_of(number))
        self.store.objects = {f"models/{number}/{path}": data for path, data in files.items()}
        folder = self.folder / str(number)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        return {"folder": str(folder), "hub": f"hf://own/m@{commit}", "store": f"s3://models/{number}"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    hub, store = HubServer(), ObjectServer({})
    folder = tmp_path_factory.mktemp("listings")
    with hub.running(), store.running(), pytest.MonkeyPatch.context() as patch:
        hub_server.only_loopback(patch, hub.endpoint, str(folder / "cache"))
        object_server.only_loopback(patch, store.endpoint)
        patch.setattr(stores, "_lister", _made_once(stores._lister))
        yield Places(folder, hub, store, count(1))
        huggingface_hub.close_session()


def _made_once(make: Callable[..., Any]) -> Callable[..., Any]:
    """A client of a store takes longer to make than all that an example asks of it."""
    made: dict[str, Any] = {}
    return lambda scheme, options: made[scheme] if scheme in made else made.setdefault(scheme, make(scheme, options))


def verdict(root: str, asked: dict[str, Any], selector: str = "") -> Any:
    """What comes of the place, with nothing of where it is: plain data for a layout, the words of an error."""
    try:
        layout = resolve(root + selector, keep_problems=True, **asked)
    except (CheckpointError, ValueError) as error:
        return type(error).__name__, str(error).replace(root, "ROOT")
    must_lie_below(layout, root)
    return (
        (layout.format, layout.variant, layout.root.replace(root, "ROOT")),
        [(file.name, file.size) for file in layout.files],
        layout.index and (layout.index.name, layout.index.weight_map, layout.index.shards),
        layout.left_out,
        [file.name for file in layout.unindexed],
        [notice for notice in layout.notices if "is commit" not in notice],
        [(type(problem).__name__, str(problem).replace(root, "ROOT")) for problem in layout.problems],
    )


def must_lie_below(layout: Layout, root: str) -> None:
    for file in (*layout.files, *layout.unindexed):
        assert file.path == f"{layout.root.rstrip('/')}/{file.name}"
        assert file.path.startswith(f"{root}/")
        assert not {"..", ".", ""} & set(PurePosixPath(file.name).parts)
        assert not file.name.startswith("/")


@settings(max_examples=EXAMPLES)
@given(files=listings(), asked=st.sampled_from(ASKED), selector=st.sampled_from(["", "", "", ":Q4_K_M", ":bf16"]))
def test_a_listing_has_one_verdict_wherever_it_is(
    places: Places, files: Files, asked: dict[str, Any], selector: str
) -> None:
    found = {name: verdict(root, asked, selector) for name, root in places.put(files).items()}
    assert found["folder"] == found["hub"]
    assert found["folder"] == found["store"]


# What is plain as it stands, and a folder's own marker, are no way out.
hostile = st.builds(
    "{}{}".format,
    st.sampled_from(["", "sub/", "../", "/", "sub/../"]),
    st.sampled_from([each for each in ELSEWHERE if not each.startswith("%") and not each.endswith("s/")]),
)


@settings(max_examples=EXAMPLES)
@given(files=listings(), bad=st.lists(hostile, min_size=1, max_size=4), asked=st.sampled_from(ASKED))
def test_names_that_lead_elsewhere_are_not_listed_and_nothing_is_written_outside(
    places: Places, files: Files, bad: list[str], asked: dict[str, Any]
) -> None:
    files["sub/notes.txt"] = b"the stores have this folder, by the keys below it"
    sent = {**files, **{name: WEIGHTS for name in bad if name and name.isprintable()}}
    roots = places.put(files)
    before = outside(places.folder)
    commit = roots["hub"].rpartition("@")[2]
    places.hub.put("own/m", sent, commit=commit)
    number = roots["store"].rpartition("/")[2]
    places.store.objects = {f"models/{number}/{name}": data for name, data in sent.items()}
    expected = verdict(roots["folder"], asked)
    assert expected == verdict(roots["hub"], asked)
    assert expected == verdict(roots["store"], asked)
    if isinstance(expected[0], tuple):
        layout = resolve(roots["hub"], keep_problems=True, **asked)
        must_lie_below(layout.brought(), str(places.folder / "cache"))
        SideFiles(resolve(roots["store"], keep_problems=True, **asked)).copy_to(places.folder / "cache" / "beside")
    assert before == outside(places.folder)


def outside(folder: Path) -> set[str]:
    """What lies in ``folder`` and beside it, but for what is below its cache."""
    here = {str(path) for path in folder.rglob("*") if "cache" not in path.relative_to(folder).parts}
    return here | {str(path) for path in folder.parent.iterdir()}


@settings(max_examples=5 * EXAMPLES)
@given(content=documents, name=st.sampled_from(INDEXES))
def test_any_index_is_read_or_refused_and_names_nothing_outside(places: Places, content: bytes, name: str) -> None:
    folder = places.folder / str(next(places.numbers)) / "model"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    for each in (folder.parent / "secret.safetensors", folder / "model.safetensors", folder / "pytorch_model.bin"):
        each.write_bytes(WEIGHTS)
    asked = {"variant": "fp16"} if "fp16" in name else {}
    try:
        layout = resolve(str(folder / name), keep_problems=True, **asked)
    except CheckpointError:
        return
    must_lie_below(layout, str(folder))
    assert layout.index is not None
    assert all(why_unsafe(shard) is None for shard in layout.index.shards)


TARGETS = (
    "nowhere",
    "../secret.safetensors",
    "/dev/null",
    ".",
    "..",
    "config.json",
    "model.safetensors",
    "loop",
    "\u6f22",
)


@settings(max_examples=2 * EXAMPLES)
@given(links=st.dictionaries(st.sampled_from([*NAMES, *INDEXES, "transformer"]), st.sampled_from(TARGETS), max_size=5))
def test_links_of_any_kind_end_in_a_layout_or_an_error(places: Places, links: dict[str, str]) -> None:
    folder = places.folder / str(next(places.numbers)) / "model"
    folder.mkdir(parents=True)
    (folder.parent / "secret.safetensors").write_bytes(WEIGHTS)
    (folder / "loop").symlink_to("loop")
    for name, target in links.items():
        (folder / name).symlink_to(target)
    kind, *rest = verdict(str(folder), {})
    assert isinstance(kind, tuple) or (kind.endswith("Error") or kind == "CheckpointProblems", len(rest)) == (True, 1)


def test_a_marker_of_a_folder_does_not_hide_the_object_of_its_name(places: Places) -> None:
    root = places.put({"model.safetensors": WEIGHTS})["store"]
    places.store.objects[f"{root.removeprefix('s3://')}/model.safetensors/"] = b""
    assert [file.name for file in resolve(root).files] == ["model.safetensors"]
