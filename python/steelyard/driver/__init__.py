"""The compile driver: from a model and a recipe to a net, and from each captured graph to a program."""
