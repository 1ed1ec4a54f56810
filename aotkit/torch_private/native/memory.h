// Tensors that nothing else refers to, and new ones in their memory.

#pragma once

#include <torch/csrc/python_headers.h>

#include <c10/core/impl/COW.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/Exceptions.h>

namespace {

// Whether the list is all that refers to one of its tensors, and that all that refers to its memory, which is as large,
// and torch's own: that of an array of NumPy's, for one, has other readers. Autograd's engine asks the same before it
// adds gradients up in place.
bool is_nobody_elses(PyObject* item, size_t bytes) {
#ifdef Py_GIL_DISABLED
  return false;  // there, a count may be behind
#else
  if (Py_REFCNT(item) != 1 || !THPVariable_CheckExact(item)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(item);
  const c10::DispatchKeySet unlike({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  if (tensor.use_count() != 1 || !tensor.has_storage() || tensor.key_set().has_any(unlike)) return false;
  const c10::Storage& storage = tensor.storage();
  return storage.use_count() == 1 && storage.nbytes() == bytes && storage.resizable() &&
      !c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
#endif
}

std::vector<int64_t> integers_of(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "expected a tuple");
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    found.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  }
  if (PyErr_Occurred()) throw python_error();
  return found;
}

// Takes a list of values, numbers of tensors in it, a size and strides. Gives a tensor like that, which fills the memory
// of the first of these to which nothing else refers; None if there is none.
PyObject* in_place(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 4 && PyList_Check(arguments[0]), "expected a list and three tuples");
  const auto size = integers_of(arguments[2]);
  for (const auto i : integers_of(arguments[1])) {
    TORCH_CHECK_INDEX(i >= 0 && i < PyList_GET_SIZE(arguments[0]), "there is no value ", i);
    PyObject* item = PyList_GET_ITEM(arguments[0], i);
    if (!THPVariable_Check(item)) continue;
    const at::Tensor& tensor = THPVariable_Unpack(item);
    if (!is_nobody_elses(item, c10::multiply_integers(size) * tensor.itemsize())) continue;
    at::Tensor made =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(size, integers_of(arguments[3]));
    return THPVariable_Wrap(std::move(made));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace
