"""Compile for a GPU on a machine without one: the recorded device, and what stands in for it.

description     what a GPU said of itself, as a file; made on a machine that has it
stand_in        the names of torch and Triton that answer from the description
cubin           what the driver would say of a kernel, read from the kernel's file
"""
