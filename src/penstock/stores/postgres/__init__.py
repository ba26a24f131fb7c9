# SPDX-License-Identifier: Apache-2.0
"""The store of a fleet: one PostgreSQL database."""
