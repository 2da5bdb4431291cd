"""The drafter: proposes tokens for the verifier's sequences and decides none."""
