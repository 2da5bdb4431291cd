"""The gateway: doors, text, sessions, placement and the record of every round.

It never loads torch and is not on the path of a round.
"""
