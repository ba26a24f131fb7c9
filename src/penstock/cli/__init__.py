# SPDX-License-Identifier: Apache-2.0
"""The command line `penstock`; no other package imports it."""
