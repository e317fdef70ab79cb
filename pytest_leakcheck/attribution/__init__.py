"""Find the cause of a leak.

The modules here identify and describe what is retained; `tracing` finds where it is made, and
`heap` finds its owner.
"""
