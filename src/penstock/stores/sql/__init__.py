# SPDX-License-Identifier: Apache-2.0
"""What stores on a database share: the same steps, over statements of the same names."""
