# SPDX-License-Identifier: Apache-2.0
"""One worker: lease, admit, run, acknowledge."""
