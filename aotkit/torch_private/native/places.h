// Which tensors are no longer where in memory they were.

#pragma once

#include <torch/csrc/python_headers.h>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace {

// Where a tensor of this number is: the address of its first element, and how many follow one another.
struct Place {
  int64_t number, address, count;

  bool holds(PyObject* object) const {
    if (!THPVariable_Check(object)) return false;
    const at::Tensor& tensor = THPVariable_Unpack(object);
    return tensor.is_contiguous() && tensor.numel() == count &&
        reinterpret_cast<int64_t>(tensor.mutable_data_ptr()) == address;
  }
};

// Takes places, as bytes, and a list or tuple of values; gives the numbers of those that are elsewhere, in a list.
PyObject* moved(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 2 && PyBytes_Check(arguments[0]) && (PyList_Check(arguments[1]) || PyTuple_Check(arguments[1])),
      "expected bytes, and a list or tuple");
  auto numbers = pybind11::reinterpret_steal<pybind11::object>(PyList_New(0));
  if (!numbers) return nullptr;
  const auto* place = reinterpret_cast<const Place*>(PyBytes_AS_STRING(arguments[0]));
  const auto* end = place + PyBytes_GET_SIZE(arguments[0]) / sizeof(Place);
  for (; place != end; ++place) {
    TORCH_CHECK_INDEX(place->number < PySequence_Fast_GET_SIZE(arguments[1]), "there are fewer values than places");
    if (place->holds(PySequence_Fast_GET_ITEM(arguments[1], place->number))) continue;
    const auto number = pybind11::reinterpret_steal<pybind11::object>(PyLong_FromLongLong(place->number));
    if (!number || PyList_Append(numbers.ptr(), number.ptr()) < 0) return nullptr;
  }
  return numbers.release().ptr();
  END_HANDLE_TH_ERRORS
}

}  // namespace
