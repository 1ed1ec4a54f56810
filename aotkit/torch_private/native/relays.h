// Callables that stand between a caller and what it wants called, each in place of a Python frame.

#pragma once

#include "guards.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>
#include <torch/csrc/utils/pybind.h>

#include <ATen/ops/empty.h>

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace {

using Object = pybind11::object;

[[noreturn]] void rethrow() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// What a function of Python's returned, unless that is an error.
Object made(PyObject* object) {
  if (!object) rethrow();
  return pybind11::reinterpret_steal<Object>(object);
}

// A callable with a list of inputs. What it calls, and when, is up to the function in `call`.
struct Relay {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* attributes;  // its __dict__
  PyObject* target;
  PyObject* other;  // called in place of the target where that will not do; may be nullptr
  std::vector<Py_ssize_t>* numbers;  // of inputs
  bool has_run;
};

PyObject* list_of(PyObject* const* arguments, size_t count, PyObject* keywords) {
  TORCH_CHECK_TYPE(
      PyVectorcall_NARGS(count) == 1 && !keywords && PyList_Check(arguments[0]), "expected one list of tensors");
  return arguments[0];
}

PyObject* call_with(PyObject* callable, PyObject* inputs) {
  // Another thread may put another one in its place meanwhile.
  return PyObject_CallOneArg(pybind11::reinterpret_borrow<Object>(callable).ptr(), inputs);
}

PyObject* relay(PyObject* object, PyObject* const* arguments, size_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  return call_with(reinterpret_cast<Relay*>(object)->target, list_of(arguments, count, keywords));
  END_HANDLE_TH_ERRORS
}

// The other one in a backward pass that retains the graph.
PyObject* unless_retained(PyObject* object, PyObject* const* arguments, size_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<Relay*>(object);
  const bool is_retained = torch::autograd::get_current_graph_task_keep_graph();
  return call_with(is_retained ? self->other : self->target, list_of(arguments, count, keywords));
  END_HANDLE_TH_ERRORS
}

// The other one unless those inputs are on the CPU.
PyObject* if_on_cpu(PyObject* object, PyObject* const* arguments, size_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<Relay*>(object);
  PyObject* inputs = list_of(arguments, count, keywords);
  const bool are_there = std::all_of(self->numbers->begin(), self->numbers->end(), [inputs](Py_ssize_t i) {
    PyObject* input = i < PyList_GET_SIZE(inputs) ? PyList_GET_ITEM(inputs, i) : nullptr;
    return input && THPVariable_Check(input) && THPVariable_Unpack(input).is_cpu();
  });
  return call_with(are_there ? self->target : self->other, inputs);
  END_HANDLE_TH_ERRORS
}

// With one more input, a seed: what `random.draws.new_seed` makes, without Python's parsing of arguments.
PyObject* with_seed(PyObject* object, PyObject* const* arguments, size_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  PyObject* inputs = list_of(arguments, count, keywords);
  const auto drawn = at::empty({}, at::TensorOptions(at::kCPU).dtype(at::kLong)).random_();
  const Object seed = made(THPVariable_Wrap(drawn));
  if (PyList_Append(inputs, seed.ptr()) < 0) rethrow();
  return call_with(reinterpret_cast<Relay*>(object)->target, inputs);
  END_HANDLE_TH_ERRORS
}

constexpr uintptr_t ALIGNMENT = 16;  // bytes, as in torch._inductor.utils

// Whether all inputs are tensors, and those aligned that have to be.
bool are_plain(const Relay* self, PyObject* inputs) {
  const Py_ssize_t size = PyList_GET_SIZE(inputs);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!THPVariable_Check(PyList_GET_ITEM(inputs, i))) return false;
  }
  for (const auto i : *self->numbers) {
    if (i >= size) return false;
    const auto address = reinterpret_cast<uintptr_t>(THPVariable_Unpack(PyList_GET_ITEM(inputs, i)).const_data_ptr());
    if (address % ALIGNMENT) return false;
  }
  return true;
}

// Whether this thread has used the CUDA runtime; else the driver, which the C++ calls, would know no context in it.
thread_local bool has_context = false;

// Capsules with new handles of these tensors, for Inductor's C++ to take.
Object handles_of(PyObject* inputs) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(PyList_GET_SIZE(inputs));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(inputs); ++i) {
    tensors.push_back(THPVariable_Unpack(PyList_GET_ITEM(inputs, i)));
  }
  const auto handles = torch::aot_inductor::unsafe_alloc_new_handles_from_tensors(tensors);
  Object capsules = made(PyList_New(static_cast<Py_ssize_t>(handles.size())));
  for (size_t i = 0; i < handles.size(); ++i) {
    PyList_SET_ITEM(capsules.ptr(), static_cast<Py_ssize_t>(i), PyCapsule_New(handles[i], nullptr, nullptr));
  }
  return capsules;
}

