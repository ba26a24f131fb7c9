# SPDX-License-Identifier: Apache-2.0
"""`penstock demo`: what does a kill -9 in the middle of paid work cost?"""
