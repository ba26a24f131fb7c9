# SPDX-License-Identifier: Apache-2.0
"""The adaptive limit: a provider's hidden limits found while running."""
