# SPDX-License-Identifier: Apache-2.0
"""weight-readers inside inference engines: one thin module per engine, which imports the engine when it is used."""
