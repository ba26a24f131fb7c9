# SPDX-License-Identifier: Apache-2.0
"""The journal of paid calls: what was bought is not bought again."""
