# SPDX-License-Identifier: Apache-2.0
"""The command line: a face that nobody imports."""
