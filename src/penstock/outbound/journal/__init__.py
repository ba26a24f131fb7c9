# SPDX-License-Identifier: Apache-2.0
"""How is an answer bought once, whatever dies in between?"""
