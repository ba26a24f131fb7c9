# SPDX-License-Identifier: Apache-2.0
"""Nouns that are emitted: what happened, to whom, in which run."""
