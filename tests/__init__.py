"""The tests, room by room as in src/badm; what crosses rooms is here, what tests share in helpers.

Rooms need no file like this one; it makes ``tests.helpers`` ours, whatever else is installed.
"""
