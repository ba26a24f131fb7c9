# SPDX-License-Identifier: Apache-2.0
"""When is there a slice of a dataset? One kind of calendar a file."""
