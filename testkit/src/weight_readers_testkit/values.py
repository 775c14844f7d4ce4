# SPDX-License-Identifier: Apache-2.0
"""The right bytes under the right names, in the right order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from weight_readers import CheckpointMeta, Feature, Order, SliceError, TensorSlice
from weight_readers_testkit.subject import EVERYDAY, MIB, Subject
from weight_readers_testkit.tensors import Stored, contents, expected, noise, same, stored


class ValueTests(Subject):
    def test_every_dtype_comes_out_bit_for_bit(self, tmp_path: Path) -> None:
        """`iter_weights`: dtype, shape and bytes as `write` got them; or `write`, if the file has others."""
        shapes = ((2, 4), (3, 8, 2))
        tensors = {
            f"{dtype}.{number}": stored(dtype, *shape, seed=dtype)
            for dtype in self.held()
            for number, shape in enumerate(shapes)
        }
        same(expected(tensors), contents(self.make().iter_weights([self.file(tmp_path, tensors)])))

    def test_the_declared_dtypes_are_those_of_its_files(self) -> None:
        """`dtypes` of the contract class has float32; `ReaderInfo.dtypes` is left out, or names the same."""
        assert EVERYDAY in self.dtypes
        assert self.make().info.dtypes in (frozenset(), frozenset(self.dtypes))

    def test_scalars_keep_their_shape(self, tmp_path: Path) -> None:
        """`iter_weights`: a tensor of shape `()`; or `scalars = False` where the format has none."""
        if not self.scalars:
            pytest.skip("the format has no scalars")
        tensors = {"before": stored(EVERYDAY, 2), "scalar": stored(EVERYDAY)}
        same(expected(tensors), contents(self.make().iter_weights([self.file(tmp_path, tensors)])))

    def test_tensors_without_elements_stand_anywhere(self, tmp_path: Path) -> None:
        """`iter_weights`: yield tensors without bytes too, several at one offset; or `empty = False` where the format
        has none."""
        if not self.empty:
            pytest.skip("the format has no tensors without elements")
        empty, full = Stored(EVERYDAY, (0, 3), b""), stored(EVERYDAY, 2)
        tensors = {"first": empty, "a": full, "between": empty._replace(shape=(2, 0, 4)), "b": full, "last": empty}
        same(expected(tensors), contents(self.make().iter_weights([self.file(tmp_path, tensors)])))

    def test_a_file_without_tensors_yields_nothing(self, tmp_path: Path) -> None:
        """`read_meta` and `iter_weights`: a file without tensors is sound; or `no_tensors = False` where the format has
        none."""
        if not self.no_tensors:
            pytest.skip("the format has no files without tensors")
        assert list(self.make().iter_weights([self.file(tmp_path, {})])) == []

    def test_names_are_any_text_that_the_format_holds(self, tmp_path: Path) -> None:
        """`iter_weights`: yield names as they are; or `names`, where the format limits them."""
        tensors = {name: stored(EVERYDAY, 3, seed=name) for name in self.names}
        same(expected(tensors), contents(self.make().iter_weights([self.file(tmp_path, tensors)])))

    def test_thousands_of_tensors_come_whole(self, tmp_path: Path) -> None:
        """`iter_weights`: all tensors of a long header; `many` says how many there are, where writing takes long."""
        tensors = {f"layer.{number}": stored(EVERYDAY, 1 + number % 3, seed=number) for number in range(self.many)}
        same(expected(tensors), contents(self.make().iter_weights([self.file(tmp_path, tensors)])))

    def test_a_large_tensor_has_every_byte(self, tmp_path: Path) -> None:
        """`iter_weights`: read on until all bytes are there: one read call may return fewer."""
        count = 9 * MIB // 4 + 5  # past the chunk of 8 MiB that readers like, and no multiple of a page
        large = {"before": stored(EVERYDAY, 3), "large": Stored(EVERYDAY, (count,), noise(4 * count))}
        same(expected(large), contents(self.make().iter_weights([self.file(tmp_path, large)])))

    def test_blocks_come_packed_as_they_are_stored(self, tmp_path: Path) -> None:
        """`iter_weights`: `uint8 [rows, row_bytes]`; `read_meta`: `ggml_type` and `source_dtype` of the type; `packed`
        of the contract class names the types."""
        reader = self.need(Feature.PACKED)
        tensors = {f"{kind}.weight": _blocks(kind, *block) for kind, block in self.packed.items()}
        assert tensors, f"{type(self).__name__}.packed names no type, and the reader declares packed"
        path = self.file(tmp_path, tensors)
        same(expected(tensors), contents(reader.iter_weights([path])))
        meta = reader.read_meta([path]).values()
        assert [(kind, True) for kind in self.packed] == [(m.source_dtype, m.ggml_type is not None) for m in meta]

    def test_a_slice_that_cuts_a_block_is_refused_with_the_tensor(self, tmp_path: Path) -> None:
        """`iter_weights`: a SliceError with `path` and `tensor` before the first tensor."""
        self.need(Feature.PACKED)
        reader = self.need(Feature.SLICES)
        for kind, (elements, nbytes) in self.packed.items():
            path = self.file(tmp_path, {f"{kind}.weight": _blocks(kind, elements, nbytes)}, f"of-{kind}")
            for start, stop in ((0, elements + 1), (1, elements)):
                part = TensorSlice(dim=1, start=start, stop=stop)
                with pytest.raises(SliceError) as caught:
                    next(iter(reader.iter_weights([path], slices={f"{kind}.weight": part})))
                assert (path, f"{kind}.weight") == (caught.value.path, caught.value.tensor)

    def test_the_order_is_the_declared_one(self, tmp_path: Path) -> None:
        """`ReaderInfo.order`: `COMPLETION` where tensors come as reads end; else `iter_weights` yields them as `write`
        wrote them."""
        reader = self.make()
        names = ["m", "z", "a", "k", "b"]
        path = self.file(tmp_path, {name: stored(EVERYDAY, 2, seed=name) for name in names})
        got = [name for name, _ in reader.iter_weights([path])]
        assert names == (sorted(got, key=names.index) if reader.info.order is Order.COMPLETION else got)

    def test_the_order_of_the_header_is_told_from_that_of_the_bytes(self, tmp_path: Path) -> None:
        """`ReaderInfo.order`: `HEADER` where `iter_weights` yields as the header lists, `FILE_OFFSET` where by offset;
        or `write_listed`, if it mixes up the two."""
        reader, path = self.make(), self.path(tmp_path)
        if reader.info.order is Order.COMPLETION:
            pytest.skip("any order is declared")
        lie, listed = ["m", "z", "a", "k", "b", "q"], ["k", "b", "q", "m", "z", "a"]
        tensors = {name: stored(EVERYDAY, 8, seed=name) for name in lie}
        self.write_listed(path, tensors, listed)
        found = [path.read_bytes().find(each.data) for each in tensors.values()]
        assert found == sorted(found) or -1 in found, "write_listed: the bytes have to lie in the order of `tensors`"
        got = contents(reader.iter_weights([self.reference(path)]))
        same(expected(tensors), got)
        assert (listed if reader.info.order is Order.HEADER else lie) == list(got)

    def test_shards_come_in_natural_order_whatever_order_they_are_given_in(self, tmp_path: Path) -> None:
        """`iter_weights` and the keys of `read_meta`: take files in the order of `natural_order(files)`, and within
        each the tensors as the header lists them."""
        reader = self.make()
        shards = self.shards(tmp_path, 11)
        random.Random(0).shuffle(shards)
        names = [name for number in range(1, 12) for name in self.shard(number)]
        got = [name for name, _ in reader.iter_weights(shards)]
        assert names == (sorted(got, key=names.index) if reader.info.order is Order.COMPLETION else got)
        assert names == list(reader.read_meta(shards))

    def test_the_meta_says_what_is_yielded(self, tmp_path: Path) -> None:
        """`read_meta`: `dtype`, `stored_shape`, `nbytes` and `file` of each `TensorMeta`, `path` and `nbytes` of each
        `FileMeta`."""
        tensors = {dtype: stored(dtype, 2, 6, seed=dtype) for dtype in self.held()}
        path = self.file(tmp_path, tensors)
        meta = self.make().read_meta([path])
        written = {name: (each.dtype, each.shape, len(each.data), path) for name, each in tensors.items()}
        same(written, {n: (m.dtype, m.stored_shape, m.nbytes, m.file) for n, m in meta.items()})
        assert [(path, self.path(tmp_path).stat().st_size)] == [(file.path, file.nbytes) for file in meta.files]

    def test_what_is_no_tensors_bytes_is_counted_as_header(self, tmp_path: Path) -> None:
        """`read_meta`: `FileMeta.header_bytes` is at least the smallest offset, and at most the size of the file less
        that of all tensors, an index at its end counted in."""
        tensors = {name: stored(EVERYDAY, 5, seed=name) for name in "abc"}
        meta = self.make().read_meta([self.file(tmp_path, tensors)])
        (file,) = meta.files
        before = min(each.offset for each in meta.values())
        besides = file.nbytes - sum(len(each.data) for each in tensors.values())
        assert before <= file.header_bytes <= besides

    def test_the_meta_is_cores_own_kind_of_mapping(self, tmp_path: Path) -> None:
        """`read_meta`: return `CheckpointMeta(tensors, files)`, its names in the order of the header."""
        meta = self.make().read_meta(self.shards(tmp_path, 1))
        assert isinstance(meta, CheckpointMeta)
        assert list(meta) == ["s1.t0", "s1.t1"]

    def test_listing_the_tensors_reads_none_of_them(self, tmp_path: Path) -> None:
        """`read_meta`: read the header alone."""
        path, tensors = self.bulky(tmp_path)
        reader = self.make()
        touched = self.counted(self.path(tmp_path), lambda: reader.read_meta([path]))
        assert touched < self.bulk // 4, f"{touched} bytes of {sum(len(t.data) for t in tensors.values())} were read"


def _blocks(kind: str, elements: int, nbytes: int) -> Stored:
    """Three rows of two blocks each. Noise would do as numbers never do: only the bytes are looked at."""
    return Stored("uint8", (3, 2 * nbytes), noise(6 * nbytes, kind), packed=kind)
