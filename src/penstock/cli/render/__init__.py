# SPDX-License-Identifier: Apache-2.0
"""Reports and tables that commands print."""
