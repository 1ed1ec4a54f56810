// The seed of a call: what `random.new_seed` does, without Python's parsing of arguments.

#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/ops/empty.h>

namespace {

PyObject* new_seed(PyObject* /*module*/, PyObject* /*arguments*/) {
  HANDLE_TH_ERRORS
  return THPVariable_Wrap(at::empty({}, at::TensorOptions(at::kCPU).dtype(at::kLong)).random_());
  END_HANDLE_TH_ERRORS
}

PyMethodDef seed_functions[] = {
    {"new_seed", new_seed, METH_NOARGS, "The seed of a call, drawn from torch's CPU generator."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace
