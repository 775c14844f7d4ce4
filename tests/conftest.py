# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# No test asks the real Hub, by mistake or not; those about the Hub have a server of their own.
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell starts what runs in the background with this signal ignored, and child processes inherit that; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines are shared: how fast examples come says nothing about the code under test.
settings.register_profile("shared-machine", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("shared-machine")
# For the other Pythons of tests/install/test_pythons.py: what differs there does not take a hundred examples to show.
settings.register_profile("few-examples", settings.get_profile("shared-machine"), max_examples=10)
