"""How checkpoints are written: one module per format, each with the same three functions.

`stored_scheme(layer)`: in what scheme the format holds the weight of a layer, or an error that says why it cannot.
`layer_tensors(layer, parts)`: the tensors of a layer by name.
`describe(layers, ignored)`: the `quantization_config`, and further files of JSON by name.
"""
