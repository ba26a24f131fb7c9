# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL for tests and benchmarks, and ways to hurt it."""
