# SPDX-License-Identifier: Apache-2.0
"""How does a person see a run on a terminal?"""
