"""Where events come from: the host engine in virtual time and the reference CUDA megakernel."""
