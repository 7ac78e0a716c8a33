"""What low precision does to a model: what is measured, what follows from it, and how it is shown.

Nothing here imports the driver, which makes nets: a net is given to it.
"""
