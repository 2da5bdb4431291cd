"""The verifier: runs the target model, owns the sequences, decides every output token."""
