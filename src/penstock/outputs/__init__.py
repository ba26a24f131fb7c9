# SPDX-License-Identifier: Apache-2.0
"""Files of dataset slices: written atomically, read with checksums, garbage collected."""
