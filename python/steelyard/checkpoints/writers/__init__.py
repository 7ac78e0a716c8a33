"""How checkpoints are written: one module per format, each with the same four functions.

`stored_scheme(layer)`: in what scheme the format holds the weight of a layer, or an error that says why it cannot.
`layer_tensors(layer, parts)`: the tensors of a layer by name.
`cache_tensors(attention, key, value)`: the static scales of an attention's KV cache by name; empty if it holds none.
`describe(layers, ignored, has_caches)`: the `quantization_config`, and further files of JSON by name.
"""
