# SPDX-License-Identifier: Apache-2.0
"""What is remembered in files: the slices of datasets."""
