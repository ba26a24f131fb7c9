# SPDX-License-Identifier: Apache-2.0
"""Request admission: caps, token buckets, adaptive limits, fair queues and permits."""
