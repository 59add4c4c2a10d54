"""What the operator wrote: schema, loading with every problem at once, sizes, budget, places.

Nothing here is kept between calls: `load.load` turns one file into one frozen `Loaded`.
"""
