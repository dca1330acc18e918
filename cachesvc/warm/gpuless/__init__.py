"""Compile for a GPU on a machine without one: the recorded device, and what stands in for it.

description            what a GPU said of itself, as a file; made on a machine that has it
stand_in, kernels,     the names of torch and Triton that answer from the description, compile and do not run,
choices                or refuse
decisions              what was decided without timing, and what was refused
cubin                  what the driver would say of a kernel, read from the kernel's file
helper                 the library by which Triton asks the driver, built without it
model, phases          a target's model on the absent device, and the phases of `warm` with it
"""
