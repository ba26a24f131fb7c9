# SPDX-License-Identifier: Apache-2.0
"""What did the user declare?"""
