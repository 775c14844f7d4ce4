# SPDX-License-Identifier: Apache-2.0
"""Readers that keep every rule of the testkit but one; each module breaks those of the kit's module of its name."""
