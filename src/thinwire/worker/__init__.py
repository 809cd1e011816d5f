"""What runs where gradients are made."""
