"""Does what residency decides: engines as processes, calls as mailboxes."""
