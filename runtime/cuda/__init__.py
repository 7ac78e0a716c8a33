"""CUDA: kernels generated as PTX on any machine, and run by the driver where there is one."""
