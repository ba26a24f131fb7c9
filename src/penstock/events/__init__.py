# SPDX-License-Identifier: Apache-2.0
"""Events of the scheduler and of requests, and the sinks that listen to them."""
