# SPDX-License-Identifier: Apache-2.0
"""Reader ``runai_streamer`` of weight-readers: the Run:ai Model Streamer, on local files and object storage."""
