"""Which depth for which input."""
