# SPDX-License-Identifier: Apache-2.0
"""Secrets and quoted data removed from texts that are kept or shown."""
