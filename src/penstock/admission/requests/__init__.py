# SPDX-License-Identifier: Apache-2.0
"""May this call go out now?"""
