"""Softmax top-k that nothing balances: shows what the other rules are for."""

from analysis.lab.router import SoftmaxTopKRouter


class UnbalancedRouter(SoftmaxTopKRouter):
    """Softmax top-k without any balancing."""
