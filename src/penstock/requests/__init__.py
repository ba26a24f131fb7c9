# SPDX-License-Identifier: Apache-2.0
"""Outbound calls: admit, send, classify, release; clients and the journal of paid calls."""
