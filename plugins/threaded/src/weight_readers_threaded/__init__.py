# SPDX-License-Identifier: Apache-2.0
"""Reader ``threaded`` of weight-readers: parallel reads straight into tensors, bounded and in order."""
