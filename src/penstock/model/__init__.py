# SPDX-License-Identifier: Apache-2.0
"""Nouns: frozen values that every other package shares."""
