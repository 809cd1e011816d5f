"""Reports as one HTML file: no network, no scripts, pictures drawn in place."""
