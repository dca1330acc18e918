from . import patched, patched_modules
GROUPS = {
    "patched functional": patched.of_functional,
    "patched torch": patched.of_torch,
    "patched Tensor": patched.of_tensor,
    "patched below": patched.of_functions_below,
    "patched nn forward": patched_modules.of_forward,
    "patched nn below": patched_modules.of_functions_below,
}
