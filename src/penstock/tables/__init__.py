# SPDX-License-Identifier: Apache-2.0
"""Tables made row group by row group: sampling, model columns, checks, parts."""
