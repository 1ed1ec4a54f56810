#pragma once

#include <torch/csrc/python_headers.h>

// Adds TensorGuard, ModuleGuard and have_no_attributes to the module; false with a Python error set.
bool add_guards(PyObject* module);
