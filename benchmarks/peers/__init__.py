# SPDX-License-Identifier: Apache-2.0
"""How fast are the other durable queues on the same work?

One file per peer. They run in an environment of their own (`make bench-peers`), so nothing here
may import Penstock but the driver of Penstock itself.
"""
