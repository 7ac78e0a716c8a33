"""What passes, frontends and the runtime share about the IR: attribute names, functions, locations, kernel calls and
views of torch's ops. Nothing here is a pass."""
