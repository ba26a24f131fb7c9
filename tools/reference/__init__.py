# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference, made from the code: one module for each page."""
