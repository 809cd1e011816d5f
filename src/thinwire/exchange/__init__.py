"""How ranks average gradients without servers."""
