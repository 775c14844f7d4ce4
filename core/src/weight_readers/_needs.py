# SPDX-License-Identifier: Apache-2.0
"""How much host memory a load takes, by what the reader declares and the request says. Pure functions."""

from __future__ import annotations

from weight_readers.capabilities import Feature, Lifetime, ReaderInfo, Request


def host_need(info: ReaderInfo, request: Request) -> int | None:
    """Bytes of host memory that the load takes at least, besides tensors that exist already; None where unknown.

    A mapping takes none: its pages can be dropped. What is kept is all that is wanted. On the way to somewhere else
    it is the tensor that the consumer has and the next one.
    """
    wanted, largest = request.bytes_wanted, request.largest_tensor
    if wanted is None or (info.retains_file_mapping and not _copies(info, request)):
        return None if wanted is None else 0
    if Feature.BOUNDED_MEMORY not in info.features or _is_kept(request):
        return wanted
    if request.into_targets and Feature.READ_INTO in info.features:
        return 0
    return 0 if largest is None else min(wanted, 2 * largest)


def must_copy(info: ReaderInfo, request: Request) -> bool:
    """Whether a reader of mapped files has to copy, because the tensors are not to depend on the files."""
    return request.owned and info.lifetime is Lifetime.MAPPED


def to_device(request: Request) -> bool:
    return request.device_type not in (None, "cpu")


def _is_kept(request: Request) -> bool:
    return not to_device(request) and (request.kept_on_host or (request.owned and not request.into_targets))


def _copies(info: ReaderInfo, request: Request) -> bool:
    return must_copy(info, request) or request.options.get("copy") is True
