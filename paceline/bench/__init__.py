"""What speculation is worth on a workload: plain and speculative answers, measured and compared."""
