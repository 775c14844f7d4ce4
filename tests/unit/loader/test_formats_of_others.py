# SPDX-License-Identifier: Apache-2.0
"""A format that a plugin of others declares goes wherever ours go: ``.npz``, by the example's reader."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file
from support.hub_server import HubServer
from support.hub_server import only_loopback as only_hub_here
from support.object_server import ObjectServer
from support.object_server import only_loopback as only_store_here
from support.plugins import PLUGIN, Site

import weight_readers
from weight_readers import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    ForeignContentError,
    FormatConflictError,
)
from weight_readers_loader import open_checkpoint
from weight_readers_loader.cli import cli
from weight_readers_loader.resolve import resolve

EXAMPLE = Path(__file__).parents[3] / "examples" / "third_party_reader" / "src"
ONE = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder in the role of site-packages, for this test."""
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    yield site
    monkeypatch.undo()
    site.forget_modules()
    weight_readers.refresh()


@pytest.fixture
def npz(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The example's reader, installed."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    site.distribution("npz-reader", {"npz": "npz_reader.plugin"})
    weight_readers.refresh()
    return site


def declare(site: Site, reader: str, declaration: str, more: str = "") -> None:
    """Install a reader, which reads nothing, of the format in ``declaration``; ``more`` fields of its info."""
    formats = f"formats={{({declaration}).name}}, file_formats=[{declaration}], {more}".rstrip(", ")
    source = PLUGIN.format(name=reader).replace('formats={"safetensors"}', formats)
    site.module(f"{reader}_plugin", source.replace("import Lifetime", "import FileFormat, Lifetime, Signature"))
    site.distribution(f"{reader}-reader", {reader: f"{reader}_plugin"})
    weight_readers.refresh()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    return path


def stored(**arrays: np.ndarray) -> bytes:
    """The bytes of an archive."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.mark.usefixtures("npz")
class TestInstalled:
    def test_a_file_is_loaded_by_its_name(self, folder: Path) -> None:
        np.savez(folder / "m.npz", w=ONE)
        weights = open_checkpoint(folder / "m.npz").state_dict()
        assert torch.equal(torch.from_numpy(ONE), weights["w"])

    def test_a_folder_is_loaded_by_the_names_in_it(self, folder: Path) -> None:
        for number in (1, 2):
            np.savez(folder / f"m-0000{number}-of-00002.npz", **{f"w{number}": ONE * number})
        weights = open_checkpoint(folder).state_dict()
        assert {name: weight.tolist() for name, weight in weights.items()} == {
            "w1": ONE.tolist(),
            "w2": (ONE * 2).tolist(),
        }

    def test_an_index_says_which_files_are_one_checkpoint(self, folder: Path) -> None:
        np.savez(folder / "a.npz", w=ONE)
        np.savez(folder / "b.npz", other=ONE)
        (folder / "m.npz.index.json").write_text(json.dumps({"weight_map": {"w": "a.npz"}}))
        assert [file.name for file in resolve(folder).files] == ["a.npz"]

    def test_loose_files_are_as_many_checkpoints_unless_the_format_says_otherwise(self, folder: Path) -> None:
        np.savez(folder / "a.npz", w=ONE)
        np.savez(folder / "b.npz", other=ONE)
        with pytest.raises(AmbiguousCheckpointError, match="several checkpoints of one file each"):
            resolve(folder)

    def test_a_file_that_is_named_as_nothing_is_known_by_its_content(self, folder: Path) -> None:
        with (folder / "blob").open("wb") as file:
            np.savez(file, w=ONE)
        assert resolve(folder / "blob").format == "npz"

    def test_a_file_that_is_named_as_something_else_is_read_by_its_content_and_that_is_said(self, folder: Path) -> None:
        with (folder / "m.gguf").open("wb") as file:
            np.savez(file, w=ONE)
        layout = resolve(folder / "m.gguf")
        assert layout.format == "npz"
        assert layout.notices == ("m.gguf is named as gguf and its content is npz: read as npz",)

    def test_an_archive_of_torch_under_its_name_is_refused(self, folder: Path) -> None:
        torch.save({"w": torch.ones(2)}, folder / "m.npz")
        with pytest.raises(ForeignContentError, match="a pickle is loaded only from a file that is named as one"):
            resolve(folder / "m.npz")

    def test_an_archive_of_torch_is_still_one(self, folder: Path) -> None:
        torch.save({"w": torch.ones(2)}, folder / "blob")
        assert resolve(folder / "blob").format == "pt"

    def test_ours_come_first_in_a_folder_unless_the_format_is_asked_for(self, folder: Path) -> None:
        save_file({"w": torch.ones(2)}, folder / "model.safetensors")
        np.savez(folder / "m.npz", w=ONE)
        layout = resolve(folder)
        assert (layout.format, layout.left_out) == (
            "safetensors",
            (("m.npz", "of format npz, and safetensors is read"),),
        )
        assert resolve(folder, use_format="npz").format == "npz"

    def test_the_commands_take_it(self, folder: Path) -> None:
        np.savez(folder / "m.npz", w=ONE)
        shown = run("inspect", folder / "m.npz")
        assert (shown.exit_code, "w  float32  [2, 3]  24 B" in shown.output) == (0, True)
        explained = run("explain", folder, "--format", "npz")
        assert (explained.exit_code, "npz, 1 file" in explained.output) == (0, True)
        assert "chosen: npz (the only reader that fits)" in explained.output
        loaded = run("load", folder / "m.npz", "--json")
        assert loaded.exit_code == 0, loaded.output
        assert json.loads(loaded.stdout)["report"]["selection"]["request"]["bytes_wanted"] == 24
        assert run("verify", folder / "m.npz").exit_code == 0
        assert "npz" in run("list").output

    def test_a_reader_that_cannot_run_here_is_named_with_what_it_needs(self, site: Site, folder: Path) -> None:
        needs = "requires=[{'module': 'no_such_backend', 'distribution': 'acme-backend'}]"
        declare(site, "acme", "FileFormat(name='acme', suffixes=['.acme'])", needs)
        (folder / "m.acme").write_bytes(b"content")
        done = run("load", folder / "m.acme")
        assert (done.exit_code, "pip install acme-backend" in done.stderr) == (1, True)


@pytest.mark.usefixtures("npz")
class TestElsewhere:
    def test_a_file_on_the_hub_is_downloaded_and_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        hub = HubServer()
        hub.put("own/arrays", {"m.npz": stored(w=ONE), "README.md": b"# arrays"})
        with hub.running():
            only_hub_here(monkeypatch, hub.endpoint, str(tmp_path / "cache"))
            explained = run("explain", "own/arrays")
            assert "the headers of npz files are read after the download" in explained.output
            assert hub.downloads() == []
            assert open_checkpoint("own/arrays").state_dict()["w"].tolist() == ONE.tolist()
            huggingface_hub.close_session()

    @pytest.mark.parametrize("reference", ["s3://models/m", "s3://models/m/m.npz"])
    def test_a_file_in_a_store_is_copied_and_read(
        self, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WEIGHT_READERS_CACHE_DIR", str(tmp_path / "cache"))
        with ObjectServer({"models/m/m.npz": stored(w=ONE)}).running() as server:
            only_store_here(monkeypatch, server.endpoint)
            assert open_checkpoint(reference).state_dict()["w"].tolist() == ONE.tolist()


class TestNotInstalled:
    def test_a_file_says_which_formats_there_are_and_how_to_get_more(self, folder: Path) -> None:
        np.savez(folder / "m.npz", w=ONE)
        done = run("load", folder / "m.npz")
        assert done.exit_code == 1
        assert "neither its name nor its content is of a format that an installed reader declares" in done.stderr
        assert ".safetensors or .gguf or .bin" in done.stderr
        assert "install the reader of its format" in done.stderr

    def test_a_folder_says_which_files_were_looked_for(self, folder: Path) -> None:
        np.savez(folder / "m.npz", w=ONE)
        with pytest.raises(CheckpointNotFoundError, match=r"expected \*\.safetensors or .*found m\.npz"):
            resolve(folder)

    @pytest.mark.parametrize("command", ["load", "explain", "inspect"])
    def test_the_format_by_name_is_refused_with_those_that_there_are(self, command: str, folder: Path) -> None:
        done = run(command, folder, "--format", "npz")
        assert done.exit_code == 2
        assert "must be one of ['safetensors', 'gguf', 'pt'], not 'npz'" in done.stderr
        with pytest.raises(ConfigError, match="comes with its reader"):
            resolve(folder, use_format="npz")

    def test_a_zip_archive_is_not_taken_for_one_of_torch(self, folder: Path) -> None:
        with zipfile.ZipFile(folder / "blob", "w") as archive:
            archive.writestr("readme.txt", "hello")
        with pytest.raises(ForeignContentError, match="not a weight file"):
            resolve(folder / "blob")


class TestInDispute:
    BIN = "FileFormat(name='acme', suffixes=['.bin'], signatures=[Signature(data=b'ACME')])"

    def test_the_content_of_a_file_settles_it(self, site: Site, folder: Path) -> None:
        declare(site, "acme", self.BIN)
        (folder / "a.bin").write_bytes(b"ACME and more")
        torch.save({"w": torch.ones(2)}, folder / "b.bin")
        assert [resolve(folder / name).format for name in ("a.bin", "b.bin")] == ["acme", "pt"]

    def test_what_was_asked_for_settles_it(self, site: Site, folder: Path) -> None:
        declare(site, "acme", self.BIN)
        torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
        assert resolve(folder, use_format="pt").format == "pt"

    def test_names_alone_are_an_error_that_says_who_claims_them(self, site: Site, folder: Path) -> None:
        declare(site, "acme", self.BIN)
        torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
        with pytest.raises(FormatConflictError, match=r"the suffix \.bin belongs to 2 formats.*acme-reader 1\.0"):
            resolve(folder)
        done = run("load", folder)
        assert (done.exit_code, "--format acme" in done.stderr) == (1, True)
        done = run("doctor")
        assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "something is broken, see above")

    def test_a_suffix_of_the_best_format_is_no_reason_to_read_another_one(self, site: Site, folder: Path) -> None:
        declare(site, "acme", "FileFormat(name='acme', suffixes=['.safetensors', '.bin'])")
        save_file({"w": torch.ones(2)}, folder / "model.safetensors")
        for other in ("model.bin", "model.gguf"):
            (folder / other).write_bytes(b"whatever")
        with pytest.raises(FormatConflictError, match=r"the suffix \.safetensors belongs to 2 formats"):
            resolve(folder)
        assert resolve(folder, use_format="safetensors").format == "safetensors"

    def test_a_longer_signature_takes_no_file_from_the_format_that_it_has_and_is_named_as(
        self, site: Site, folder: Path
    ) -> None:
        signatures = """[Signature(data=b'\\0\\0\\0\\0{\"', offset=4),
            Signature(data=b'PK\\x03\\x04', contains=b'm/data.pkl')]"""
        declare(site, "acme", f"FileFormat(name='acme', suffixes=['.acme'], signatures={signatures})")
        for name in ("model.safetensors", "blob", "m.acme"):
            save_file({"w": torch.ones(2)}, folder / name)
        assert {name: resolve(folder / name).format for name in ("model.safetensors", "blob", "m.acme")} == {
            "model.safetensors": "safetensors",
            "blob": "acme",
            "m.acme": "acme",
        }
        torch.save({"w": torch.ones(2)}, folder / "m.pt")
        assert resolve(folder / "m.pt").format == "pt"

    def test_a_format_that_has_to_be_named_says_so_by_its_own_name(self, site: Site, folder: Path) -> None:
        declare(
            site,
            "acme",
            "FileFormat(name='acme', suffixes=['.acme'], needs_name=True, signatures=[Signature(data=b'ACME')])",
        )
        (folder / "m.gguf").write_bytes(b"ACME and more")
        with pytest.raises(
            ForeignContentError, match=r"^acme is loaded only from .*rename this one to \.acme"
        ) as caught:
            resolve(folder / "m.gguf")
        assert "pickle" not in str(caught.value)

    def test_a_better_format_beside_it_is_read_as_ever(self, site: Site, folder: Path) -> None:
        declare(site, "acme", self.BIN)
        save_file({"w": torch.ones(2)}, folder / "model.safetensors")
        (folder / "training.bin").write_bytes(b"whatever")
        layout = resolve(folder)
        assert layout.format == "safetensors"
        assert ("training.bin", "of format pt or acme, and safetensors is read") in layout.left_out

    def test_two_formats_of_others_in_a_folder_are_an_error_that_asks_which(self, site: Site, folder: Path) -> None:
        for name in ("one", "two"):
            declare(site, name, f"FileFormat(name='{name}', suffixes=['.{name}'])")
            (folder / f"m.{name}").write_bytes(b"content")
        with pytest.raises(AmbiguousCheckpointError, match=r"several formats.*found one, two.*--format one"):
            resolve(folder)
        assert resolve(folder, use_format="two").format == "two"

    def test_a_format_that_is_declared_in_two_ways_is_refused_by_name(self, site: Site, folder: Path) -> None:
        for name in ("one", "two"):
            declare(site, name, f"FileFormat(name='acme', suffixes=['.{name}'])")
        (folder / "m.one").write_bytes(b"content")
        for arguments in (["--format", "acme"], []):
            done = run("load", folder, *arguments)
            assert done.exit_code == (2 if arguments else 1)
            assert "the format 'acme' is declared in 2 ways" in done.stderr

    def test_it_is_listed(self, site: Site) -> None:
        declare(site, "acme", self.BIN)
        assert "conflict: the suffix .bin belongs to 2 formats: pt (reader 'pt', weight-readers) and acme" in (
            run("list").output
        )

    def test_loose_files_are_one_checkpoint_where_the_format_says_so(self, site: Site, folder: Path) -> None:
        declare(site, "acme", "FileFormat(name='acme', suffixes=['.acme'], loose_files=True)")
        for name in ("a.acme", "b.acme"):
            (folder / name).write_bytes(b"content")
        assert [file.name for file in resolve(folder).files] == ["a.acme", "b.acme"]
