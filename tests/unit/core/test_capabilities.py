# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plugins import READER_NAMES, environments, info, reader_infos, requests

from weight_readers import (
    API_VERSION,
    Declined,
    Environment,
    Feature,
    Lifetime,
    Order,
    QuantMethodInfo,
    Request,
    Requirement,
    TensorMeta,
    TensorSlice,
)
from weight_readers.reader import CheckpointMeta, FileMeta, ReadStats

META = TensorMeta(
    name="w",
    dtype="bfloat16",
    source_dtype="BF16",
    shape=(2, 3),
    stored_shape=(2, 3),
    nbytes=12,
    file="m.safetensors",
    offset=64,
)

ANY_SCHEMA = st.one_of(
    reader_infos(),
    requests(),
    environments(),
    st.builds(Declined, reason=st.text(), fix=st.none() | st.text()),
    st.builds(Requirement, module=st.text(), distribution=st.text()),
    st.builds(
        QuantMethodInfo,
        name=READER_NAMES,
        weight_types=st.frozensets(st.text()),
        device_types=st.frozensets(st.text()),
        factory=st.text(),
    ),
    st.builds(TensorSlice, dim=st.integers(), start=st.none() | st.integers(), stop=st.none() | st.integers()),
    st.builds(ReadStats, tensors=st.integers(0), bytes_wanted=st.integers(0)),
    st.just(META),
)


@given(ANY_SCHEMA)
def test_every_schema_class_goes_through_json_text_unchanged(instance: Any) -> None:
    assert instance == type(instance).from_json(json.loads(json.dumps(instance.to_json())))


@given(ANY_SCHEMA)
def test_every_schema_class_pickles(instance: Any) -> None:
    assert instance == pickle.loads(pickle.dumps(instance))


@given(ANY_SCHEMA)
def test_every_schema_class_is_hashable_and_frozen(instance: Any) -> None:
    assert hash(instance) == hash(dataclasses.replace(instance))
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.anything = 1


def test_a_reader_info_declares_the_current_api_version_unless_told() -> None:
    assert info().api_version == API_VERSION


def test_words_and_members_mean_the_same() -> None:
    assert info(features={Feature.SLICES}, order=Order.HEADER) == info(features=["slices"], order="header")


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: info("Bad-Name"), ValueError, "ReaderInfo.name must match [a-z0-9_]+, not 'Bad-Name'"),
        (lambda: info(""), ValueError, "ReaderInfo.name must match"),
        (lambda: info("good\n"), ValueError, "ReaderInfo.name must match"),
        (lambda: info(api_version=0), ValueError, "ReaderInfo.api_version must be at least 1, not 0"),
        (lambda: info(api_version=None), TypeError, "ReaderInfo.api_version must be a whole number, not None"),
        (lambda: info(api_version=True), TypeError, "ReaderInfo.api_version must be a whole number, not True"),
        (lambda: info(formats="safetensors"), TypeError, "ReaderInfo.formats must be a collection"),
        (lambda: info(formats=[1]), TypeError, "ReaderInfo.formats must be text, not 1"),
        (lambda: info(features={"teleport"}), ValueError, "ReaderInfo.features must be one of ['key_filter'"),
        (lambda: info(lifetime="short"), ValueError, "ReaderInfo.lifetime must be one of ['owned'"),
        (lambda: info(order=None), ValueError, "ReaderInfo.order must be one of"),
        (lambda: info(fallback=1), TypeError, "ReaderInfo.fallback must be True or False, not 1"),
        (lambda: info(requires=["torch"]), TypeError, "ReaderInfo.requires must be a Requirement, not 'torch'"),
        (lambda: Request(format=b"gguf"), TypeError, "Request.format must be text, not b'gguf'"),
        (lambda: Request(device=0), TypeError, "Request.device must be text, not 0"),
        (lambda: Request(schemes="s3"), TypeError, "Request.schemes must be a collection of values, not 's3'"),
        (lambda: Request(bytes_wanted=-1), ValueError, "Request.bytes_wanted must be at least 0, not -1"),
        (lambda: Request(bytes_wanted=1.5), TypeError, "Request.bytes_wanted must be a whole number, not 1.5"),
        (lambda: Request(owned="no"), TypeError, "Request.owned must be True or False, not 'no'"),
        (lambda: Request(prefer="mmap"), TypeError, "Request.prefer must be a collection of values, not 'mmap'"),
        (lambda: Request(options=[("a", 1)]), TypeError, "Request.options must be a mapping, not [('a', 1)]"),
        (lambda: Request(engine={1: 2}), TypeError, "Request.engine must be text, not 1"),
        (lambda: Environment(cpus=0), ValueError, "Environment.cpus must be at least 1, not 0"),
        (lambda: Environment(page_cache_residency=1.1), ValueError, "page_cache_residency must be a fraction"),
        (lambda: Environment(page_cache_residency=float("nan")), ValueError, "page_cache_residency must be a fraction"),
        (lambda: Environment(local_ranks=0), ValueError, "local_ranks must be at least 1"),
        (lambda: Environment(host_memory_free=-1), ValueError, "host_memory_free must be at least 0"),
        (lambda: Environment(filesystem=7), TypeError, "Environment.filesystem must be text, not 7"),
        (lambda: Declined(reason=None), TypeError, "Declined.reason must be text, not None"),
        (lambda: TensorSlice(dim="0"), TypeError, "TensorSlice.dim must be a whole number, not '0'"),
        (lambda: TensorSlice(dim=True), TypeError, "TensorSlice.dim must be a whole number, not True"),
        (lambda: TensorSlice(dim=0, start=False), TypeError, "TensorSlice.start must be a whole number, not False"),
        (lambda: TensorSlice(dim=0, stop=1.0), TypeError, "TensorSlice.stop must be a whole number, not 1.0"),
        (lambda: Request.from_json({"fromat": "x"}), TypeError, "Request has no field ['fromat']; it has ["),
    ],
)
def test_a_bad_field_is_refused_with_its_name_and_value(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "pair"),
    [
        ({"needs": {Feature.FILE_MAPPING, Feature.DIRECT_IO}}, "file_mapping and direct_io"),
        ({"needs": {Feature.FILE_MAPPING}, "owned": True}, "file_mapping and owned"),
    ],
)
def test_a_request_that_excludes_itself_is_refused_when_made(fields: dict[str, Any], pair: str) -> None:
    with pytest.raises(ValueError, match=f"asks for {pair}, which exclude each other"):
        Request(**fields)


