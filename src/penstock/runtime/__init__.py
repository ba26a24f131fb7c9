# SPDX-License-Identifier: Apache-2.0
"""Do: lease jobs, run them, end them."""
