"""Metrics: what is measured, how it is read, and the page that Prometheus scrapes."""
