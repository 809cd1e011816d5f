"""Error feedback: what could not be sent is kept and sent later."""