def test_the_caller_changing_his_mapping_later_does_not_change_the_request() -> None:
    options = {"copy": True}
    request = Request(options=options)
    options["copy"] = False
    assert request.options == {"copy": True}


@pytest.mark.parametrize(
    ("device", "kind"), [(None, None), ("cpu", "cpu"), ("cuda:1", "cuda"), ("cuda", "cuda"), ("meta", "meta")]
)
def test_the_device_type_is_the_device_without_its_index(device: str | None, kind: str | None) -> None:
    assert kind == Request(device=device).device_type


def test_the_two_properties_of_the_first_protocol_follow_the_features() -> None:
    mapped = info(features={Feature.KEY_FILTER, Feature.FILE_MAPPING}, lifetime=Lifetime.MAPPED)
    assert (mapped.supports_key_filter, mapped.retains_file_mapping) == (True, True)
    assert (info().supports_key_filter, info().retains_file_mapping) == (False, False)


def test_an_environment_pickles_without_its_test_for_modules() -> None:
    assert pickle.loads(pickle.dumps(Environment(cpus=2, has_module=lambda name: True))) == Environment(cpus=2)


def test_engine_facts_that_json_lacks_are_shown_as_text() -> None:
    shown = Request(engine={"dtype": complex(1, 2), "paths": [b"x"]}).to_json()["engine"]
    assert json.loads(json.dumps(shown)) == {"dtype": "(1+2j)", "paths": ["b'x'"]}


def test_a_quant_method_loads_its_factory() -> None:
    method = QuantMethodInfo(
        name="gguf", weight_types={"Q4_K"}, device_types={"cpu"}, factory="collections:OrderedDict"
    )
    assert method.load().__name__ == "OrderedDict"


def test_a_quant_method_whose_factory_is_absent_raises_as_the_import_does() -> None:
    method = QuantMethodInfo(name="gguf", weight_types=(), device_types=(), factory="no_such_module:X")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        method.load()


@pytest.mark.parametrize(
    ("part", "shape", "resolved"),
    [
        (TensorSlice(dim=0, start=1, stop=3), (4, 5), (0, 1, 3)),
        (TensorSlice(dim=-1), (4, 5), (1, 0, 5)),
        (TensorSlice(dim=0, start=-2), (4,), (0, 2, 4)),
        (TensorSlice(dim=0, start=2, stop=99), (4,), (0, 2, 4)),
        (TensorSlice(dim=0, start=3, stop=1), (4,), (0, 3, 3)),
        (TensorSlice(dim=0), (0,), (0, 0, 0)),
    ],
)
def test_a_slice_resolves_as_python_slices_do(
    part: TensorSlice, shape: tuple[int, ...], resolved: tuple[int, int, int]
) -> None:
    assert resolved == part.resolve(shape)


@pytest.mark.parametrize(("dim", "shape"), [(0, ()), (2, (4, 5)), (-3, (4, 5))])
def test_a_slice_of_a_dimension_that_is_not_there_is_an_index_error(dim: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(IndexError, match=f"dimension {dim} is out of range"):
        TensorSlice(dim=dim).resolve(shape)


def test_checkpoint_meta_pickles_with_its_files() -> None:
    file = FileMeta(path="m.safetensors", format="safetensors", nbytes=80, header_bytes=60, metadata={"a": "b"})
    copy = pickle.loads(pickle.dumps(CheckpointMeta({"w": META}, [file])))
    assert ({"w": META}, (file,)) == (dict(copy), copy.files)
