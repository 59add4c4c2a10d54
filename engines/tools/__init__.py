"""`python -m engines.tools`: what needs model libraries, in a process of its own for each task.

The command line starts it; what they say to each other is in `engines.wire.tools`.
"""
