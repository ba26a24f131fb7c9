# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: shows that a kill -9 in the middle of paid work loses and repeats nothing."""
