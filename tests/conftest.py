# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines are shared: how fast examples come says nothing about the code under test.
settings.register_profile("shared-machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared-machine")
