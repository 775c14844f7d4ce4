# SPDX-License-Identifier: Apache-2.0
"""What AWS's configuration file says of a place: boto3 goes by it, and the native client does not know of it.

With an endpoint there, headers came from that one and tensors were looked for at Amazon's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

ORIGIN = "AWS's configuration file"


def configured(profile: str | None) -> dict[str, str]:
    """``endpoint`` and ``region`` of a profile (None for the one that counts), as far as they are there.

    Empty for a profile that does not exist, which the client says where it is made.
    """
    import botocore.exceptions
    import botocore.session

    session = botocore.session.Session(profile=profile)
    with suppress(botocore.exceptions.ProfileNotFound, botocore.exceptions.ConfigParseError):
        config = session.get_scoped_config()
        ignored = session.get_config_variable("ignore_configured_endpoint_urls")
        endpoint = None if ignored else _endpoint(config, session.full_config)
        found = {"endpoint": endpoint, "region": config.get("region")}
        return {name: str(value) for name, value in found.items() if value}
    return {}


def _endpoint(config: Mapping[str, object], everything: Mapping[str, dict[str, object]]) -> object:
    """Of the two that a profile may have, the one for S3 before the one for all services."""
    service = everything.get("services", {}).get(str(config.get("services")), {})
    of_s3 = service.get("s3") if isinstance(service, dict) else None
    return (of_s3.get("endpoint_url") if isinstance(of_s3, dict) else None) or config.get("endpoint_url")
