# SPDX-License-Identifier: Apache-2.0
"""What an operator may do to a store: cancel, retry, purge, pause, limits, backup and restore."""
