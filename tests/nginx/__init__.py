# SPDX-License-Identifier: Apache-2.0
"""A real server with hidden limits for tests and benchmarks: nginx, thrown away afterwards."""
