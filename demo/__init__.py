"""The demonstration: fetches small real models, serves them and shows what the gateway does.

Nothing here is part of the installed product. The demo talks to the daemon as any client does:
through its command line, its HTTP surface and its signals.
"""
