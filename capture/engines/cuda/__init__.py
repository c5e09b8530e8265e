"""The CUDA engine: the dense model's task graph as one persistent kernel. Nothing here is imported without need."""