// The tensors whose handles are in the capsules that it returned; it has None where there is none.
Object tensors_of(const Object& capsules) {
  std::vector<AtenTensorHandle> handles;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(capsules.ptr()); ++i) {
    PyObject* item = PyList_GET_ITEM(capsules.ptr(), i);
    void* handle = item == Py_None ? nullptr : PyCapsule_GetPointer(item, nullptr);
    handles.push_back(reinterpret_cast<AtenTensorHandle>(handle));
  }
  auto tensors = torch::aot_inductor::alloc_tensors_by_stealing_from_handles(handles.data(), handles.size());
  Object results = made(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyList_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(tensors[i])));
  }
  return results;
}

// For a graph for which Inductor wrote C++ that launches its kernels: what the Python around that does. The target is
// that C++, between capsules with handles of tensors; the other one takes inputs that this is not for.
PyObject* launch(PyObject* object, PyObject* const* arguments, size_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<Relay*>(object);
  PyObject* inputs = list_of(arguments, count, keywords);
  if (!has_context || !self->has_run || !are_plain(self, inputs)) {
    PyObject* results = PyObject_CallOneArg(self->other, inputs);
    if (results) has_context = self->has_run = true;
    return results;
  }
  const Object handles = handles_of(inputs);
  // The graph frees each input after its last use.
  if (PyList_SetSlice(inputs, 0, PyList_GET_SIZE(inputs), nullptr) < 0) rethrow();
  return tensors_of(made(PyObject_CallOneArg(self->target, handles.ptr()))).release().ptr();
  END_HANDLE_TH_ERRORS
}

// The numbers in a tuple, at least 0 and less than a limit; none, with a Python error set, if one is something else.
std::unique_ptr<std::vector<Py_ssize_t>> numbers_of(PyObject* tuple, Py_ssize_t limit) {
  auto numbers = std::make_unique<std::vector<Py_ssize_t>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    numbers->push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i)));
    if (PyErr_Occurred()) return nullptr;
    if (numbers->back() < 0 || numbers->back() >= limit) {
      PyErr_Format(PyExc_ValueError, "expected numbers from 0 to %zd, not %zd", limit - 1, numbers->back());
      return nullptr;
    }
  }
  return numbers;
}

extern PyTypeObject relay_type;

// Takes the target, the other one if the function needs it, and numbers of inputs.
template <vectorcallfunc call, bool has_other>
PyObject* new_relay(PyObject* /*module*/, PyObject* arguments) {
  PyObject *target = nullptr, *other = nullptr, *of_inputs = nullptr;
  const char* format = has_other ? "OO|O!" : "O";
  if (!PyArg_ParseTuple(arguments, format, &target, &other, &PyTuple_Type, &of_inputs)) return nullptr;
  auto numbers = std::make_unique<std::vector<Py_ssize_t>>();
  if (of_inputs && !(numbers = numbers_of(of_inputs, PY_SSIZE_T_MAX))) return nullptr;
  auto* self = reinterpret_cast<Relay*>(relay_type.tp_alloc(&relay_type, 0));
  if (!self) return nullptr;
  self->call = call;
  self->target = Py_NewRef(target);
  self->other = Py_XNewRef(other);
  self->numbers = numbers.release();
  return reinterpret_cast<PyObject*>(self);
}

int traverse_relay(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<Relay*>(object);
  Py_VISIT(self->attributes);
  Py_VISIT(self->target);
  Py_VISIT(self->other);
  return 0;
}

int clear_relay(PyObject* object) {
  auto* self = reinterpret_cast<Relay*>(object);
  Py_CLEAR(self->attributes);
  Py_CLEAR(self->target);
  Py_CLEAR(self->other);
  return 0;
}

void destroy_relay(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_relay(object);
  delete reinterpret_cast<Relay*>(object)->numbers;
  Py_TYPE(object)->tp_free(object);
}

PyMemberDef relay_members[] = {
    {"target", T_OBJECT_EX, offsetof(Relay, target), 0, "What it calls."}, {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef relay_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject relay_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef relay_functions[] = {
    {"relay", new_relay<relay, false>, METH_VARARGS, "Calls its target."},
    {"unless_retained", new_relay<unless_retained, true>, METH_VARARGS, "Calls the second where the graph is kept."},
    {"if_on_cpu", new_relay<if_on_cpu, true>, METH_VARARGS, "Calls the second unless these inputs are on the CPU."},
    {"with_seed", new_relay<with_seed, false>, METH_VARARGS, "Calls it with one more input, a new seed."},
    {"launched", new_relay<launch, true>, METH_VARARGS, "Calls Inductor's C++; the second if an input is misaligned."},
    {nullptr, nullptr, 0, nullptr}};

// Adds the functions to the module; false with a Python error set.
bool add_relays(PyObject* module) {
  make_callable<Relay>(relay_type, "aotkit_native.Relay", nullptr, destroy_relay);
  make_collected(relay_type, traverse_relay, clear_relay);
  relay_type.tp_members = relay_members;
  relay_type.tp_getset = relay_attributes;
  relay_type.tp_dictoffset = offsetof(Relay, attributes);
  return PyType_Ready(&relay_type) == 0 && PyDict_SetItemString(relay_type.tp_dict, "_boxed_call", Py_True) == 0 &&
      PyModule_AddFunctions(module, relay_functions) == 0;
}

}  // namespace
