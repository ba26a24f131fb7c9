# SPDX-License-Identifier: Apache-2.0
"""The model of a store: plain dictionaries, written apart from every statement of the product.

The Hypothesis machines compare real stores with it, so it keeps to the store contract as they do.
"""
