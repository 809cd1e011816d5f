"""Memory of what could not be sent."""
