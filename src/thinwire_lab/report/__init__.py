"""Reports: pages with charts, each one HTML file."""
