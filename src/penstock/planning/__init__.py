# SPDX-License-Identifier: Apache-2.0
"""What must run, and in what order?"""
