"""Calls of answers, apart from what judges them.

A *trial* builds inputs and a laboratory, calls an answer once, and returns what was seen as plain
data. It knows no expected value: those are with the checks, which are not imported here. So a trial
can run in the answer's own process (`answering`), which `confinement` shuts off from everything
else, or in the student's notebook.
"""
