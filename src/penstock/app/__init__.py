# SPDX-License-Identifier: Apache-2.0
"""What a user holds: the application, its registry, its queue and its runs."""
