# SPDX-License-Identifier: Apache-2.0
"""Graphs of jobs at size: the same shapes run small in `make test`, large in `make soak-size`."""
