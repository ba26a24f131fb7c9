# SPDX-License-Identifier: Apache-2.0
"""How does a call leave: admit, send, classify, release?"""
