# SPDX-License-Identifier: Apache-2.0
"""Clients of HTTP libraries whose requests pass admission."""
